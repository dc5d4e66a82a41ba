// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

var ctx = context.Background()

func TestAddThenDelLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	n := w.node()
	res, err := n.Add(ctx, w.request("c1", "net1", ""))
	must(t, err)
	if len(res.IPs) != 2 || len(res.Interfaces) != 1 || len(res.Routes) != 4 {
		t.Errorf("result has %d addresses, %d interfaces, %d routes", len(res.IPs), len(res.Interfaces), len(res.Routes))
	}
	if err := n.Check(ctx, w.request("c1", "net1", "")); err != nil {
		t.Errorf("CHECK right after ADD: %v", err)
	}
	for range 2 {
		must(t, n.Del(ctx, w.del("c1", "net1")))
		w.mustBeEmpty("after DEL")
	}
	if err := n.Check(ctx, w.request("c1", "net1", "")); err == nil {
		t.Error("CHECK after DEL finds nothing wrong")
	}
}

// TestTheRecordHasWhatTheCallSaid, with a pool of ours and with another IPAM plugin, which
// needs the configuration for its DEL.
func TestTheRecordHasWhatTheCallSaid(t *testing.T) {
	t.Parallel()
	for ipam, w := range map[string]*world{conf.PoolType: newWorld(t), "foreign": newForeign(t).world} {
		w.pod, w.now = w.fake.Pod(podPath("c1")), time.Minute
		req := w.request("c1", "net1", "")
		req.Pod = conf.Pod{Namespace: "train", Name: "trainer-0", UID: "f1a6"}
		n := w.node()
		n.Trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		_, err := n.Add(ctx, req)
		must(t, err)
		got, err := n.Records.Load(c1)
		must(t, err)
		want := record.Record{
			Version: got.Version, BootID: w.boot, Network: "rail", Attachment: c1, Pod: req.Pod, Netns: podPath("c1"), NetnsID: got.NetnsID,
			IPAM: ipam, Pool: "rail", Digest: req.Digest, Trace: n.Trace, Committed: true, Saved: time.Minute, Plan: got.Plan,
		}
		if ipam != conf.PoolType {
			var b bytes.Buffer
			must(t, json.Compact(&b, req.IPAM.Raw))
			want.Pool, want.Config = "", b.Bytes()
		}
		same := cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}
		if diff := cmp.Diff(want, got, same); diff != "" || req.Digest == "" || got.NetnsID == (netns.ID{}) {
			t.Errorf("%s (-want +got):\n%s", ipam, diff)
		}
	}
}

func TestAddOfAStandingAttachmentChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.mustCome("c1")
	before := w.fake.String()
	second := w.mustAdd(w.request("c1", "net1", ""))
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("result (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(before, w.fake.String()); diff != "" {
		t.Errorf("kernel (-before +after):\n%s", diff)
	}
}

func TestAddRepairsAnAttachmentThatIsDamaged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustCome("c1")
	want := w.fake.String()
	w.pod.IP("link del net1")
	w.mustAdd(w.request("c1", "net1", ""))
	if diff := cmp.Diff(want, w.fake.String()); diff != "" {
		t.Errorf("kernel (-before +after):\n%s", diff)
	}
}

// The record of the next attempt would not name what is left.
func TestNoOtherAddressIsTriedWhileTheFirstIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	w.wire.refuse = 1
	w.before = func(_ plan.Op, undo bool) error {
		if undo {
			return errFault
		}
		return nil
	}
	if _, err := w.node().Add(ctx, w.request("c1", "net1", "")); cnierr.CodeOf(err) != cnierr.AddressTaken || len(w.wire.asked) != 1 {
		t.Errorf("got %v after asking for %v", err, w.wire.asked)
	}
	if l := w.leases(); len(l) == 0 || !strings.HasPrefix(l[0], w.wire.asked[0]+" ") || len(w.files()) == 0 {
		t.Errorf("leased %v, records %v, and %v may be on a link", l, w.files(), w.wire.asked)
	}
	w.before = nil
	w.mustLeave("c1")
	w.mustBeEmpty("after DEL")
}

