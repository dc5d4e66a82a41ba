// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"encoding/json"
	"path"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
)

// DeviceInfo writes the file in which Multus looks for the attachment's device. Multus
// shows it in the pod's network status (Device Information Specification 1.1.0 of the
// Network Plumbing Working Group). Do leaves an existing file alone: it is from the
// device plugin, and Multus copied it. Undo removes the file only if it has the content
// that Do writes.
type DeviceInfo struct {
	File   string `json:"file"`
	PCI    string `json:"pci"`    // of the function that the device is, or that it belongs to
	Device string `json:"device"` // of RDMA
}

// commands implements Kind.
func (d DeviceInfo) commands(namespaces) []string {
	return []string{"mkdir -p " + shell.Quote(path.Dir(d.File)) + "; echo " + shell.Quote(d.Text()) + " > " + shell.Quote(d.File)}
}

// Text returns what the file holds.
func (d DeviceInfo) Text() string {
	type pci struct {
		Address string `json:"pci-address"`
		Device  string `json:"rdma-device"`
	}
	b, err := json.Marshal(struct {
		Type    string `json:"type"`
		Version string `json:"version"`
		PCI     pci    `json:"pci"`
	}{"pci", "1.1.0", pci{d.PCI, d.Device}})
	if err != nil {
		panic("plan: device information has only texts: " + err.Error())
	}
	return string(b)
}

// deviceInfo returns the operation if the runtime names a file and the device
// is on the PCI bus. The file has one device, and Multus shows it for each
// interface of the attachment. With several interfaces it would be wrong for
// all but one, so there is no operation.
func (m maker) deviceInfo() Ops {
	r := m.facts.RDMA
	if m.req.DeviceInfoFile == "" || m.rail.Number > 0 || len(m.behind) > 0 || r == nil || r.Function == "" {
		return nil
	}
	return OnHost(DeviceInfo{File: m.req.DeviceInfoFile, PCI: r.Function, Device: r.Device.Name})
}
