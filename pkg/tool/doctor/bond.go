// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// rdmaBond asks whether the RDMA port of a bonded NIC belongs to the bond. With RoCE
// LAG the driver makes one device for the bond; without it each slave keeps its own.
func rdmaBond() Check {
	return Check{
		Name: "rdma-bond",
		Asks: "has each bond of RoCE NICs an RDMA device of its own?",
		Why:  "the GIDs of addresses on the bond and its children then belong to one slave, and connections do not survive when that one fails",
		look: func(ctx context.Context, n Node) []report.Finding {
			links, err := n.Links()
			if err != nil {
				return []report.Finding{noLinks(err)}
			}
			bonded := false
			out := n.eachPort(ctx, func(p port) report.Finding {
				link, bond := bondOf(links, int(p.NetdevIndex))
				switch {
				case link == nil:
					return ok("its interface is in another namespace")
				case bond == nil && link.Type() == "bond":
					return ok("it is the device of the bond %s", link.Attrs().Name)
				case bond == nil:
					return ok("%s is in no bond", link.Attrs().Name)
				}
				bonded = true
				return problem("it belongs to "+link.Attrs().Name+", a slave of "+bond.Attrs().Name+", not to the bond",
					shell.Command("devlink dev eswitch show %s", "pci/"+n.pci(p.device.Name))+"  # RoCE LAG needs two ports of one NIC, no SR-IOV, legacy mode, and bond mode 802.3ad, active-backup or balance-xor")
			})
			if !bonded && len(out) > 0 && out[0].Verdict == report.OK {
				return []report.Finding{ok("no RDMA device belongs to a slave of a bond")}
			}
			return out
		},
	}
}

// bondOf returns the link of an index, and the bond that it is a slave of; nil for
// what there is not.
func bondOf(links []netlink.Link, index int) (link, bond netlink.Link) {
	at := func(index int) netlink.Link {
		i := slices.IndexFunc(links, func(l netlink.Link) bool { return index != 0 && l.Attrs().Index == index })
		if i < 0 {
			return nil
		}
		return links[i]
	}
	if link = at(index); link == nil {
		return nil, nil
	}
	if bond = at(link.Attrs().MasterIndex); bond != nil && bond.Type() != "bond" {
		bond = nil
	}
	return link, bond
}
