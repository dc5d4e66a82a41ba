// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func (v view) discovery(ctx context.Context) []report.Finding {
	var out []report.Finding
	for _, p := range v.roce() {
		if !p.Carries {
			out = append(out, cannotTell(p.String(), fmt.Sprintf("%s is a slave of %s, with others that have devices: ADD refuses the bond", p.Own.Name, p.NIC.Name), "RoCE LAG: one device for the bond"))
			continue
		}
		out = append(out, v.finds(ctx, p))
	}
	return out
}

// selectors are the ways to name the NIC of a port.
func (v view) selectors(p nic.Port) []conf.Parent {
	out := []conf.Parent{{Name: conf.LinkName(p.NIC.Name)}}
	if len(p.Device.Ports) == 1 { // a device with two ports has two NICs
		out = append(out, conf.Parent{RDMA: p.Device.Name})
	}
	l := p.NIC
	for _, name := range l.AltNames {
		out = append(out, conf.Parent{Name: conf.LinkName(name)})
	}
	on := slices.DeleteFunc(slices.Clone(v.links), func(o rtnl.Link) bool { return o.Dev != l.Dev })
	if l.Bus == "pci" && len(on) == 1 {
		out = append(out, conf.Parent{PCI: l.Dev})
	}
	return out
}

// chosen returns the link that a selector selects, as ADD does it.
func (v view) chosen(ctx context.Context, master conf.Parent) (plan.Link, error) {
	place := parent.Place{Namespace: v.route, Addrs: v.addrs, Sys: v.Sys, Ask: v.rdma}
	links, faults, err := parent.Select(ctx, place, conf.Request{Rails: []conf.Rail{{Parent: master}}, RDMA: conf.RDMA{Mode: conf.RDMAAuto}})
	if err := anyOf(err, faults); err != nil {
		return plan.Link{}, err
	}
	return links[0], nil
}

// facts returns what ADD finds out about the RDMA port of a link.
func (v view) facts(ctx context.Context, mode conf.RDMAMode, l plan.Link) (plan.RDMA, error) {
	s := rdma.New(rdma.Config{Sys: v.Sys, Log: slog.New(slog.DiscardHandler), Dial: v.dialRDMA, TakeInUse: true})
	defer s.Close()
	return s.Facts(ctx, conf.RDMA{Mode: mode}, l, false)
}

// finds selects the NIC of a port as the plugin does, and its RDMA port.
func (v view) finds(ctx context.Context, p nic.Port) report.Finding {
	selectors := v.selectors(p)
	for _, master := range selectors {
		l, err := v.chosen(ctx, master)
		if err != nil {
			return v.refused(ctx, p, err)
		}
		if l.Name != conf.LinkName(p.NIC.Name) {
			return problem(p.String(), fmt.Sprintf("the plugin finds %s for the device, not %s", l.Name, p.NIC.Name), aKnownFault)
		}
		found, err := v.facts(ctx, conf.RDMAAuto, l)
		if err != nil {
			return v.refused(ctx, p, err)
		}
		if found.Device.Name != p.Device.Name || found.Device.Port != p.Number || found.Device.GUID != p.Device.GUID {
			return problem(p.String(), fmt.Sprintf("for a pod on %s the plugin takes %s/%d", p.NIC.Name, found.Device.Name, found.Device.Port), aKnownFault)
		}
	}
	mode := "shared"
	if v.system.Exclusive {
		mode = "exclusive"
	}
	return ok(p.String(), "ADD on %s takes it, by %d selectors; the mode of the node is %s", p.NIC.Name, len(selectors), mode)
}

// refused is the finding for a NIC that ADD would refuse. That is right if the port is
// not active, or for a VF that may not send frames of children.
func (v view) refused(ctx context.Context, p nic.Port, err error) report.Finding {
	if p.State != nldev.Active {
		return cannotTell(p.String(), "ADD refuses the NIC, as it should: "+err.Error(), "an active port: cable, switch port, ip link set "+p.NIC.Name+" up")
	}
	if vf, is := v.virtual(ctx, p); is && vf.blocked {
		return cannotTell(p.String(), "ADD refuses the NIC, as it should: "+err.Error(), vf.allow())
	}
	return problem(p.String(), "ADD refuses the NIC: "+err.Error(), aKnownFault)
}

func anyOf(err error, faults []error) error {
	if err != nil {
		return err
	}
	return faults[0]
}

func (v view) hostGIDs(_ context.Context) []report.Finding {
	var out []report.Finding
	for _, p := range v.roce() {
		out = append(out, v.entries(p)...)
	}
	return out
}

