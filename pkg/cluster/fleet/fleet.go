// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package fleet has what the nodes of a cluster report about their rails, and says
// where a rail of a node differs from the same rail of most nodes.
//
// It does no I/O. It trusts no report: each node writes its own, and a report changes
// what is said of other nodes only as one voice of many. Read this file first, which
// has the report; compare.go finds the differences, switches.go those of the cables.
package fleet

import (
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/inventory"
)

// MaxRails is the most rails of a report.
const MaxRails = 32

// MaxGPUs is the most GPUs of a rail.
const MaxGPUs = 16

// Report is what a node says of its rails. It has nothing of pods, and no addresses:
// others may read it. It changes only when the NICs or their cables do.
type Report struct {
	Rails []Rail `json:"rails"`
}

// Rail is a RoCE NIC of a node, with the number that it has in inventory.Port. Empty
// fields are not known. All texts are short, and have only printable characters of ASCII.
type Rail struct {
	Rail       int      `json:"rail"`
	Netdev     string   `json:"netdev,omitempty"`
	PCI        string   `json:"pci,omitempty"`
	Device     string   `json:"device,omitempty"`
	Port       int      `json:"port,omitempty"`
	State      string   `json:"state,omitempty"`
	Speed      int      `json:"speed,omitempty"` // in Mb/s
	MTU        int      `json:"mtu,omitempty"`
	Vendor     string   `json:"vendor,omitempty"`
	DeviceID   string   `json:"deviceID,omitempty"`
	Driver     string   `json:"driver,omitempty"` // with its version
	Firmware   string   `json:"firmware,omitempty"`
	GPUs       []string `json:"gpus,omitempty"`     // the nearest
	Distance   string   `json:"distance,omitempty"` // of these
	GIDs       int      `json:"gids,omitempty"`     // size of the GID table
	Switch     string   `json:"switch,omitempty"`
	SwitchPort string   `json:"switchPort,omitempty"`
}

// Connection is the switch of a NIC and the port of that switch.
type Connection struct{ Switch, Port string }

// Of returns the report about ports, of which only rails count. A device that a pod has
// is reported as in the report before, because it does not tell its state.
func Of(ports []inventory.Port, connections map[string]Connection, before Report) Report {
	out := Report{Rails: []Rail{}}
	for _, p := range ports {
		if p.Rail == nil || *p.Rail >= MaxRails {
			continue
		}
		r := railOf(p, connections[string(p.Netdev)])
		if i := slices.IndexFunc(before.Rails, func(b Rail) bool { return b.Rail == r.Rail && b.PCI == r.PCI }); i >= 0 && p.State == inventory.Away {
			r = before.Rails[i]
		}
		out.Rails = append(out.Rails, r)
	}
	return out
}

func railOf(p inventory.Port, c Connection) Rail {
	r := Rail{
		Rail: *p.Rail, Netdev: clean(string(p.Netdev), 15), PCI: clean(p.PCI, 32), Device: clean(p.Device, 63), Port: int(p.Number),
		State: clean(p.State, 16), Speed: p.Speed, MTU: p.MTU, Vendor: clean(p.VendorID, 4), DeviceID: clean(p.DeviceID, 4),
		Driver: clean(strings.TrimSpace(p.Name+" "+p.Version), 64), Firmware: clean(p.Firmware, 32), GIDs: p.GIDs.Size,
		Switch: clean(c.Switch, 64), SwitchPort: clean(c.Port, 64),
	}
	for _, g := range p.GPUs[:min(len(p.GPUs), MaxGPUs)] {
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

// Equal says whether two reports say the same.
func (r Report) Equal(other Report) bool {
	return slices.EqualFunc(r.Rails, other.Rails, func(a, b Rail) bool {
		gpus := slices.Equal(a.GPUs, b.GPUs)
		a.GPUs, b.GPUs = nil, nil
		return gpus && a.fields() == b.fields()
	})
}

// fields has everything of a rail but its GPUs, in a form that can be compared.
func (r Rail) fields() [16]any {
	return [16]any{
		r.Rail, r.Netdev, r.PCI, r.Device, r.Port, r.State, r.Speed, r.MTU, r.Vendor, r.DeviceID, r.Driver, r.Firmware, r.Distance, r.GIDs, r.Switch, r.SwitchPort,
	}
}
