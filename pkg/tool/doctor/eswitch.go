// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"

	"github.com/vishvananda/netlink"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// eswitchMode asks whether the NICs of RoCE ports are in legacy mode. In switchdev mode
// the interface of the NIC is the uplink of a switch: it has no RoCE for macvlans.
func eswitchMode() Check {
	return Check{
		Name: "eswitch-mode",
		Asks: "are the NICs of RDMA devices in legacy mode, and not in switchdev mode?",
		Why:  "in switchdev mode the interface of the NIC has no RoCE for macvlan children: error 103; SR-IOV networks behind roce work",
		look: func(ctx context.Context, n Node) []report.Finding {
			s, err := n.RDMA(ctx)
			if err != nil {
				return unlisted(err)
			}
			devices, err := n.Devlink()
			if err != nil {
				return []report.Finding{cannotTell("devlink does not list the devices: "+err.Error(), "root, and a kernel with devlink")}
			}
			var out []report.Finding
			for _, d := range s.Devices {
				if f, has := n.eswitch(devices, d.Name); has {
					out = append(out, f.About(d.Name))
				}
			}
			if len(out) == 0 {
				return []report.Finding{ok("no RDMA device has an e-switch")}
			}
			return out
		},
	}
}

func (n Node) eswitch(devices []*netlink.DevlinkDevice, device string) (f report.Finding, has bool) {
	pci := n.pci(device)
	for _, d := range devices {
		if d.BusName != "pci" || d.DeviceName != pci || d.Attrs.Eswitch.Mode == "" {
			continue
		}
		if mode := d.Attrs.Eswitch.Mode; mode != "legacy" {
			return problem("its NIC is in "+mode+" mode", shell.Command("devlink dev eswitch set %s mode legacy", "pci/"+pci)+"  # on a node without pods; leave it if OVS needs it"), true
		}
		return ok("legacy"), true
	}
	return f, false
}
