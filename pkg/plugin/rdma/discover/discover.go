// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package discover finds the port of an RDMA device that carries the RoCE traffic of a
// network interface.
//
// It never guesses: no port, or several ports, is an error that names the candidates.
// It opens nothing: it works on values and a file system. Package rdma uses it and
// asks the kernel. Everything is in this file.
package discover

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

const finding = "find RDMA device of"

// LoadDriver is the hint for a node without RDMA devices.
const LoadDriver = `load the NIC's RDMA driver (rdma link shows its devices), or set "rdma": {"mode": "off"} if the pods need no RDMA`

// Match is a port, its device, and the link that led to it.
type Match struct {
	Device nldev.Device
	nldev.Port
	Link conf.LinkName
}

// String returns the port as rdma link takes it.
func (m Match) String() string { return fmt.Sprintf("%s/%d", m.Device.Name, m.Number) }

// Port returns the port that carries the RoCE traffic of a parent: the one with a network
// interface in the first of the parent's layers that has any. So the device of a bond comes
// before the devices of its slaves, and the device of a driver that bonds its ports itself,
// which names one slave, is that of the bond. If no port names an interface of the parent,
// as with some drivers and kernels, related returns the ports of the same hardware.
//
// Errors: NoRDMA when there is no port (with nldev.ErrNoDevice), and when there are
// several. The port of a parent without RoCE may be Other.
func Port(devices []nldev.Device, parent plan.Link, related func() []Match) (Match, error) {
	found := inLayers(slices.DeleteFunc(slices.Clone(devices), Other), parent.Layers)
	if len(found) == 0 {
		found = inLayers(devices, parent.Layers)
	}
	if len(found) == 0 {
		found = related()
	}
	switch {
	case len(found) == 0:
		return Match{}, cnierr.New(cnierr.NoRDMA, finding, string(parent.Name), LoadDriver,
			"%w belongs to it; there are: %s", nldev.ErrNoDevice, cmp.Or(cnierr.Some(texts(Ports(devices))), "none"))
	case len(found) > 1:
		return Match{}, cnierr.New(cnierr.NoRDMA, finding, string(parent.Name),
			"use a NIC as master that has one RDMA device; a bond has one when the driver bonds the RDMA ports too (RoCE LAG)",
			"want exactly one, got %d: %s", len(found), strings.Join(texts(found), ", "))
	}
	return found[0], nil
}

// ToRoCE returns the hint for a port that speaks another protocol than RoCE: what the vendor of
// the NIC offers. sys is sysfs as the namespace of the device sees it.
func ToRoCE(m Match, sys fs.FS) string {
	pci := Function(sys, m.Device.Name, m.Link)
	vendor := Text(sys, "bus/pci/devices/"+pci+"/vendor")
	switch {
	case m.Device.Protocol == "ib" && vendor == "0x15b3":
		return shell.Command("switch the port to Ethernet: mlxconfig -d %s set LINK_TYPE_P%d=2, then mlxfwreset -d %s reset; or use another plugin for it", pci, m.Number, pci)
	case m.Device.Protocol == "iw" && vendor == "0x8086": // the driver ice refuses both at a time
		return shell.Command("E810: devlink dev param set pci/%s name enable_iwarp value false cmode runtime, then the same with enable_roce and true; "+
			"with Intel's own driver, the parameter roce_ena=1 of the module irdma; X722 speaks no RoCE", pci)
	case m.Device.Protocol == "iw" && vendor == "0x1ded":
		return "eRDMA speaks RoCE only with a Linux and an instance type that offer it (6.14 or later); otherwise give pods the whole NIC, with the plugin of the cloud"
	}
	return `use a NIC of the rail network that speaks RoCE as master (rdma link), or set "rdma": {"mode": "off"}: this one cannot be switched to RoCE`
}

// Other says whether a device is known to speak another protocol than RoCE.
func Other(d nldev.Device) bool { return d.Protocol != "" && d.Protocol != "roce" }

