// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"errors"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// onVLAN returns the facts of an attachment on VLAN 7 of a NIC.
func (w opened) onVLAN(t *testing.T, master conf.Parent) (plan.Link, error) {
	t.Helper()
	rails, err := w.Facts(t.Context(), conf.Request{VLAN: 7, Rails: []conf.Rail{{IfName: "net1", Parent: master}}, MinRails: 1})
	facts, err := plan.Only(rails, err)
	return facts.Parent, err
}

func (w opened) vlan(t *testing.T) plan.Op {
	t.Helper()
	nic, err := w.onVLAN(t, conf.Parent{Name: w.NIC})
	if err != nil || nic.VLAN == nil || nic.VLAN.Foreign {
		t.Fatalf("got %+v, %v, want a VLAN that can be made", nic, err)
	}
	if want := conf.LinkName(w.NIC + ".7"); nic.Name != want || nic.Index != 0 || nic.MTU != 1500 || nic.OnNode() != w.NIC {
		t.Errorf("got %+v, want %s, which does not exist yet", nic, want)
	}
	return plan.Op{Place: plan.Host, Shared: true, Kind: plan.VLAN{Name: nic.Name, VLAN: nic.VLAN.VLAN, Identity: nic.VLAN.Identity}}
}

func vlanMade(t *testing.T, w opened) {
	w.needs(t, "vlan")
	pod, host := w.Show(), w.ShowHost()
	op := w.vlan(t)
	wantCode(t, w.Check(t.Context(), op), cnierr.Damaged)
	w.must(t, op)
	made := w.ShowHost()
	w.must(t, op)
	w.asBefore(t, pod, made)
	w.holds(t, op)
	if strings.Contains(made, "fe80:") {
		t.Errorf("the node has a link-local address in the VLAN:\n%s", made)
	}
	name := op.Link()
	is, err := w.onVLAN(t, conf.Parent{Name: w.NIC})
	if err != nil || is.VLAN == nil || is.VLAN.Foreign || is.Name != name || is.Index == 0 {
		t.Errorf("got %+v, %v, want our VLAN", is, err)
	}

	w.HostIP("link set " + string(name) + " down")
	wantCode(t, w.Check(t.Context(), op), cnierr.Damaged)
	_, err = w.onVLAN(t, conf.Parent{Name: w.NIC})
	wantCode(t, err, cnierr.BadParent)
	w.must(t, op)
	w.asBefore(t, pod, made)

	m := w.macvlan()
	m.Parent, m.VLAN = name, conf.VLAN{ID: 7, NIC: w.NIC}
	w.must(t, plan.Op{Kind: m})
	w.holds(t, plan.Op{Kind: m})
	k := w.hostOnly(t)
	for range 2 { // the children go with it
		if err := k.Undo(t.Context(), op); err != nil {
			t.Error(err)
		}
	}
	w.asBefore(t, pod, host)
}

// vlanInUse has a link and an address of the operator on a VLAN that we have made.
func vlanInUse(t *testing.T, w opened) {
	w.needs(t, "vlan")
	pod, host := w.Show(), w.ShowHost()
	op := w.vlan(t)
	name := string(op.Link())
	w.must(t, op)
	for use, end := range map[string]string{
		"link add link " + name + " name other0 type macvlan": "link del other0",
		"addr add 192.0.2.1/24 dev " + name:                   "addr del 192.0.2.1/24 dev " + name,
	} {
		w.HostIP(use)
		used := w.ShowHost()
		if err := w.Undo(t.Context(), op); !errors.Is(err, kernel.ErrInUse) {
			t.Errorf("undo after %s: got %v, want ErrInUse", use, err)
		}
		w.asBefore(t, pod, used)
		w.HostIP(end)
	}
	w.undo(t, plan.Ops{op})
	w.asBefore(t, pod, host)
}

// vlanOfOthers has VLANs that the operator has made: with a name of its own, and with the
// name that ours would have.
func vlanOfOthers(t *testing.T, w opened) {
	w.needs(t, "vlan")
	op := w.vlan(t)
	name := string(op.Link())
	for _, theirs := range []string{"own7", name} {
		w.HostIP("link add link " + string(w.NIC) + " name " + theirs + " type vlan id 7")
		w.HostIP("link set " + theirs + " up")
		is, err := w.onVLAN(t, conf.Parent{Name: w.NIC})
		if err != nil || is.VLAN == nil || !is.VLAN.Foreign || string(is.Name) != theirs || is.OnNode() != w.NIC {
			t.Errorf("got %+v, %v, want the VLAN %s of the operator", is, err, theirs)
		}
		pod, host := w.Show(), w.ShowHost()
		want := cnierr.BadParent
		if theirs == name {
			want = cnierr.TryAgain
		}
		wantCode(t, w.Do(t.Context(), op), want)
		w.undo(t, plan.Ops{op})
		w.asBefore(t, pod, host)
		w.HostIP("link del " + theirs)
	}
	// Another link of the name, and a VLAN of ours that got another name.
	w.HostIP("link add " + name + " type veth")
	_, err := w.onVLAN(t, conf.Parent{Name: w.NIC})
	wantCode(t, err, cnierr.BadParent)
	w.HostIP("link del " + name)
	w.must(t, op)
	w.HostIP("link set " + name + " down")
	w.HostIP("link set " + name + " name own7")
	w.HostIP("link set own7 up")
	if is, err := w.onVLAN(t, conf.Parent{Name: w.NIC}); err != nil || is.VLAN == nil || !is.VLAN.Foreign {
		t.Errorf("got %+v, %v, want a VLAN of the operator", is, err)
	}
	host := w.ShowHost()
	w.undo(t, plan.Ops{op})
	w.asBefore(t, w.Show(), host)
}

// vlanAsMaster wants a VLAN that roce has made to be in no selector, and not to be a
// master by its name: its network may be forbidden to others.
func vlanAsMaster(t *testing.T, w opened) {
	w.needs(t, "vlan")
	w.must(t, w.vlan(t))
	if is, err := w.onVLAN(t, conf.Parent{IfNames: []string{string(w.NIC) + "*"}}); err != nil || is.OnNode() != w.NIC {
		t.Errorf("selected by a pattern: got %+v, %v, want %s", is, err, w.NIC)
	}
	req := conf.Request{Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{Name: w.NIC + ".7"}}}, MinRails: 1}
	rails, err := w.Facts(t.Context(), req)
	_, err = plan.Only(rails, err)
	wantCode(t, err, cnierr.BadParent)
}