func TestDelConverges(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*testing.T, *world){
		"namespace gone":       func(_ *testing.T, w *world) { w.fake.RemovePod(podPath("c1")) },
		"namespace replaced":   func(_ *testing.T, w *world) { w.fake.RemovePod(podPath("c1")); w.fake.Pod(podPath("c1")) },
		"master gone":          func(_ *testing.T, w *world) { w.fake.Host().IP("link del ens1") },
		"link gone":            func(_ *testing.T, w *world) { w.pod.IP("link del net1") },
		"record gone":          func(t *testing.T, w *world) { remove(t, w.file("c1", "net1.json")) },
		"record unreadable":    func(t *testing.T, w *world) { write(t, w.file("c1", "net1.json"), "{") },
		"record of the future": func(t *testing.T, w *world) { write(t, w.file("c1", "net1.json"), `{"version": 99}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.mustCome("c1")
			spoil(t, w)
			for range 2 {
				w.mustLeave("c1")
				w.mustBeEmpty("after DEL")
			}
		})
	}
}

// TestDelWorksOnlyInTheNamespaceOfADD replaces the namespace by one in which
// another attachment of ours has the same address and rules.
func TestDelWorksOnlyInTheNamespaceOfADD(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	res := w.mustCome("c1")
	w.fake.RemovePod(podPath("c1"))
	pod := w.fake.Pod(podPath("c1"))
	pod.IP(fmt.Sprintf("rule add from %s/32 lookup 100 priority 32000 protocol 82", res.IPs[0].Address.IP))
	before := w.fake.String()
	w.mustLeave("c1")
	if diff := cmp.Diff(before, w.fake.String()); diff != "" {
		t.Errorf("the other namespace changed (-before +after):\n%s", diff)
	}
}

func TestAddLeasesAgainWhatAnOperatorReleased(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	res := w.mustCome("c1")
	addr, _ := netip.AddrFromSlice(res.IPs[0].Address.IP)
	must(t, w.book().ReleaseAddress(ctx, "rail", addr.Unmap()))
	w.mustAdd(w.request("c1", "net1", ""))
	if len(w.leases()) != 2 {
		t.Errorf("leased %v", w.leases())
	}
}

// TestDelFindsTheNamespaceThatADDWorkedIn gives DEL a wrong CNI_NETNS while the
// right namespace lives where it was.
func TestDelFindsTheNamespaceThatADDWorkedIn(t *testing.T) {
	t.Parallel()
	for name, netns := range map[string]string{"another pod's": podPath("c2"), "none": podPath("gone"), "empty": ""} {
		w := newWorld(t)
		w.fake.Pod(podPath("c1"))
		w.fake.Pod(podPath("c2"))
		w.mustAdd(w.request("c1", "net1", ""))
		d := w.del("c1", "net1")
		d.Netns = netns
		if err := w.node().Del(ctx, d); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		w.mustBeEmpty("after DEL with " + name)
	}
}

func TestAddressStaysLeasedWhileDELCannotTakeItOffTheLink(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustCome("c1")
	w.fake.FailFrom(1, errFault)
	if err := w.node().Del(ctx, w.del("c1", "net1")); !errors.Is(err, errFault) {
		t.Errorf("got %v", err)
	}
	if len(w.leases()) != 2 || len(w.files()) == 0 {
		t.Errorf("leased %v, files %v", w.leases(), w.files())
	}
	w.fake.Heal()
	w.mustLeave("c1")
	w.mustBeEmpty("after the second DEL")
}

func remove(t *testing.T, path string) {
	t.Helper()
	must(t, os.Remove(path))
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestForeignInterfaceIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod := w.fake.Pod(podPath("c1"))
	pod.IP("link add net1 type veth")
	before := w.fake.String()
	_, err := w.node().Add(ctx, w.request("c1", "net1", ""))
	if err == nil || cnierr.CodeOf(err) != cnierr.BadEnv || !strings.Contains(err.Error(), `"net1"`) {
		t.Errorf("got %v, want code %d naming net1", err, cnierr.BadEnv)
	}
	w.mustLeave("c1")
	if diff := cmp.Diff(before, w.fake.String()); diff != "" {
		t.Errorf("the pod changed (-before +after):\n%s", diff)
	}
	if l, f := w.leases(), w.files(); len(l)+len(f) > 0 {
		t.Errorf("leased %v, files %v", l, f)
	}
}

func TestUnusableStateFolderUndoesTheKernelFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustCome("c1")
	hidden := w.dir + ".hidden"
	must(t, os.Rename(w.dir, hidden))
	write(t, w.dir, "a file where the folder was")
	w.fake.Pod(podPath("c2"))
	_, added := w.node().Add(ctx, w.request("c2", "net1", ""))
	for verb, err := range map[string]error{"DEL": w.node().Del(ctx, w.del("c1", "net1")), "ADD": added} {
		if cnierr.CodeOf(err) != cnierr.IO {
			t.Errorf("%s: got %v, want code %d", verb, err, cnierr.IO)
		}
	}
	if s := w.fake.String(); s != "" {
		t.Errorf("the kernel has:\n%s", s)
	}
	remove(t, w.dir)
	must(t, os.Rename(hidden, w.dir))
	w.mustLeave("c1")
	w.mustBeEmpty("after the second DEL")
}

func TestTakenAddressIsSetAsideAndTheNextOneTried(t *testing.T) {
	t.Parallel()
	for refused := range 3 {
		w := newWorld(t)
		w.fake.Pod(podPath("c1"))
		w.wire.refuse = refused
		res, err := w.node().Add(ctx, w.request("c1", "net1", ""))
		if err != nil {
			t.Fatalf("%d addresses taken: %v", refused, err)
		}
		if got := len(slices.Compact(slices.Sorted(slices.Values(w.wire.asked)))); got != refused+1 {
			t.Errorf("%d addresses taken: asked for %v", refused, w.wire.asked)
		}
		last := w.wire.asked[len(w.wire.asked)-1]
		if res.IPs[0].Address.IP.String() != last || len(w.leases()) != 2 {
			t.Errorf("%d addresses taken: got %v, leased %v, asked for %v", refused, res.IPs[0], w.leases(), w.wire.asked)
		}
	}
}

func TestThreeTakenAddressesAreEnough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	w.wire.refuse = 3
	_, err := w.node().Add(ctx, w.request("c1", "net1", ""))
	if err == nil || cnierr.CodeOf(err) != cnierr.AddressTaken {
		t.Errorf("got %v, want code %d", err, cnierr.AddressTaken)
	}
	if w.wire.refuse != 0 || len(w.wire.asked) != 3 {
		t.Errorf("asked for %v", w.wire.asked)
	}
	w.mustBeEmpty("after three conflicts")
}

func TestOneHostThatAnswersForAllSetsOneAddressAside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	w.fake.Pod(podPath("c2"))
	res := w.mustAdd(w.request("c1", "net1", ""))
	mac, err := net.ParseMAC(res.Interfaces[0].Mac)
	must(t, err)
	w.wire.refuse, w.wire.by = 3, conf.MAC(mac)
	forget := w.unreadable("b9") // does not hide the record of c1
	_, err = w.node().Add(ctx, w.request("c2", "net1", ""))
	forget()
	if err == nil || cnierr.CodeOf(err) != cnierr.AddressTaken || !strings.Contains(err.Error(), `container "c1"`) && !strings.Contains(err.Error(), `pod "`) {
		t.Errorf("got %v, want code %d, and the name of the one that answers", err, cnierr.AddressTaken)
	}
	if len(w.wire.asked) != 3 {
		t.Errorf("asked for %v, want one address of c1 and two of c2", w.wire.asked)
	}
	w.mustLeave("c1")
	w.mustBeEmpty("after the DEL")
}

// Nodes with a pool of their own each may give pods of one segment the same address.
func TestEachNodeMakesAnotherMACForAnAddress(t *testing.T) {
	t.Parallel()
	made := map[string]string{}
	for _, id := range []string{"machine/a", "machine/b"} {
		w := newWorld(t)
		w.fake.Pod(podPath("c1"))
		n := w.node()
		n.ID = id
		res, err := n.Add(ctx, w.request("c1", "net1", ""))
		must(t, err)
		if other := made[res.Interfaces[0].Mac]; other != "" {
			t.Errorf("%s and %s both make %s", id, other, res.Interfaces[0].Mac)
		}
		made[res.Interfaces[0].Mac] = id
	}
}

// The MAC of an ipvlan is that of the NIC, which the host and all pods have.
func TestAnIpvlanIsNotNamedForTheMACOfItsNIC(t *testing.T) {
	t.Parallel()
	w := newIpvlanWorld(t)
	w.fake.Pod(podPath("c1"))
	w.fake.Pod(podPath("c2"))
	w.mustAdd(w.request("c1", "net1", ""))
	w.wire.refuse, w.wire.by = 3, nicMAC
	if _, err := w.node().Add(ctx, w.request("c2", "net1", "")); err == nil || !strings.Contains(err.Error(), "no pod of this node has this MAC") {
		t.Errorf("got %v, want no pod named", err)
	}
}

func TestRequestedAddressHasNoSubstitute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	w.wire.refuse = 1
	_, err := w.node().Add(ctx, w.request("c1", "net1", `, "runtimeConfig": {"ips": ["172.16.11.2"]}`))
	if err == nil || cnierr.CodeOf(err) != cnierr.AddressTaken || len(w.wire.asked) != 1 {
		t.Errorf("got %v after asking for %v, want code %d after one", err, w.wire.asked, cnierr.AddressTaken)
	}
	w.mustBeEmpty("after the conflict")
}