// inLayers returns the ports of the first layer that has any.
func inLayers(devices []nldev.Device, layers [][]int32) []Match {
	for _, layer := range layers {
		out := slices.DeleteFunc(Ports(devices), func(m Match) bool { return !slices.Contains(layer, m.NetdevIndex) })
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

// Related returns the ports of the devices that belong to the hardware of a link, or
// of the links below it. sysfs has these devices in the folder of the PCI or
// auxiliary device. links is sysfs as the link's namespace sees it. all is sysfs as
// the namespace of the devices sees it.
func Related(devices []nldev.Device, name conf.LinkName, links, all fs.FS) []Match {
	const maxDepth = 8 // MAX_NEST_DEV of the kernel
	layer := []string{string(name)}
	for range maxDepth {
		var out []Match
		var next []string
		for _, l := range layer {
			bus, device := hardware(links, "class/net/"+l)
			for _, d := range onHardware(all, bus, device) {
				out = append(out, onlyPort(devices, d, l, links)...)
			}
			next = append(next, lowers(l, links)...)
		}
		if len(out) > 0 { // two links may belong to the hardware of one port
			slices.SortStableFunc(out, func(a, b Match) int { return strings.Compare(a.String(), b.String()) })
			return slices.CompactFunc(out, func(a, b Match) bool { return a.String() == b.String() })
		}
		layer = next
	}
	return nil
}

// On returns the devices on the hardware with this name on the PCI or the auxiliary
// bus. The name has the form of deviceID.
func On(devices []nldev.Device, hardware string, sys fs.FS) []nldev.Device {
	on := slices.Concat(onHardware(sys, "pci", hardware), onHardware(sys, "auxiliary", hardware))
	return slices.DeleteFunc(slices.Clone(devices), func(d nldev.Device) bool { return !slices.Contains(on, d.Name) })
}

// onHardware returns the names of the RDMA devices of a device of a bus: none if it has
// none, or none in this namespace.
func onHardware(sys fs.FS, bus, name string) (devices []string) {
	entries, _ := fs.ReadDir(sys, path.Join("bus", bus, "devices", name, "infiniband"))
	for _, e := range entries {
		devices = append(devices, e.Name())
	}
	return devices
}

// Ports returns all ports of devices.
func Ports(devices []nldev.Device) []Match {
	var out []Match
	for _, d := range devices {
		for _, p := range d.Ports {
			out = append(out, Match{d, p, conf.LinkName(p.Netdev)})
		}
	}
	return out
}

// onlyPort returns the port of a device that belongs to a link. If there are several,
// it is the one with the link's number on the hardware (dev_port), as with mlx4.
func onlyPort(devices []nldev.Device, name, link string, links fs.FS) []Match {
	for _, d := range devices {
		if d.Name != name || len(d.Ports) == 0 {
			continue
		}
		p := 0
		if len(d.Ports) > 1 {
			n, err := strconv.Atoi(Text(links, "class/net/"+link+"/dev_port"))
			if err != nil || n >= len(d.Ports) {
				return nil
			}
			p = n
		}
		return []Match{{d, d.Ports[p], conf.LinkName(link)}}
	}
	return nil
}

// lowers returns the links directly below a link (netdev_adjacent_sysfs_add).
func lowers(link string, links fs.FS) []string {
	entries, _ := fs.ReadDir(links, "class/net/"+link) // none if it cannot be read
	var out []string
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), "lower_"); ok {
			out = append(out, name)
		}
	}
	return out
}

// Text returns the text of a file of sysfs or procfs, "" if it cannot be read.
func Text(sys fs.FS, name string) string {
	b, err := fs.ReadFile(sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func texts(ms []Match) []string {
	var out []string
	for _, m := range ms {
		s := m.String()
		if m.Link != "" {
			s += " on " + string(m.Link)
		}
		out = append(out, s)
	}
	return out
}

// Hardware returns the bus of a device's hardware and its name there:
// "pci", "0000:0b:00.0"; "" and "" if it has none.
func Hardware(sys fs.FS, device string) (bus, name string) {
	return hardware(sys, "class/infiniband/"+device)
}

// hardware is Hardware of a folder of sysfs.
func hardware(sys fs.FS, folder string) (bus, name string) {
	id, err := fs.ReadLink(sys, folder+"/device")
	if err != nil {
		return "", ""
	}
	subsystem, err := fs.ReadLink(sys, folder+"/device/subsystem")
	if err != nil {
		return "", ""
	}
	return path.Base(subsystem), path.Base(id)
}

// File is a file that programs open to use a device.
type File struct {
	Name   string // in /dev/infiniband, such as "uverbs1"
	Device string // its RDMA device; several devices of the node can have one name
	Dir    string // its folder in sysfs
}

// Files returns the files for programs of all RDMA devices of the node. Every namespace
// sees them, also those of devices that pods have.
func Files(sys fs.FS) []File {
	names, err := fs.Glob(sys, "class/infiniband_verbs/*/ibdev")
	if err != nil {
		return nil // the pattern is right: there are none
	}
	out := make([]File, 0, len(names))
	for _, name := range names {
		dir := path.Dir(name)
		out = append(out, File{Name: path.Base(dir), Device: Text(sys, name), Dir: dir})
	}
	return out
}

// Function returns the address of the PCI function of a device, or else that of the
// link that the device belongs to. It returns "" if neither has one. The address is
// in the paths of sysfs: "../../devices/pci0000:00/0000:00:03.0/virtio2/net/ens1".
func Function(sys fs.FS, device string, link conf.LinkName) string {
	for _, name := range []string{"class/infiniband/" + device, "class/net/" + string(link)} {
		at, _ := fs.ReadLink(sys, name) // "" if it has no link, or the link is in another namespace
		for _, folder := range slices.Backward(strings.Split(at, "/")) {
			if isFunction(folder) {
				return folder
			}
		}
	}
	return ""
}

// isFunction says whether a name is a PCI address: 0000:0b:00.2. The name of a host
// bridge, pci0000:00, is none.
func isFunction(name string) bool {
	var domain, bus, device, function uint32
	_, err := fmt.Sscanf(name, "%x:%x:%x.%x", &domain, &bus, &device, &function)
	return err == nil
}
