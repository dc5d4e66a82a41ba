// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// behindIPAM returns the attachment of a pod by a list of upstream's macvlan, which
// leases one address from roce-ipam, and roce, which adopts the interface.
func (w *world) behindIPAM(t *testing.T, p *pod, quarantine, gateway string) attachment {
	t.Helper()
	maker := macvlanOn(0)
	a := w.behind(t, p, 0, maker)
	a.network = a.network.With("probe.gateway.timeout", "5ms")
	subnet := cnitest.Subnet4(0)
	subnet["ranges"], subnet["gateway"] = []any{"172.16.10.64"}, gateway
	maker["ipam"] = map[string]any{"type": "roce-ipam", "pool": "shared", "quarantine": quarantine, "subnets": []any{subnet}}
	a.before = []any{maker}
	return a
}

// repeatRoce repeats the ADD of roce alone, with the result of the plugins before.
func (a attachment) repeatRoce(t *testing.T, before *current.Result) {
	t.Helper()
	b, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	var prev map[string]any
	if err := json.Unmarshal(b, &prev); err != nil {
		t.Fatal(err)
	}
	again := a
	again.network = a.network.With("prevResult", prev)
	if _, err := again.raw(t, "roce", "ADD", again.text(t)); err != nil {
		t.Fatalf("the repeated ADD of roce: %v", err)
	}
}

var oneLease = []string{"shared 172.16.10.64"}

func TestRoceReleasesNoLeaseOfThePluginBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)

	t.Log("roce fails behind macvlan")
	first := w.behindIPAM(t, w.pod(t), "0s", "172.16.10.253")
	first.mustFail(t, 106)
	if got := w.leases(t, "leased"); !slices.Equal(got, oneLease) {
		t.Fatalf("after roce failed, leased: %q", got)
	}
	p := w.pod(t)
	second := w.behindIPAM(t, p, "0s", "172.16.10.254")
	if _, err := second.add(t); err == nil || err.Code != 101 {
		t.Fatalf("the next pod: got %v, want error 101", err)
	}
	second.mustDel(t)
	first.mustDel(t)
	w.nothingLeased(t)

	t.Log("roce's ADD is repeated for a pod that lost its routes")
	res := second.mustAdd(t)
	p.IP(t, "route flush table 100")
	second.repeatRoce(t, res)
	if got := w.leases(t, "leased"); !slices.Equal(got, oneLease) {
		t.Fatalf("after the repeated ADD of roce, leased: %q", got)
	}
	if err := second.check(t); err != nil {
		t.Errorf("CHECK: %v", err)
	}

	t.Log("DEL of roce alone, with and without a record")
	for range 2 {
		if _, err := second.raw(t, "roce", "DEL", second.text(t)); err != nil {
			t.Fatal(err)
		}
		if got := w.leases(t, "leased"); !slices.Equal(got, oneLease) {
			t.Fatalf("after DEL of roce, leased: %q", got)
		}
	}
	second.mustDel(t)
	w.nothingLeased(t)
}

func TestIPAMPluginGivesNoAddressInQuarantine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	first := w.behindIPAM(t, w.pod(t), "120s", "172.16.10.254")
	first.mustAdd(t)
	first.mustDel(t)
	second := w.behindIPAM(t, w.pod(t), "120s", "172.16.10.254")
	_, err := second.add(t)
	if err == nil || err.Code != 101 || !strings.Contains(err.Msg, "172.16.10.64") || !strings.Contains(err.Details, "ipam.quarantine") {
		t.Errorf("got %+v, want error 101 that names the address and ipam.quarantine", err)
	}
	second.mustDel(t)

	t.Log("the same pod gets its own address back")
	first.mustAdd(t)
	first.mustDel(t)

	t.Log("after a short quarantine it is given")
	second.before[0].(map[string]any)["ipam"].(map[string]any)["quarantine"] = "0s"
	second.mustAdd(t)
	second.mustDel(t)
}

// CNI forbids it, and upstream's ptp calls DEL of the IPAM plugin when it fails.
func TestARepeatedADDOfAnotherPluginKeepsTheLease(t *testing.T) {
	t.Parallel()
	for _, plugin := range []string{"ptp", "macvlan", "bridge"} {
		t.Run(plugin, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			attached := func(p *pod) attachment {
				a := w.attach(network(w.pooled(plugin, cnitest.Subnet4(0))).With("name", "rail").With("cniVersion", "1.0.0"), p, "net1")
				a.path = append(a.path, upstream(t))
				return a
			}
			p, q := w.pod(t), w.pod(t)
			a, b := attached(p), attached(q)
			a.mustAdd(t)
			first := p.one(t, "net1")
			for range 2 {
				if _, err := a.add(t); err == nil {
					t.Error("ADD was called twice, and succeeded")
				}
				w.mustLease(t, "after the second ADD", "rail", first)
			}
			b.mustAdd(t)
			w.mustLease(t, "after ADD of another pod", "rail", first, q.one(t, "net1"))
			a.mustDel(t)
			a.mustAdd(t)
			w.mustLease(t, "after DEL and ADD", "rail", p.one(t, "net1"), q.one(t, "net1"))
		})
	}
}
