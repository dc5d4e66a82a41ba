// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

// leasedChain is chain, with roce-ipam as the IPAM plugin of the plugin before:
// the addresses of net1 are leased in the pool of the node.
func leasedChain(t *testing.T) *world {
	t.Helper()
	w := chain(t)
	w.lease("macvlan", "c1", "net1", "172.16.11.3", "fd00:11::3")
	return w
}

// lease leases addresses as roce-ipam does for another plugin.
func (w *world) lease(program, id, ifName string, addrs ...string) {
	w.t.Helper()
	ask := ipam.Ask{Pool: "rail", Owner: ipam.Owner{ContainerID: id, IfName: ifName, Network: "rail", Program: program}}
	for _, a := range addrs {
		addr := netip.MustParseAddr(a)
		bits := 24
		if addr.Is6() {
			bits = 64
		}
		ask.Subnets = append(ask.Subnets, ipam.Subnet{Prefix: netip.PrefixFrom(addr, bits).Masked()})
		ask.Requested = append(ask.Requested, addr)
	}
	if _, err := w.book().Acquire(ctx, ask); err != nil {
		w.t.Fatal(err)
	}
}

// stillLeased checks that the plugin before has its leases.
func (w *world) stillLeased(when string) {
	w.t.Helper()
	if diff := cmp.Diff([]string{"172.16.11.3 c1/net1", "fd00:11::3 c1/net1"}, w.leases()); diff != "" {
		w.t.Errorf("%s, the leases of the plugin before changed (-want +got):\n%s", when, diff)
	}
}

// adoptedDel returns the DEL of what adopted adds.
func (w *world) adoptedDel() conf.Del {
	w.t.Helper()
	d, err := conf.ParseDel(conf.Input{
		ContainerID: "c1", IfName: "net1", Netns: podPath("c1"), Stdin: fmt.Appendf(nil, behind, w.mode, 3, ""),
	})
	must(w.t, err)
	return d
}

func TestAFailedAdoptionReleasesNoLeaseOfThePluginBefore(t *testing.T) {
	t.Parallel()
	w := leasedChain(t)
	w.wire.silent = true
	if _, err := w.node().Add(ctx, w.adopted("c1", 3, "")); cnierr.CodeOf(err) != cnierr.GatewaySilent {
		t.Fatalf("got %v, want code %d", err, cnierr.GatewaySilent)
	}
	w.stillLeased("after ADD failed")
}

func TestARepeatedAdoptionReleasesNoLeaseOfThePluginBefore(t *testing.T) {
	t.Parallel()
	w := leasedChain(t)
	w.mustAdd(w.adopted("c1", 3, ""))
	w.pod.IP("rule del from 172.16.11.3/32 lookup 100 priority 32000")
	w.mustAdd(w.adopted("c1", 3, ""))
	w.stillLeased("after the repeated ADD")
	w.mustDel(w.adoptedDel())
	w.stillLeased("after DEL of roce")
}

func TestDELOfAnAdoptionWithoutRecordReleasesNoLeaseOfThePluginBefore(t *testing.T) {
	t.Parallel()
	t.Run("no record", func(t *testing.T) {
		t.Parallel()
		w := leasedChain(t)
		w.mustDel(w.adoptedDel())
		w.stillLeased("after DEL")
	})
	t.Run("a record that cannot be read", func(t *testing.T) {
		t.Parallel()
		w := leasedChain(t)
		w.mustAdd(w.adopted("c1", 3, ""))
		must(t, os.WriteFile(filepath.Join(w.dir, "attachments/c1/net1.json"), []byte("{"), 0o600))
		w.mustDel(w.adoptedDel())
		w.stillLeased("after DEL")
	})
}

// An ipam that cannot be read may have been one that leases.
func TestDELWithoutRecordAndWithoutReadableIPAMReleases(t *testing.T) {
	t.Parallel()
	for name, ipam := range map[string]string{"no object": `5`, "a type of another kind": `{"type": 5}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := leasedChain(t)
			w.lease(conf.PluginType, "c1", "net1", "172.16.11.4")
			d, err := conf.ParseDel(conf.Input{
				ContainerID: "c1", IfName: "net1", Netns: podPath("c1"),
				Stdin: fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "rail", "type": "roce", "ipam": %s}`, ipam),
			})
			must(t, err)
			w.mustDel(d)
			w.stillLeased("after DEL")
		})
	}
}

func TestGCOfAnAdoptionReleasesNoLeaseOfThePluginBefore(t *testing.T) {
	t.Parallel()
	w := leasedChain(t)
	w.mustAdd(w.adopted("c1", 3, ""))
	w.now++
	gc := w.gc("rail")
	gc.IPAM = ""
	for range 2 { // with and without a record
		must(t, w.node().GC(ctx, gc))
		w.stillLeased("after GC of roce")
	}
}

// Two interfaces of one container lease from one pool, and one gets the address
// that the other had.
func TestTheLeaseOfAnotherInterfaceOfTheContainerIsNotOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	for _, name := range []string{"net1", "net2"} {
		w.mustAdd(w.request("c1", name, ""))
	}
	rec, err := w.node().Records.Load(c1)
	must(t, err)
	addrs := rec.Plan.Addresses()
	must(t, w.book().Release(ctx, ipam.Key{ContainerID: "c1", IfName: "net1", Network: "rail", Program: conf.PluginType}, netns.Ref{}))
	w.lease("macvlan", "c1", "net2", addrs[0].Prefix.Addr().String(), addrs[1].Prefix.Addr().String())
	if err := w.node().Check(ctx, w.request("c1", "net1", "")); cnierr.CodeOf(err) != cnierr.Damaged {
		t.Errorf("CHECK of net1: got %v, want code %d", err, cnierr.Damaged)
	}
	w.mustAdd(w.request("c1", "net1", ""))
	again, err := w.node().Records.Load(c1)
	must(t, err)
	for _, a := range again.Plan.Addresses() {
		if a.Prefix == addrs[0].Prefix || a.Prefix == addrs[1].Prefix {
			t.Errorf("the repeated ADD left %s, which is leased to net2", a.Prefix)
		}
	}
	w.mustBeWhole("c1")
}
