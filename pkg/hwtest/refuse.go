// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// The steps of this file have no answer where there is nothing to ask.

// modes asks whether ADD refuses a mode that the node does not have.
func modes() Step {
	return Step{
		Name: "mode", Asks: "does ADD refuse rdma.mode if it contradicts the node?", Expect: "error 104 for the other mode",
		look: func(ctx context.Context, v view) []report.Finding {
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
		},
	}
}

// refusals asks whether ADD refuses ports that cannot carry RoCE.
func refusals() Step {
	return Step{
		Name: "refusal", Asks: "does ADD refuse ports that cannot carry RoCE, before it leases an address?", Expect: "error 103 for a port without RoCE or without a GID table",
		look: func(ctx context.Context, v view) []report.Finding {
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
		},
	}
}

// kinds asks whether selectors tell the functions of a NIC apart.
func kinds() Step {
	return Step{
		Name: "function", Asks: "do selectors tell physical, virtual and scalable functions apart?", Expect: "function selects an interface if and only if it is of that kind",
		look: func(ctx context.Context, v view) []report.Finding {
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
		},
	}
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

// vfTrust asks whether ADD refuses just the VFs that cannot send frames of children.
func vfTrust() Step {
	return Step{
		Name: "vf-trust", Asks: "may virtual functions send the frames of macvlan children?",
		Expect: "ADD refuses a VF with the spoof check on that is not trusted, or that is of mlx5, and no other VF",
		look: func(ctx context.Context, v view) []report.Finding {
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
		},
	}
}

// layers asks whether ADD finds the port below the VLANs and bonds of the host.
func layers() Step {
	return Step{
		Name: "layers", Asks: "does ADD find the RDMA port below the VLANs and bonds of the host?", Expect: "the port of a VLAN or bond is that of the NIC below it",
		look: func(ctx context.Context, v view) []report.Finding {
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
		},
	}
}

// below returns the RoCE ports of the links below a link.
func (v view) below(l plan.Link) []nic.Port {
	return slices.DeleteFunc(v.roce(), func(p nic.Port) bool {
		return !slices.ContainsFunc(l.Layers, func(layer []int32) bool { return slices.Contains(layer, p.Own.Index) })
	})
}
