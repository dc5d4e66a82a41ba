// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"net/netip"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// previous makes a link of another plugin with an address, and returns the
// operation that adopts it.
func (w opened) previous() plan.Adopt {
	w.IP("link add net1 type bridge")
	w.IP("link set net1 address 02:00:00:00:00:05")
	w.IP("link set net1 up")
	w.IP("addr add 10.9.0.5/24 dev net1")
	return plan.Adopt{Link: "net1", MAC: conf.MAC{2, 0, 0, 0, 0, 5}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.5/24")}}
}

func adoption(t *testing.T, w opened) {
	w.refuses(t, plan.Op{Kind: plan.Adopt{Link: "net1"}}, cnierr.BadConfig)
	wantCode(t, w.Check(t.Context(), plan.Op{Kind: plan.Adopt{Link: "net1"}}), cnierr.Damaged)
	op := w.previous()
	before := w.Show()
	w.must(t, plan.Op{Kind: op})
	w.holds(t, plan.Op{Kind: op})
	w.undo(t, plan.InPod(op))
	w.unchanged(t, before)

	other := op
	other.MAC[5]++
	w.refuses(t, plan.Op{Kind: other}, cnierr.TryAgain)
	wantCode(t, w.Check(t.Context(), plan.Op{Kind: other}), cnierr.Damaged)
	other = op
	other.Addresses = append(other.Addresses, netip.MustParsePrefix("10.9.0.5/25"))
	w.refuses(t, plan.Op{Kind: other}, cnierr.BadConfig)
	wantCode(t, w.Check(t.Context(), plan.Op{Kind: other}), cnierr.Damaged)
}

// adoptedAttachment undoes what was added to a foreign link.
func adoptedAttachment(t *testing.T, w opened) {
	adopt := w.previous()
	address := adopt.Addresses[0].Addr()
	from := netip.PrefixFrom(address, 32)
	w.cycle(t, plan.InPod(
		adopt,
		plan.Up{Link: "net1"},
		plan.Route{Link: "net1", Table: 100, Dst: adopt.Addresses[0].Masked(), Src: address, Scope: plan.ScopeLink},
		plan.Route{Link: "net1", Table: 100, Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.9.0.1"), Src: address},
		plan.Rule{From: from, Table: 100, Priority: 32000},
		plan.Rule{From: from, Priority: 32001},
	))
}

func adoptedFacts(t *testing.T, w opened) {
	req := conf.Request{
		Rails: []conf.Rail{{IfName: "net1"}}, RDMA: conf.RDMA{Mode: conf.RDMAShared},
		Prev: &conf.Prev{Result: &current.Result{Interfaces: []*current.Interface{{Name: "net1"}}}, Device: "0000:0b:00.2"},
	}
	_, err := plan.Only(w.Facts(t.Context(), req))
	wantCode(t, err, cnierr.BadConfig)
	w.previous()
	got, err := plan.Only(w.Facts(t.Context(), req))
	if err != nil {
		t.Fatal(err)
	}
	mac := conf.MAC{2, 0, 0, 0, 0, 5}
	want := plan.Facts{
		Adopted: &plan.Adopted{MAC: mac, MTU: 1500},
		Parent:  plan.Link{Name: "net1", MAC: mac, MTU: 1500, Device: "0000:0b:00.2", InPod: true},
		Pod:     plan.PodFacts{Netns: w.ID(), IPv6: true, Taken: true},
	}
	got.Parent.Layers = nil // their indexes are not known here
	if diff := cmp.Diff(want, got, byValue()); diff != "" {
		t.Errorf("a link of another plugin's (-want +got):\n%s", diff)
	}
	req.Rails[0].IfName, req.Prev.Result.Interfaces[0].Name = "lo", "lo"
	_, err = plan.Only(w.Facts(t.Context(), req))
	wantCode(t, err, cnierr.BadConfig)
}

// adoptedChild adopts a macvlan: its device is the device of the host's link.
func adoptedChild(t *testing.T, w opened) {
	w.must(t, plan.Op{Kind: w.macvlan()})
	got, err := plan.Only(w.Facts(t.Context(), conf.Request{RDMA: conf.RDMA{Mode: conf.RDMAAuto}, Prev: &conf.Prev{}, Rails: []conf.Rail{{IfName: "net1"}}}))
	if err != nil {
		t.Fatal(err)
	}
	if got.Parent.Name != w.NIC || got.Parent.InPod || got.Parent.Device != "" || got.Adopted.MAC != w.macvlan().MAC {
		t.Errorf("a macvlan on %s: got %+v, parent %+v", w.NIC, got.Adopted, got.Parent)
	}
	got, err = plan.Only(w.Facts(t.Context(), conf.Request{RDMA: conf.RDMA{Mode: conf.RDMAOff}, Prev: &conf.Prev{}, Rails: []conf.Rail{{IfName: "net1"}}}))
	if err != nil || got.Parent.Name != "" {
		t.Errorf("without RDMA: got parent %+v, %v", got.Parent, err)
	}
}
