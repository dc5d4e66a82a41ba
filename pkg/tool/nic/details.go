// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nic

import (
	"cmp"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// Details is a port with what an operator needs to choose rails.
type Details struct {
	// Rail is the number that the NIC has in a network with a match that fits all RoCE NICs
	// of the node with an interface, in the order "pci"; nil for all other ports.
	Rail *int `json:"rail"`
	// Netdev is the master of pods: the bond if the port is its only one (RoCE LAG); "" if
	// the interface is in another namespace.
	Netdev conf.LinkName `json:"netdev,omitempty"`
	PCI    string        `json:"pci,omitempty"`  // address of the PCI function
	NUMA   *int          `json:"numa,omitempty"` // nil if the kernel does not know it

	Device    string `json:"device"`
	Number    uint32 `json:"port"`      // of the device, from 1
	LinkLayer string `json:"linkLayer"` // as sysfs says: "Ethernet", "InfiniBand"; "" if unknown
	State     string `json:"state"`     // as rdma link prints it; Away if a pod has the device
	Speed     int    `json:"speed,omitempty"`
	MTU       int    `json:"mtu,omitempty"`
	// Bond is the bond that Netdev is a slave of, and Slaves are those of Netdev.
	Bond      string         `json:"bond,omitempty"`
	Slaves    []string       `json:"slaves,omitempty"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`

	VendorID string `json:"vendor,omitempty"`   // four hex digits, as rails.match.vendors takes them
	DeviceID string `json:"deviceID,omitempty"` // as rails.match.deviceIDs takes them
	Model    string `json:"model,omitempty"`    // such as "ConnectX-7"; "" if it is not listed
	Driver
	GPUs []GPU `json:"gpus,omitempty"` // the nearest, all at the same distance
	GIDs GIDs  `json:"gids"`
	// QoS is PFC, DSCP and ECN of the interfaces with the cables; "" if one does not tell.
	QoS string `json:"qos,omitempty"`
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
	// Width is how many entries an address takes: 1 if the NIC has RoCE v2 alone, or 2.
	Width int `json:"width,omitempty"`
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
func (d Details) String() string { return fmt.Sprintf("%s/%d", d.Device, d.Number) }

// Ethernet says whether the port has an interface of Ethernet on the node.
func (d Details) Ethernet() bool { return d.LinkLayer == "Ethernet" && d.Netdev != "" }

// Cables returns the interfaces with the cables: see Port.
func (d Details) Cables() []string {
	if len(d.Slaves) == 0 {
		return []string{string(d.Netdev)}
	}
	return d.Slaves
}

// Inventory returns all RDMA ports of the node: rails first, by number, then the others by
// name. Virtual functions of NICs that the node has are left out: they are for pods.
func (n Node) Inventory() []Details {
	ports := carrying(append(n.Ports(), n.away()...))
	ports = slices.DeleteFunc(ports, func(p Port) bool {
		_, err := fs.Stat(n.Sys, "bus/pci/devices/"+n.function(p)+"/physfn")
		return err == nil
	})
	out := make([]Details, len(ports))
	var rails []rtnl.Link
	for i, p := range ports {
		out[i] = n.details(p)
		// A match does not select representors.
		if p.Carries && out[i].Ethernet() && !parent.Representor(p.NIC.PhysPort) {
			rails = append(rails, *p.NIC)
		}
	}
	parent.SortByPCI(rails, n.Links, n.Sys)
	for i, p := range ports {
		at := slices.IndexFunc(rails, func(l rtnl.Link) bool { return p.Carries && l.Index == p.NIC.Index })
		if at >= 0 {
			out[i].Rail = &at
		}
	}
	slices.SortStableFunc(out, func(a, b Details) int {
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

func (n Node) details(p Port) Details {
	d := Details{Device: p.Device.Name, Number: p.Number, State: p.State.String(), LinkLayer: n.text(p.Dir() + "/link_layer"), PCI: n.function(p)}
	if p.away {
		d.State, d.LinkLayer = Away, ""
		if p.Own != nil {
			d.LinkLayer = map[string]string{"ether": "Ethernet", "infiniband": "InfiniBand"}[p.Own.Encap()]
		}
	} else if entries, size, err := gidtable.New(n.Sys, d.Device, d.Number).Entries(); err == nil {
		_, err := fs.Stat(n.Sys, "module/mlx_compat")
		d.GIDs = GIDs{len(entries), size, gidtable.Width(entries), err == nil}
	}
	if l := p.Interface(); l != nil {
		n.interfaceOf(&d, *l)
		n.driverOf(&d, p.Cables())
		if l == p.NIC {
			d.Slaves = p.slaves
		}
	}
	if p.Bonded() && !p.Carries {
		d.Bond = p.NIC.Name
	}
	n.hardware(&d)
	return d
}

func (n Node) interfaceOf(d *Details, l rtnl.Link) {
	d.Netdev, d.MTU = conf.LinkName(l.Name), l.MTU
	if mbits, err := strconv.Atoi(n.text("class/net/" + l.Name + "/speed")); err == nil && mbits > 0 {
		d.Speed = mbits
	}
	for _, a := range n.Addresses {
		if a.Index == l.Index && !a.Prefix.Addr().IsLinkLocalUnicast() {
			d.Addresses = append(d.Addresses, a.Prefix)
		}
	}
}

// driverOf adds what the driver of the interfaces with the cables tells.
func (n Node) driverOf(d *Details, cables []string) {
	if n.Driver != nil {
		if is, err := n.Driver(cables[0]); err == nil {
			d.Driver = is
		}
	}
	if n.QoS != nil {
		d.QoS = n.qosOf(cables)
	}
}

// qosOf says what is set on interfaces, once if it is the same on all of them.
func (n Node) qosOf(links []string) string {
	var all []string
	for _, l := range links {
		q, err := n.QoS(l)
		if err != nil {
			return ""
		}
		all = append(all, q.String())
	}
	return strings.Join(slices.Compact(all), " / ")
}

func (n Node) hardware(d *Details) {
	dir := "bus/pci/devices/" + d.PCI + "/"
	d.VendorID = strings.TrimPrefix(n.text(dir+"vendor"), "0x")
	d.DeviceID = strings.TrimPrefix(n.text(dir+"device"), "0x")
	d.Model = Model(d.VendorID, d.DeviceID)
	if node, err := strconv.Atoi(n.text(dir + "numa_node")); err == nil && node >= 0 {
		d.NUMA = &node
	}
	d.GPUs = n.nearest(d.PCI)
}

// Others returns the names of the NICs that a match by the vendors and types of the ports
// selects, and that are none of the ports.
func (n Node) Others(ports []Details) []string {
	var vendors, ids, out []string
	for _, p := range ports {
		vendors, ids = append(vendors, p.VendorID), append(ids, p.DeviceID)
	}
	for _, l := range parent.Hardware(n.Links, vendors, ids, n.Sys) {
		if !slices.ContainsFunc(ports, func(p Details) bool { return string(p.Netdev) == l.Name }) {
			out = append(out, l.Name)
		}
	}
	slices.SortFunc(out, parent.Natural)
	return out
}

// ReadDriver asks the driver of an interface by ethtool's ioctl (ETHTOOL_GDRVINFO), as ethtool -i does.
func ReadDriver(netdev string) (Driver, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Driver{}, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, netdev)
	if err != nil {
		return Driver{}, err
	}
	return Driver{
		Name:     unix.ByteSliceToString(info.Driver[:]),
		Version:  unix.ByteSliceToString(info.Version[:]),
		Firmware: unix.ByteSliceToString(info.Fw_version[:]),
	}, nil
}
