// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// vfTrust asks whether the VFs that the node itself uses let the frames of macvlan
// children pass. A VF with its interface in a pod needs no trust for that.
func vfTrust() Check {
	return Check{
		Name: "vf-trust",
		Asks: "are VFs of the node trusted and without spoof check, as parents need it?",
		Why:  "a macvlan child has a MAC of its own, and a VF without these settings drops its frames: the gateway does not answer (error 106)",
		look: func(ctx context.Context, n Node) []report.Finding {
			links, err := n.Links(ctx)
			if err != nil {
				return []report.Finding{noLinks(err)}
			}
			var out []report.Finding
			for _, pf := range links {
				if pf.Kind != "" { // no NIC
					continue
				}
				vfs, err := n.VFs(ctx, pf.Name)
				if err != nil {
					out = append(out, cannotTell("its VFs cannot be listed: "+err.Error(), "root in the network namespace of the node").About(pf.Name))
				}
				for _, vf := range vfs {
					if f, here := n.vf(links, pf.Name, vf); here {
						out = append(out, f)
					}
				}
			}
			if len(out) == 0 {
				return []report.Finding{ok("the node uses no VF itself")}
			}
			return out
		},
	}
}

// vf judges a VF. here is false if its interface is not in the node's namespace.
func (n Node) vf(links []rtnl.Link, pf string, vf rtnl.VF) (f report.Finding, here bool) {
	entries, err := fs.ReadDir(n.Root, fmt.Sprintf("sys/class/net/%s/device/virtfn%d/net", pf, vf.Number))
	if isNotExist(err) || err == nil && len(entries) == 0 {
		return f, false
	}
	if err != nil {
		return cannotTell("its interface cannot be looked up: "+err.Error(), "the right to read /sys/class/net").About(fmt.Sprintf("%s vf %d", pf, vf.Number)), true
	}
	name := entries[0].Name()
	if !slices.ContainsFunc(links, func(l rtnl.Link) bool { return l.Name == name }) {
		return f, false
	}
	var wrong, fix []string
	if vf.Untrusted {
		wrong, fix = append(wrong, "not trusted"), append(fix, "trust on")
	}
	if vf.SpoofCheck {
		wrong, fix = append(wrong, "spoof check on"), append(fix, "spoofchk off")
	}
	if len(wrong) > 0 {
		return problem(fmt.Sprintf("VF %d of %s: %s", vf.Number, pf, strings.Join(wrong, ", ")),
			shell.Command("ip link set %s vf %d ", pf, vf.Number)+strings.Join(fix, " ")).About(name), true
	}
	return ok("VF %d of %s: trusted, no spoof check", vf.Number, pf).About(name), true
}
