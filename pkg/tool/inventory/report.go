// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package inventory

import (
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
)

// Report returns the report of a node about ports, of which only rails count. A device that a pod has
// is reported as in the report before, because it does not tell its state.
func Report(ports []Port, connections map[string]fleet.Connection, before fleet.Report) fleet.Report {
	out := fleet.Report{Rails: []fleet.Rail{}}
	for _, p := range ports {
		if p.Rail == nil || *p.Rail >= fleet.MaxRails {
			continue
		}
		r := railOf(p, connections[string(p.Netdev)])
		if i := slices.IndexFunc(before.Rails, func(b fleet.Rail) bool { return b.Rail == r.Rail && b.PCI == r.PCI }); i >= 0 && p.State == Away {
			r = before.Rails[i]
		}
		out.Rails = append(out.Rails, r)
	}
	return out
}

func railOf(p Port, c fleet.Connection) fleet.Rail {
	r := fleet.Rail{
		Rail: *p.Rail, Netdev: clean(string(p.Netdev), 15), PCI: clean(p.PCI, 32), Device: clean(p.Device, 63), Port: int(p.Number),
		State: clean(p.State, 16), Speed: p.Speed, MTU: p.MTU, Vendor: clean(p.VendorID, 4), DeviceID: clean(p.DeviceID, 4),
		Driver: clean(strings.TrimSpace(p.Name+" "+p.Version), 64), Firmware: clean(p.Firmware, 32), GIDs: p.GIDs.Size,
		Switch: clean(c.Switch, 64), SwitchPort: clean(c.Port, 64),
	}
	for _, g := range p.GPUs[:min(len(p.GPUs), fleet.MaxGPUs)] {
		r.GPUs, r.Distance = append(r.GPUs, clean(g.Name, 16)), clean(string(g.Distance), 8)
	}
	return r
}

// clean returns at most so many characters of ASCII. The CustomResourceDefinition has the
// same limits.
func clean(s string, limit int) string {
	var out []byte
	for _, r := range s {
		if len(out) == limit {
			break
		}
		if r < ' ' || r > '~' {
			r = '?'
		}
		out = append(out, byte(r))
	}
	return string(out)
}