// An ipvlan has no MAC of its own to be found by: the kernel refuses an address that another
// ipvlan of the NIC has.
func TestAnAddressOfAnotherIpvlanIsSetAside(t *testing.T) {
	t.Parallel()
	first := newIpvlanWorld(t).mustCome("c1").IPs
	for i, taken := range first {
		w := newIpvlanWorld(t)
		addr, _ := netip.AddrFromSlice(taken.Address.IP)
		w.fake.Pod(podPath("foreign"))
		k, err := w.node().Machine.Open(podPath("foreign"))
		must(t, err)
		defer k.Close()
		link := plan.Child{Name: "net1", Parent: "ens1", NIC: plan.NIC{}, Mode: conf.L2, MTU: 1500}
		must(t, k.Do(ctx, plan.InPod(link, plan.Address{Link: "net1", Prefix: netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen())})...))
		var log strings.Builder
		w.log = slog.New(slog.NewTextHandler(&log, nil))
		got := w.mustCome("c1").IPs
		if got[i].Address.IP.Equal(taken.Address.IP) || !strings.Contains(log.String(), "address="+addr.Unmap().String()+" ") {
			t.Errorf("got %v, the log says %q", got[i].Address.IP, log.String())
		}
	}
}

// An ipvlan has no MAC by which it could be told from the next one.
func TestAddressesOfTwoIpvlansAreSetAside(t *testing.T) {
	t.Parallel()
	w := newIpvlanWorld(t)
	var taken []netip.Addr
	w.before = func(op plan.Op, undo bool) error {
		if a, sets := op.Kind.(plan.Address); sets && !undo && a.Prefix.Addr().Is4() && len(taken) < 2 {
			taken = append(taken, a.Prefix.Addr())
			return &kernel.AddressInUseError{Addr: a.Prefix.Addr()}
		}
		return nil
	}
	res := w.mustCome("c1")
	if got := res.IPs[0].Address.IP.String(); len(taken) != 2 || taken[0] == taken[1] || got == taken[0].String() || got == taken[1].String() {
		t.Errorf("taken are %v, got %s", taken, got)
	}
}

// The policy is about NICs of the host, not about what another plugin has put into the pod.
func TestThePolicyOfTheNodeIsAskedForNICsOfTheHost(t *testing.T) {
	t.Parallel()
	refuse := func(nic plan.Link) error { return cnierr.New(cnierr.BadConfig, "use", string(nic.Name), "", "no") }
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	n := w.node()
	n.AllowParent = refuse
	if _, err := n.Add(ctx, w.request("c1", "net1", "")); cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), `"ens1"`) {
		t.Errorf("got %v, want what the policy says", err)
	}
	w.mustBeEmpty("after an ADD that was refused")
	w = chain(t)
	n = w.node()
	n.AllowParent = refuse
	_, err := n.Add(ctx, w.adopted("c1", 3, ""))
	must(t, err)
}
