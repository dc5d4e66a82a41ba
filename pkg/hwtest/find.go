// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/doctor"
	"github.com/roce-cni/roce-cni/pkg/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/rdma"
	"github.com/roce-cni/roce-cni/pkg/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/rdma/nldev"
)

// discovery asks whether the plugin finds the port of each NIC, and the NIC of each
// device.
func discovery() Step {
	return Step{
		Name: "discovery", Asks: "does the plugin find the RDMA port of each NIC by the name of the NIC, and by that of the device?",
		Expect: "the port that names an interface is the one that ADD uses for a pod on that interface",
		look: func(ctx context.Context, v view) []doctor.Finding {
			var out []doctor.Finding
			for _, p := range v.roce() {
				if l, _ := v.link(p.NetdevIndex); l.SlaveKind != "" {
					out = append(out, cannotTell(p.String(), fmt.Sprintf("%s is a port of a %s", p.Netdev, l.SlaveKind), "a pod on the "+l.SlaveKind+" itself: --mutate"))
					continue
				}
				out = append(out, v.finds(ctx, p))
			}
			return out
		},
	}
}

// finds selects the NIC of a port as the plugin does, and its RDMA port.
func (v view) finds(ctx context.Context, p port) doctor.Finding {
	selectors := []conf.Parent{{Name: conf.LinkName(p.Netdev)}}
	if len(p.device.Ports) == 1 { // a device with two ports has two NICs
		selectors = append(selectors, conf.Parent{RDMA: p.device.Name})
	}
	place := parent.Place{Namespace: v.route, Addrs: v.addrs, Sys: v.Sys, Ask: v.rdma}
	for _, master := range selectors {
		req := conf.Request{Rails: []conf.Rail{{Parent: master}}, RDMA: conf.RDMA{Mode: conf.RDMAAuto}}
		links, faults, err := parent.Select(ctx, place, req)
		if err != nil || faults[0] != nil {
			return v.refused(p, anyOf(err, faults))
		}
		if links[0].Name != conf.LinkName(p.Netdev) {
			return problem(p.String(), fmt.Sprintf("the plugin finds %s for the device, not %s", links[0].Name, p.Netdev), aKnownFault)
		}
		s := rdma.New(rdma.Config{Sys: v.Sys, Log: slog.New(slog.DiscardHandler), Dial: v.dialRDMA})
		found, err := s.Facts(ctx, req.RDMA, links[0], false)
		s.Close()
		if err != nil {
			return v.refused(p, err)
		}
		if found.Device.Name != p.device.Name || found.Device.Port != p.Number || found.Device.GUID != p.device.GUID {
			return problem(p.String(), fmt.Sprintf("for a pod on %s the plugin takes %s/%d", p.Netdev, found.Device.Name, found.Device.Port), aKnownFault)
		}
	}
	mode := "shared"
	if v.system.Exclusive {
		mode = "exclusive"
	}
	return ok(p.String(), "ADD on %s takes it; the mode of the node is %s", p.Netdev, mode)
}

// refused is the finding for a NIC that ADD would refuse. That is right if the port is
// not active.
func (v view) refused(p port, err error) doctor.Finding {
	if p.State != nldev.Active {
		return cannotTell(p.String(), "ADD refuses the NIC, as it should: "+err.Error(), "an active port: cable, switch port, ip link set "+p.Netdev+" up")
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
		look: func(_ context.Context, v view) []doctor.Finding {
			var out []doctor.Finding
			for _, p := range v.roce() {
				out = append(out, v.entries(p)...)
			}
			return out
		},
	}
}

func (v view) entries(p port) []doctor.Finding {
	entries, size, err := gidtable.New(v.Sys, p.device.Name, p.Number).Entries()
	if err != nil {
		return []doctor.Finding{cannotTell(p.String(), err.Error(), "a GID table")}
	}
	found := gidtable.Fill(entries, size)
	faults := oddEntries(entries)
	var at []string
	for _, a := range v.addrs {
		const notYet = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
		if a.Index != p.NetdevIndex || a.Prefix.Addr().IsLinkLocalUnicast() || a.Flags&notYet != 0 {
			continue
		}
		have := gidtable.Of(entries, a.Prefix.Addr())
		if len(have) != 1 {
			faults = append(faults, fault{fmt.Sprintf("%d RoCE v2 entries are for %s of %s, want 1: %s", len(have), a.Prefix.Addr(), p.Netdev, found), "dmesg | grep -i gid"})
			continue
		}
		at = append(at, fmt.Sprint(have[0].Index))
	}
	if len(at) == 0 && len(faults) == 0 {
		return []doctor.Finding{cannotTell(p.String(), found+"; "+p.Netdev+" has no address", "an address on the interface, or --mutate")}
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