func (v view) entries(p nic.Port) []report.Finding {
	entries, size, err := gidtable.New(v.Sys, p.Device.Name, p.Number).Entries()
	if err != nil {
		return []report.Finding{cannotTell(p.String(), err.Error(), "a GID table")}
	}
	found := gidtable.Fill(entries, size, nil)
	faults := oddEntries(entries)
	var at []string
	for _, a := range v.addrs {
		const notYet = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
		if a.Index != p.Own.Index || a.Prefix.Addr().IsLinkLocalUnicast() || a.Flags&notYet != 0 {
			continue
		}
		have := gidtable.Of(entries, a.Prefix.Addr())
		if len(have) != 1 {
			faults = append(faults, fault{fmt.Sprintf("%d RoCE v2 entries are for %s of %s, want 1: %s", len(have), a.Prefix.Addr(), p.Own.Name, found), "dmesg | grep -i gid"})
			continue
		}
		at = append(at, fmt.Sprint(have[0].Index))
	}
	if len(at) == 0 && len(faults) == 0 {
		return []report.Finding{cannotTell(p.String(), found+"; "+p.Own.Name+" has no address", "an address on the interface, or --mutate")}
	}
	return judge(p.String(), found+"; addresses of the interface at "+strings.Join(at, ", "), faults)
}

// oddEntries finds entries of an unknown type, and entries of RoCE v2 that do not come
// after that of RoCE v1.
func oddEntries(entries []gidtable.Entry) []fault {
	type owned struct {
		gid    netip.Addr
		netdev string
	}
	v1 := map[owned]int{} // the index of the entry before that of RoCE v2
	for _, e := range entries {
		if e.Type == gidtable.RoCEv1 {
			v1[owned{e.GID, e.Netdev}] = e.Index
		}
	}
	var out []fault
	for _, e := range entries {
		at, has := v1[owned{e.GID, e.Netdev}]
		switch {
		case e.Netdev == "" || e.Type == gidtable.RoCEv1: // without interface, it is being added or removed
		case e.Type != gidtable.RoCEv2:
			out = append(out, fault{fmt.Sprintf("index %d has the type %q", e.Index, e.Type), aKnownFault})
		case has && at != e.Index-1:
			out = append(out, fault{fmt.Sprintf("index %d has the RoCE v2 entry of %s, and index %d the one of RoCE v1", e.Index, e.GID, at), aKnownFault})
		}
	}
	return out
}

// The steps of this file have no answer where there is nothing to ask.

func (v view) modes(ctx context.Context) []report.Finding {
	other := conf.RDMAExclusive
	if v.system.Exclusive {
		other = conf.RDMAShared
	}
	for _, p := range v.usable(ctx) {
		l, err := v.chosen(ctx, conf.Parent{Name: conf.LinkName(p.NIC.Name)})
		if err != nil {
			continue // discovery says it
		}
		if _, err := v.facts(ctx, other, l); cnierr.CodeOf(err) != cnierr.RDMAMode {
			return []report.Finding{problem(p.String(), fmt.Sprintf("for mode %s, the answer is %v", other, err), aKnownFault)}
		}
		return []report.Finding{ok(p.String(), "mode %s is refused", other)}
	}
	return nil
}

func (v view) refusals(ctx context.Context) []report.Finding {
	var out []report.Finding
	for _, p := range v.ports() {
		_, err := fs.Stat(v.Sys, p.Dir()+"/gids/0")
		if p.Link == "" || p.Own == nil || p.Device.Protocol == "roce" && err == nil {
			continue
		}
		l, err := v.chosen(ctx, conf.Parent{Name: conf.LinkName(p.NIC.Name)})
		if err == nil {
			_, err = v.facts(ctx, conf.RDMAAuto, l)
		}
		switch code := cnierr.CodeOf(err); {
		case code == cnierr.NoRDMA:
			out = append(out, ok(p.String(), "ADD refuses it: %v", err))
		case code == cnierr.BadParent, errors.Is(err, recording.ErrUnknown):
			out = append(out, cannotTell(p.String(), err.Error(), "an interface that is up, and a file of this version"))
		default:
			out = append(out, problem(p.String(), fmt.Sprintf("ADD does not refuse it: %v", err), aKnownFault))
		}
	}
	return out
}

func (v view) kinds(ctx context.Context) []report.Finding {
	var out []report.Finding
	for _, p := range v.usable(ctx) {
		if p.Bonded() || p.Own.Kind != "" {
			continue
		}
		is := v.kind(p)
		var faults []fault
		for _, k := range []conf.Function{conf.Physical, conf.Virtual, conf.Scalable} {
			got, err := v.chosen(ctx, conf.Parent{Function: k, IfNames: []string{p.NIC.Name}})
			if selected := err == nil && got.Name == conf.LinkName(p.NIC.Name); selected != (k == is) {
				faults = append(faults, fault{fmt.Sprintf("it is %s, and a selector for %s answers: selected %t (%v)", is, k, selected, err), aKnownFault})
			}
		}
		out = append(out, judge(p.String(), fmt.Sprintf("%s is a %s function", p.NIC.Name, is), faults)...)
	}
	return out
}

