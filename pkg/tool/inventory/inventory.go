// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package inventory lists the RDMA ports of a node with everything that an operator
// needs to choose rails: NIC, place on the PCIe bus, state, driver, firmware, nearest
// GPUs and room in the GID table.
//
// It reads only what it is given: a view of the node. A value that cannot be read is
// left out, and never guessed. It does not know pods; rocectl adds them. Read this
// file first. pcie.go measures distances on the bus, live.go reads the running node.
package inventory

import (
	"cmp"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// Port is a port of an RDMA device, and the NIC behind it.
type Port struct {
	// Rail is the number that the NIC has in a network with a match that fits all RoCE NICs
	// of the node with an interface, in the order "pci"; nil for all other ports.
	Rail   *int          `json:"rail"`
	Netdev conf.LinkName `json:"netdev,omitempty"` // "" if it is in another namespace
	PCI    string        `json:"pci,omitempty"`    // address of the PCI function
	NUMA   *int          `json:"numa,omitempty"`   // nil if the kernel does not know it

	Device    string `json:"device"`
	Number    uint32 `json:"port"`      // of the device, from 1
	LinkLayer string `json:"linkLayer"` // as sysfs says: "Ethernet", "InfiniBand"; "" if unknown
	State     string `json:"state"`     // as rdma link prints it; Away if a pod has the device
	Speed     int    `json:"speed,omitempty"`
	MTU       int    `json:"mtu,omitempty"`
	// Bond is the bond that the interface is a port of.
	Bond      string         `json:"bond,omitempty"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`

	VendorID string `json:"vendor,omitempty"`   // four hex digits, as rails.match.vendors takes them
	DeviceID string `json:"deviceID,omitempty"` // as rails.match.deviceIDs takes them
	Driver
	GPUs []GPU `json:"gpus,omitempty"` // the nearest, all at the same distance
	GIDs GIDs  `json:"gids"`
}

// Driver is what the driver of an interface says of itself.
type Driver struct {
	Name     string `json:"driver,omitempty"`
	Version  string `json:"driverVersion,omitempty"`
	Firmware string `json:"firmware,omitempty"`
}

// GIDs is how full a GID table is. Size is 0 if there is no table.
type GIDs struct {
	Used int `json:"used"`
	Size int `json:"size"`
	// Hidden says that the driver is NVIDIA's own, which hides the entries of pods from
	// the host: Used can be too small.
	Hidden bool `json:"hidden,omitempty"`
}

// Free returns how many entries are unused, or seem so: see Hidden.
func (g GIDs) Free() int { return g.Size - g.Used }

// Away is the state of a port of which a pod has the device.
const Away = "AWAY"

// Rate returns Mb/s as people say it, such as 400G; "" for an unknown speed.
func Rate(mbits int) string {
	if mbits >= 1000 {
		return fmt.Sprintf("%gG", float64(mbits)/1000)
	}
	if mbits > 0 {
		return fmt.Sprintf("%dM", mbits)
	}
	return ""
}

// String returns the port as rdma link calls it.
func (p Port) String() string { return fmt.Sprintf("%s/%d", p.Device, p.Number) }

// RoCE says whether the port can carry the RoCE traffic of pods.
func (p Port) RoCE() bool { return p.LinkLayer == "Ethernet" && p.Netdev != "" }

// Node is a view of a node.
type Node struct {
	Sys       fs.FS // root of sysfs, as the node's network namespace sees it
	Links     []rtnl.Link
	Addresses []rtnl.Address
	RDMA      nldev.System
	// Driver asks the driver of an interface.
	Driver func(netdev string) (Driver, error)
}

// Ports returns all RDMA ports of the node: rails first, by number, then the others by
// name. Virtual functions of NICs that the node has are left out: they are for pods.
func (n Node) Ports() []Port {
	var out []Port
	for _, d := range n.RDMA.Devices {
		for _, p := range d.Ports {
			out = append(out, n.port(d.Name, p))
		}
	}
	out = append(out, n.away()...)
	out = slices.DeleteFunc(out, func(p Port) bool { return p.PCI != "" && n.exists("bus/pci/devices/"+p.PCI+"/physfn") })
	n.number(out)
	slices.SortStableFunc(out, func(a, b Port) int {
		switch {
		case a.Rail != nil && b.Rail != nil:
			return cmp.Compare(*a.Rail, *b.Rail)
		case a.Rail != nil:
			return -1
		case b.Rail != nil:
			return 1
		}
		return cmp.Or(parent.Natural(a.Device, b.Device), cmp.Compare(a.Number, b.Number))
	})
	return out
}

// number gives rails their numbers. Ports of a bond have none: the bond carries the
// traffic. Representors have none: a match does not select them.
func (n Node) number(ports []Port) {
	var links []rtnl.Link
	for _, p := range ports {
		if l, ok := n.link(string(p.Netdev)); ok && p.RoCE() && p.Bond == "" && !parent.Representor(l.PhysPort) {
			links = append(links, l)
		}
	}
	parent.SortByPCI(links, n.Sys)
	for i := range ports {
		at := slices.IndexFunc(links, func(l rtnl.Link) bool { return l.Name == string(ports[i].Netdev) })
		if at >= 0 {
			ports[i].Rail = &at
		}
	}
}

func (n Node) port(device string, p nldev.Port) Port {
	dir := fmt.Sprintf("class/infiniband/%s/ports/%d", device, p.Number)
	out := Port{Device: device, Number: p.Number, State: p.State.String(), LinkLayer: n.text(dir + "/link_layer")}
	if l, ok := n.linkOf(device, p); ok {
		n.interfaceOf(&out, l)
	}
	out.PCI = discover.Function(n.Sys, device, out.Netdev)
	n.hardware(&out)
	entries, size, err := gidtable.New(n.Sys, device, p.Number).Entries()
	if err == nil {
		_, err := fs.Stat(n.Sys, "module/mlx_compat")
		out.GIDs = GIDs{len(entries), size, err == nil}
	}
	return out
}

// linkOf returns the interface of a port. The kernel names none for InfiniBand: there it
// is the one on the same hardware.
func (n Node) linkOf(device string, p nldev.Port) (rtnl.Link, bool) {
	if p.NetdevIndex != 0 {
		i := slices.IndexFunc(n.Links, func(l rtnl.Link) bool { return l.Index == p.NetdevIndex })
		if i < 0 {
			return rtnl.Link{}, false
		}
		return n.Links[i], true
	}
	return n.beside("class/infiniband/" + device + "/device/net")
}

// beside returns the interface in a folder of sysfs, if it has exactly one.
func (n Node) beside(dir string) (rtnl.Link, bool) {
	entries, err := fs.ReadDir(n.Sys, dir)
	if err != nil || len(entries) != 1 {
		return rtnl.Link{}, false
	}
	return n.link(entries[0].Name())
}

func (n Node) link(name string) (rtnl.Link, bool) {
	i := slices.IndexFunc(n.Links, func(l rtnl.Link) bool { return l.Name == name })
	if i < 0 {
		return rtnl.Link{}, false
	}
	return n.Links[i], true
}

// interfaceOf adds what the interface tells.
func (n Node) interfaceOf(p *Port, l rtnl.Link) {
	p.Netdev, p.MTU = conf.LinkName(l.Name), l.MTU
	if l.SlaveKind == "bond" {
		p.Bond = fmt.Sprint(l.Master)
		if i := slices.IndexFunc(n.Links, func(o rtnl.Link) bool { return o.Index == l.Master }); i >= 0 {
			p.Bond = n.Links[i].Name
		}
	}
	if mbits, err := strconv.Atoi(n.text("class/net/" + l.Name + "/speed")); err == nil && mbits > 0 {
		p.Speed = mbits
	}
	for _, a := range n.Addresses {
		if a.Index == l.Index && !a.Prefix.Addr().IsLinkLocalUnicast() {
			p.Addresses = append(p.Addresses, a.Prefix)
		}
	}
	if n.Driver != nil {
		if d, err := n.Driver(l.Name); err == nil {
			p.Driver = d
		}
	}
}

// hardware adds what the PCI bus tells.
func (n Node) hardware(p *Port) {
	if p.PCI == "" {
		return
	}
	dir := "bus/pci/devices/" + p.PCI + "/"
	p.VendorID = strings.TrimPrefix(n.text(dir+"vendor"), "0x")
	p.DeviceID = strings.TrimPrefix(n.text(dir+"device"), "0x")
	if node, err := strconv.Atoi(n.text(dir + "numa_node")); err == nil && node >= 0 {
		p.NUMA = &node
	}
	p.GPUs = n.nearest(p.PCI)
}

// away returns the devices that have files for programs, but are not in the namespace:
// pods have them.
func (n Node) away() []Port {
	var out []Port
	for _, f := range discover.Files(n.Sys) {
		name := f.Device
		if name == "" || slices.ContainsFunc(n.RDMA.Devices, func(d nldev.Device) bool { return d.Name == name }) {
			continue
		}
		p := Port{Device: name, Number: 1, State: Away}
		if l, ok := n.beside(f.Dir + "/device/net"); ok {
			p.LinkLayer = map[string]string{"ether": "Ethernet", "infiniband": "InfiniBand"}[l.Encap()]
			n.interfaceOf(&p, l)
			p.PCI = discover.Function(n.Sys, "", p.Netdev)
		}
		n.hardware(&p)
		out = append(out, p)
	}
	return out
}

func (n Node) text(name string) string {
	b, err := fs.ReadFile(n.Sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (n Node) exists(name string) bool {
	_, err := fs.Stat(n.Sys, name)
	return err == nil
}

// Others returns the names of the Ethernet NICs that have vendor and type of one of the
// ports, but are none of them. Representors are not among them: a match by vendor and type
// does not select them.
func (n Node) Others(ports []Port) []string {
	var out []string
	for _, l := range n.Links {
		if l.Encap() != "ether" || slices.ContainsFunc(ports, func(p Port) bool { return string(p.Netdev) == l.Name }) {
			continue
		}
		pci := discover.Function(n.Sys, "", conf.LinkName(l.Name))
		if pci == "" || l.Kind != "" || parent.Representor(l.PhysPort) {
			continue
		}
		o := Port{PCI: pci}
		n.hardware(&o)
		if slices.ContainsFunc(ports, func(p Port) bool { return p.VendorID == o.VendorID && p.DeviceID == o.DeviceID }) {
			out = append(out, l.Name)
		}
	}
	slices.SortFunc(out, parent.Natural)
	return out
}
