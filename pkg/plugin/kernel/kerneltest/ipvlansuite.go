// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// needs skips the test if the kernel has no driver for a kind of links.
func (w World) needs(t *testing.T, kind string) {
	t.Helper()
	if !w.Has(kind) {
		t.Skipf("the kernel has no %s: make test-vm runs this test in a virtual machine", kind)
	}
}

// nicMAC returns the MAC of the NIC.
func (w opened) nicMAC(t *testing.T) conf.MAC {
	t.Helper()
	rails, err := w.Facts(t.Context(), conf.Request{Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{Name: w.NIC}}}, MinRails: 1})
	facts, err := plan.Only(rails, err)
	if err != nil {
		t.Fatal(err)
	}
	return facts.Parent.MAC
}

func (w opened) ipvlan(t *testing.T, name conf.LinkName) plan.Op {
	t.Helper()
	mark := plan.Mark(conf.Attachment{ContainerID: w.Container, IfName: name})
	return plan.Op{Kind: plan.Child{Name: name, Parent: w.NIC, Mode: conf.L2, MTU: 1500, MAC: w.nicMAC(t), Mark: mark}}
}

// ipvlans makes and removes an attachment with an ipvlan. Another one of the NIC, which
// has the same MAC, stays.
func ipvlans(t *testing.T, w opened) {
	w.needs(t, "ipvlan")
	w.must(t, w.ipvlan(t, "net2"))
	ops := Attachment(w.Container, w.NIC)
	ops[0] = w.ipvlan(t, "net1")
	w.cycle(t, ops)
	wantCode(t, w.Check(t.Context(), ops[0]), cnierr.Damaged)
}

// unmarkedIpvlan has a link of a process that died before it set the mark, a link that
// the pod has renamed, and one of another program with the same MAC.
func unmarkedIpvlan(t *testing.T, w opened) {
	w.needs(t, "ipvlan")
	before := w.Show()
	op := w.ipvlan(t, "net1")
	w.must(t, op)
	made := w.Show()
	w.IP(`link set net1 alias ""`)
	wantCode(t, w.Check(t.Context(), op), cnierr.Damaged)
	w.must(t, op)
	w.unchanged(t, made)
	w.IP(`link set net1 alias ""`)
	w.undo(t, plan.Ops{op})
	w.unchanged(t, before)

	w.must(t, op)
	w.IP("link set net1 name other0")
	if err := w.Check(t.Context(), op); !errors.Is(err, kernel.ErrRenamed) {
		t.Errorf("check of a renamed link: %v, want ErrRenamed", err)
	}
	w.undo(t, plan.Ops{op})
	w.unchanged(t, before)

	w.must(t, op)
	w.IP("link set net1 name other0")
	w.IP(`link set other0 alias ""`) // as a foreign one has none
	renamed := w.Show()
	w.undo(t, plan.Ops{op})
	w.unchanged(t, renamed)
	w.IP("link del other0")
}

func lostIpvlan(t *testing.T, w opened) {
	w.needs(t, "ipvlan")
	ops := Attachment(w.Container, w.NIC)
	ops[0] = w.ipvlan(t, "net1")
	w.undoLost(t, ops)
}

// addressOfIpvlans wants an address to be on one ipvlan of a NIC, and macvlans and
// ipvlans not to be on one NIC.
func addressOfIpvlans(t *testing.T, w opened) {
	w.needs(t, "ipvlan")
	before := w.Show()
	one, two := w.ipvlan(t, "net1"), w.ipvlan(t, "net2")
	w.must(t, one)
	w.must(t, two)
	for _, addr := range []string{"10.9.0.5/24", "fd00:9::5/64"} {
		prefix := netip.MustParsePrefix(addr)
		w.must(t, plan.Op{Kind: plan.Address{Link: "net1", Prefix: prefix}})
		err := w.Do(t.Context(), plan.Op{Kind: plan.Address{Link: "net2", Prefix: prefix}})
		wantCode(t, err, cnierr.AddressTaken)
		var has *kernel.AddressInUseError
		if !errors.As(err, &has) || has.Addr != prefix.Addr() {
			t.Errorf("got %v, want an AddressInUseError for %s", err, prefix.Addr())
		}
	}
	m := w.macvlan()
	m.Name = "net3"
	err := w.Do(t.Context(), plan.Op{Kind: m})
	wantCode(t, err, cnierr.BadParent)
	if !strings.Contains(err.Error(), "busy") {
		t.Errorf("a macvlan beside ipvlans: %v", err)
	}
	// The pod can set any alias: then the address says that the link is ours.
	w.IP("link set net1 alias roce:other/net1")
	w.undo(t, plan.InPod(plan.Carriers{Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.5")}}))
	w.undo(t, plan.Ops{two})
	w.unchanged(t, before)
}

// ipvlanModes has an ipvlan of another program on the NIC. One with another mode would lose
// it.
func ipvlanModes(t *testing.T, w opened) {
	w.needs(t, "ipvlan")
	req := conf.Request{Mode: conf.L2, Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{Name: w.NIC}}}, MinRails: 1}
	for mode, want := range map[string]cnierr.Code{"l2": 0, "l3": cnierr.BadParent, "l3s": cnierr.BadParent} {
		w.HostIP("link add link " + string(w.NIC) + " name other0 type ipvlan mode " + mode)
		host := w.ShowHost()
		rails, err := w.Facts(t.Context(), req)
		if _, err = plan.Only(rails, err); want != 0 {
			wantCode(t, err, want)
		} else if err != nil {
			t.Errorf("beside an ipvlan of mode %s: %v", mode, err)
		}
		w.asBefore(t, w.Show(), host)
		w.HostIP("link del other0")
	}
}