// kind returns the kind of function that sysfs says.
func (v view) kind(p nic.Port) conf.Function {
	dir := "class/net/" + p.Own.Name + "/device"
	if target, err := fs.ReadLink(v.Sys, dir); err == nil && strings.Contains(path.Base(target), ".sf.") {
		return conf.Scalable
	}
	if _, err := fs.Stat(v.Sys, dir+"/physfn"); err == nil {
		return conf.Virtual
	}
	return conf.Physical
}

// virtual is a virtual function (VF), and what its PF lets it do.
type virtual struct {
	pf       string // the interface of the PF
	settings rtnl.VF
	// blocked says that the NIC drops frames with another MAC: see docs/rdma.md, "A VF as
	// parent".
	blocked bool
}

// allow is the command that lets the VF carry children.
func (f virtual) allow() string {
	return shell.Command("ip link set %s vf %d trust on spoofchk off", f.pf, f.settings.Number)
}

// virtual returns what the PF says of a VF. is is false if p is not on a VF, or if its PF
// has no interface here. It reads sysfs and netlink apart from the code of ADD.
func (v view) virtual(ctx context.Context, p nic.Port) (f virtual, is bool) {
	dir := "class/net/" + p.Own.Name + "/device"
	self, err := fs.ReadLink(v.Sys, dir)
	if err != nil {
		return f, false
	}
	numbers, _ := fs.Glob(v.Sys, dir+"/physfn/virtfn*") // the pattern is right
	i := slices.IndexFunc(numbers, func(name string) bool {
		target, err := fs.ReadLink(v.Sys, name)
		return err == nil && path.Base(target) == path.Base(self)
	})
	pfs, _ := fs.ReadDir(v.Sys, dir+"/physfn/net") // a PF without interface has none
	if i < 0 || len(pfs) == 0 {
		return f, false
	}
	number := strings.TrimPrefix(path.Base(numbers[i]), "virtfn")
	for _, e := range pfs {
		vfs, err := v.route.VFs(ctx, e.Name())
		if err != nil {
			continue
		}
		for _, vf := range vfs {
			if fmt.Sprint(vf.Number) == number {
				driver, _ := fs.ReadLink(v.Sys, dir+"/driver") // without one it is not mlx5
				return virtual{e.Name(), vf, vf.SpoofCheck && (vf.Untrusted || path.Base(driver) == "mlx5_core")}, true
			}
		}
	}
	return f, false
}

func (v view) vfTrust(ctx context.Context) []report.Finding {
	var out []report.Finding
	for _, p := range v.roce() {
		vf, is := v.virtual(ctx, p)
		if !is || p.State != nldev.Active {
			continue
		}
		_, err := v.chosen(ctx, conf.Parent{Name: conf.LinkName(p.NIC.Name)})
		refuses := cnierr.CodeOf(err) == cnierr.BadParent
		found := fmt.Sprintf("VF %d of %s, trusted %t, spoof check %t; ADD refuses it: %t", vf.settings.Number, vf.pf, !vf.settings.Untrusted, vf.settings.SpoofCheck, refuses)
		if refuses != vf.blocked {
			out = append(out, problem(p.String(), found, aKnownFault))
		} else {
			out = append(out, ok(p.String(), "%s", found))
		}
	}
	return out
}

func (v view) layers(ctx context.Context) []report.Finding {
	var out []report.Finding
	for _, l := range v.links {
		if l.Kind != "vlan" && l.Kind != "bond" {
			continue
		}
		chosen, err := v.chosen(ctx, conf.Parent{Name: conf.LinkName(l.Name)})
		if err != nil {
			continue // it is down, or a slave itself
		}
		below := v.below(chosen)
		if len(below) != 1 {
			continue // no RoCE, or not RoCE LAG: discovery says it
		}
		found, err := v.facts(ctx, conf.RDMAAuto, chosen)
		switch {
		case err == nil && found.Device.Name == below[0].Device.Name && found.Device.Port == below[0].Number:
			out = append(out, ok(l.Name, "the %s uses %s", l.Kind, below[0]))
		case below[0].State == nldev.Active:
			out = append(out, problem(l.Name, fmt.Sprintf("ADD finds %s/%d (%v), not %s", found.Device.Name, found.Device.Port, err, below[0]), aKnownFault))
		}
	}
	return out
}

// below returns the RoCE ports of the links below a link.
func (v view) below(l plan.Link) []nic.Port {
	return slices.DeleteFunc(v.roce(), func(p nic.Port) bool {
		return !slices.ContainsFunc(l.Layers, func(layer []int32) bool { return slices.Contains(layer, p.Own.Index) })
	})
}
