// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// nicFirmware asks whether all RoCE NICs of one driver have one version of it, and of
// firmware.
func nicFirmware() Check {
	return Check{
		Name: "nic-firmware",
		Asks: "have RoCE NICs of one driver the same version of driver and firmware?",
		Why:  "rails behave differently, and a collective is as slow as its slowest rail",
		look: func(ctx context.Context, n Node) []report.Finding {
			ports, unknown := n.ports(ctx)
			if unknown != nil {
				return unknown
			}
			byDriver := map[string]map[nic.Driver][]string{}
			var out []report.Finding
			for _, p := range ports {
				if p.Device.Protocol != roce || p.Link == "" {
					continue
				}
				d, err := n.Driver(string(p.Link))
				if err != nil {
					out = append(out, cannotTell("its driver does not answer: "+err.Error(), "a driver with ethtool -i").About(string(p.Link)))
					continue
				}
				if byDriver[d.Name] == nil {
					byDriver[d.Name] = map[nic.Driver][]string{}
				}
				byDriver[d.Name][d] = append(byDriver[d.Name][d], string(p.Link))
			}
			for _, name := range slices.Sorted(maps.Keys(byDriver)) {
				out = append(out, sameVersion(byDriver[name]).About(name))
			}
			if len(out) == 0 {
				return []report.Finding{ok("the node has no RoCE NIC with an interface")}
			}
			return out
		},
	}
}

// versions names both. A driver of a virtual NIC reports no firmware.
func versions(d nic.Driver) string {
	return fmt.Sprintf("version %s, firmware %s", cmp.Or(d.Version, "unknown"), cmp.Or(d.Firmware, "unknown"))
}

// sameVersion judges the NICs of a driver. Most NICs are taken for right.
func sameVersion(nics map[nic.Driver][]string) report.Finding {
	all := slices.SortedFunc(maps.Keys(nics), func(a, b nic.Driver) int {
		if n := len(nics[b]) - len(nics[a]); n != 0 {
			return n
		}
		return slices.Compare(nics[a], nics[b])
	})
	most := all[0]
	if len(all) == 1 {
		return ok("%s", versions(most))
	}
	found := ""
	for _, d := range all {
		found += fmt.Sprintf("; %v: %s", nics[d], versions(d))
	}
	return problem(found[2:], shell.Command("ethtool -i %s", nics[all[1]][0])+"  # then update the firmware as the vendor says (mlxfwmanager), and reboot")
}
