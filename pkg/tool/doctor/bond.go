// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
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
			bonded := false
			out := n.eachPort(ctx, func(p nic.Port) report.Finding {
				switch {
				case p.Own == nil:
					return ok("its interface is in another namespace")
				case !p.Bonded() && p.Own.Kind == "bond":
					return ok("it is the device of the bond %s", p.Own.Name)
				case !p.Bonded():
					return ok("%s is in no bond", p.Own.Name)
				case p.Carries:
					return ok("it is the device of the bond %s, and names the slave %s", p.NIC.Name, p.Own.Name)
				}
				bonded = true
				return problem("it belongs to "+p.Own.Name+", a slave of "+p.NIC.Name+", not to the bond",
					shell.Command("devlink dev eswitch show %s", "pci/"+n.pci(p.Device.Name))+"  # RoCE LAG needs two ports of one NIC, no SR-IOV, legacy mode, and bond mode 802.3ad, active-backup or balance-xor")
			})
			if !bonded && len(out) > 0 && out[0].Verdict == report.OK {
				return []report.Finding{ok("no slave of a bond has an RDMA device of its own")}
			}
			return out
		},
	}
}
