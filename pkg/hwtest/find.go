// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

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

// discovery asks whether the plugin finds the port of each NIC, and the NIC of each
// device.
func discovery() Step {
	return Step{
		Name: "discovery", Asks: "does the plugin find the RDMA port of each NIC by each of its names, its PCI function, and its device?",
		Expect: "the port that names an interface is the one that ADD uses for a pod on that interface, or on its bond",
		look: func(ctx context.Context, v view) []report.Finding {
			var out []report.Finding
			for _, p := range v.roce() {
				if !p.Carries {
					out = append(out, cannotTell(p.String(), fmt.Sprintf("%s is a slave of %s, with others that have devices: ADD refuses the bond", p.Own.Name, p.NIC.Name), "RoCE LAG: one device for the bond"))
					continue
				}
				out = append(out, v.finds(ctx, p))
			}
			return out
		},
	}
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
	s := rdma.New(rdma.Config{Sys: v.Sys, Log: slog.New(slog.DiscardHandler), Dial: v.dialRDMA})
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

// hostGIDs asks whether the addresses of each interface have entries.
func hostGIDs() Step {
	return Step{
		Name: "host-gids", Asks: "does each address of the host have an entry of RoCE v2, and how large is the table?",
		Expect: "each address of an interface has one RoCE v2 entry; with RoCE v1, that entry is the one after the v1 entry of the address",
		look: func(_ context.Context, v view) []report.Finding {
			var out []report.Finding
			for _, p := range v.roce() {
				out = append(out, v.entries(p)...)
			}
			return out
		},
	}
}

func (v view) entries(p nic.Port) []report.Finding {
	entries, size, err := gidtable.New(v.Sys, p.Device.Name, p.Number).Entries()
	if err != nil {
		return []report.Finding{cannotTell(p.String(), err.Error(), "a GID table")}
	}
	found := gidtable.Fill(entries, size)
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
