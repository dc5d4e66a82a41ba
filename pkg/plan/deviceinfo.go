// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"encoding/json"
	"path"
	"strings"
	"unicode"
)

// DeviceInfo writes the file in which Multus looks for the attachment's device, to
// tell it in the pod's network status (Device Information Specification 1.1.0 of
// the Network Plumbing Working Group). A file that is there is the device plugin's,
// copied by Multus, and left alone. Undo removes the file if Do writes it so.
type DeviceInfo struct {
	File   string `json:"file"`
	PCI    string `json:"pci"`    // of the function that the device is, or stands on
	Device string `json:"device"` // of RDMA
}

// commands implements Kind.
func (d DeviceInfo) commands(namespaces) []string {
	return []string{"mkdir -p " + quote(path.Dir(d.File)) + "; echo " + quote(d.Text()) + " > " + quote(d.File)}
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

// Word returns a word that a pod or the kernel chose as an operator can paste it into a
// shell as root: quoted, unless it has only letters, digits and _.@-, and with ? for
// what cannot be printed.
func Word(s string) string {
	special := func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_.@-", r)
	}
	if s != "" && s[0] != '-' && !strings.ContainsFunc(s, special) {
		return s
	}
	return quote(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s))
}

// quote returns a word of a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// deviceInfo returns the operation if the runtime names a file and the device
// stands on the PCI bus. The file is for one device, and Multus tells it of each
// interface of the attachment: of several it would be wrong of all but one.
func (m maker) deviceInfo() Ops {
	r := m.facts.RDMA
	if m.req.DeviceInfoFile == "" || m.req.Rail > 0 || len(m.behind) > 0 || r == nil || r.Function == "" {
		return nil
	}
	return OnHost(DeviceInfo{File: m.req.DeviceInfoFile, PCI: r.Function, Device: r.Device.Name})
}
