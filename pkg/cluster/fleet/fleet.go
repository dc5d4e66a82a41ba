// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package fleet has what the nodes of a cluster report about their rails, and says
// where a rail of a node differs from the same rail of most nodes.
//
// It does no I/O. It trusts no report: each node writes its own, and a report changes
// what is said of other nodes only as one voice of many. Read this file first, which
// has the report; compare.go finds the differences, switches.go those of the cables.
package fleet

import "slices"

// MaxRails is the most rails of a report.
const MaxRails = 32

// MaxGPUs is the most GPUs of a rail.
const MaxGPUs = 16

// Report is what a node says of its rails. It has nothing of pods, and no addresses:
// others may read it. It changes only when the NICs or their cables do.
type Report struct {
	Rails []Rail `json:"rails"`
}

// Rail is a RoCE NIC of a node, with the number that package nic gives it. Empty
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
	GIDWidth   int      `json:"gidWidth,omitempty"` // how many entries of it an address takes
	QoS        string   `json:"qos,omitempty"`      // PFC, DSCP and ECN, in words
	Switch     string   `json:"switch,omitempty"`
	SwitchPort string   `json:"switchPort,omitempty"`
}

// Connection is the switch of a NIC and the port of that switch.
type Connection struct{ Switch, Port string }

// Equal says whether two reports say the same.
func (r Report) Equal(other Report) bool {
	return slices.EqualFunc(r.Rails, other.Rails, func(a, b Rail) bool {
		gpus := slices.Equal(a.GPUs, b.GPUs)
		a.GPUs, b.GPUs = nil, nil
		return gpus && a.fields() == b.fields()
	})
}

// fields has everything of a rail but its GPUs, in a form that can be compared.
func (r Rail) fields() [18]any {
	return [18]any{
		r.Rail, r.Netdev, r.PCI, r.Device, r.Port, r.State, r.Speed, r.MTU, r.Vendor, r.DeviceID, r.Driver, r.Firmware, r.Distance, r.GIDs, r.GIDWidth, r.QoS, r.Switch, r.SwitchPort,
	}
}
