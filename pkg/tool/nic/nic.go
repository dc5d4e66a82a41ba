// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package nic is the model of the RDMA ports of a node and the NICs behind them: which
// port the pods on a NIC use, which NICs are rails, and what an operator needs to choose
// rails: place on the PCIe bus, state, driver, nearest GPUs and room in the GID table.
//
// It works on a view of the node that is read once, and guesses nothing: a value that
// cannot be read is left out. It does not know pods; rocectl adds them. Read this file
// first. details.go has what rocectl rails prints, pcie.go measures distances on the bus.
package nic

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// Node is a view of a node.
type Node struct {
	Sys       fs.FS // root of sysfs, as the node's network namespace sees it
	Links     []rtnl.Link
	Addresses []rtnl.Address
	RDMA      nldev.System
	// Driver asks the driver of an interface, and QoS for its classes of traffic.
	Driver func(netdev string) (Driver, error)
	QoS    func(netdev string) (QoS, error)
}

// Live returns the node of the calling thread's network namespace. A kernel without
// RDMA has no devices. Errors: cnierr.IO.
func Live(ctx context.Context) (Node, error) {
	sys := os.DirFS("/sys")
	n := Node{Sys: sys, Driver: ReadDriver, QoS: func(netdev string) (QoS, error) { return ReadQoS(sys, netdev) }}
	c, err := rtnl.Dial()
	if err != nil {
		return Node{}, failed("interfaces", err)
	}
	defer c.Close()
	if n.Links, err = c.Links(ctx); err != nil {
		return Node{}, failed("interfaces", err)
	}
	if n.Addresses, err = c.Addresses(ctx, 0); err != nil {
		return Node{}, failed("addresses", err)
	}
	if n.RDMA, err = ReadRDMA(ctx); err != nil && !errors.Is(err, unix.EPROTONOSUPPORT) {
		return Node{}, failed("RDMA devices", err)
	}
	return n, nil
}

func failed(what string, err error) error {
	return cnierr.New(cnierr.IO, "list", what, "run it in the network namespace of the node", "%w", err)
}

// ReadRDMA returns the RDMA devices of the calling thread's namespace; EPROTONOSUPPORT if
// the kernel has no RDMA.
func ReadRDMA(ctx context.Context) (nldev.System, error) {
	c, err := nldev.Dial()
	if err != nil {
		return nldev.System{}, err
	}
	defer c.Close()
	return c.System(ctx)
}

// Port is a port of an RDMA device and the interfaces above it.
type Port struct {
	discover.Match
	// Own is the interface of the port; nil if the namespace does not have it.
	Own *rtnl.Link
	// NIC is the master of pods on this port: Own, or the bond that Own is a slave of.
	NIC *rtnl.Link
	// Carries says whether ADD with NIC as master takes this port. Of the ports of a bond it
	// takes the one that names the bond, or else the only one that names a slave: with RoCE
	// LAG, Broadcom's device names the bond, and NVIDIA's a slave. Slaves with a device each
	// carry nothing, and neither does a port that speaks iWARP or InfiniBand.
	Carries bool
	slaves  []string // of NIC, if it is a bond
	away    bool     // a pod has the device
}

// Dir is the folder of the port in sysfs.
func (p Port) Dir() string {
	return fmt.Sprintf("class/infiniband/%s/ports/%d", p.Device.Name, p.Number)
}

// Bonded says whether the interface of the port is a slave of a bond.
func (p Port) Bonded() bool { return p.Own != p.NIC }

// Interface returns the interface that has the port's addresses and settings: NIC, or Own if
// the port does not carry for NIC; nil as Own.
func (p Port) Interface() *rtnl.Link {
	if p.Carries {
		return p.NIC
	}
	return p.Own
}

// Cables returns the interfaces with the cables of the port: the slaves of a bond, or
// Interface itself; none if there is none. They have what a bond has not: the settings of the
// hardware, and the frames that a switch sends to its neighbour.
func (p Port) Cables() []string {
	l := p.Interface()
	switch {
	case l == nil:
		return nil
	case l == p.NIC && len(p.slaves) > 0:
		return p.slaves
	}
	return []string{l.Name}
}

// Ports returns the ports of the devices that the namespace has.
func (n Node) Ports() []Port {
	var out []Port
	for _, m := range discover.Ports(n.RDMA.Devices) {
		own := n.Link(m.NetdevIndex)
		if m.NetdevIndex == 0 { // for InfiniBand the kernel names none
			own = n.beside("class/infiniband/" + m.Device.Name + "/device/net")
		}
		out = append(out, n.port(m, own))
	}
	return carrying(out)
}

func (n Node) port(m discover.Match, own *rtnl.Link) Port {
	p := Port{Match: m, Own: own, NIC: own}
	if own != nil {
		p.NIC = n.Link(parent.Top(n.Links, own.Index))
	}
	for _, l := range n.Links {
		if p.NIC != nil && p.NIC.Kind == "bond" && l.Master == p.NIC.Index {
			p.slaves = append(p.slaves, l.Name)
		}
	}
	return p
}

// carrying sets Carries of all ports, by the rule of discover.Port.
func carrying(ports []Port) []Port {
	for i := range ports {
		p := &ports[i]
		p.Carries = p.NIC != nil && !discover.Other(p.Device) && !slices.ContainsFunc(ports, func(o Port) bool {
			return o.NIC == p.NIC && o.String() != p.String() && !discover.Other(o.Device) && (p.Bonded() || !o.Bonded())
		})
	}
	return ports
}

// away returns ports of the devices that have files for programs, but are not in the
// namespace: pods have them.
func (n Node) away() []Port {
	var out []Port
	for _, f := range discover.Files(n.Sys) {
		if f.Device == "" || slices.ContainsFunc(n.RDMA.Devices, func(d nldev.Device) bool { return d.Name == f.Device }) {
			continue
		}
		m := discover.Match{Device: nldev.Device{Name: f.Device}, Port: nldev.Port{Number: 1}}
		p := n.port(m, n.beside(f.Dir+"/device/net"))
		p.away = true
		out = append(out, p)
	}
	return out
}

// Link returns the interface with an index, nil if there is none.
func (n Node) Link(index int32) *rtnl.Link {
	return n.first(func(l rtnl.Link) bool { return l.Index == index })
}

func (n Node) first(is func(rtnl.Link) bool) *rtnl.Link {
	i := slices.IndexFunc(n.Links, is)
	if i < 0 {
		return nil
	}
	return &n.Links[i]
}

// beside returns the interface in a folder of sysfs, if it has exactly one.
func (n Node) beside(dir string) *rtnl.Link {
	entries, _ := fs.ReadDir(n.Sys, dir)
	if len(entries) != 1 {
		return nil
	}
	return n.first(func(l rtnl.Link) bool { return l.Name == entries[0].Name() })
}

// function returns the address of the PCI function of a port, "" if it has none.
func (n Node) function(p Port) string {
	var netdev conf.LinkName
	if p.Own != nil {
		netdev = conf.LinkName(p.Own.Name)
	}
	return discover.Function(n.Sys, p.Device.Name, netdev)
}

func (n Node) text(name string) string { return discover.Text(n.Sys, name) }
