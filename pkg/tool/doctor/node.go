// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/Mellanox/rdmamap"
	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/vishvananda/netlink"

	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Node is a node as checks see it. Each part may fail without the others.
type Node struct {
	// Root is the root of the node's file system, with its /proc and /sys.
	Root fs.FS
	// Sysctl reads a setting of the node's network namespace, by its name with dots
	// or slashes.
	Sysctl func(name string) (string, error)
	// CharDevices returns the paths of the device files that the kernel has made for
	// an RDMA device.
	CharDevices func(device string) []string
	// Addrs returns the IPv4 addresses of an interface.
	Addrs func(link netlink.Link) ([]netlink.Addr, error)
	// Links returns the interfaces of the node, with their VFs.
	Links func() ([]netlink.Link, error)
	// RDMA returns the RDMA devices that the node has now.
	RDMA func(ctx context.Context) (nldev.System, error)
	// Routes returns the IPv4 and IPv6 routes of the main table.
	Routes func() ([]netlink.Route, error)
	// Rules returns the routing rules of a family.
	Rules func(family int) ([]netlink.Rule, error)
	// Devlink returns the devices that devlink knows.
	Devlink func() ([]*netlink.DevlinkDevice, error)
	// Driver asks the driver of an interface for its versions, and QoS for its classes
	// of traffic.
	Driver func(netdev string) (nic.Driver, error)
	QoS    func(netdev string) (QoS, error)
	// Run runs a program of the node and returns what it prints, complaints included.
	Run func(ctx context.Context, program string, args ...string) (string, error)
	// Pools, Leases and Records are what roce-cni itself keeps on the node.
	Pools   nodefile.Store
	Leases  *ipam.Book
	Records record.Store
	// Peers is with how many others each address talks; 0 if that is unknown.
	Peers int
	// AgentURL is where rocectl agent tells its health.
	AgentURL string
}

// Live returns the node that the program runs on, in the network namespace of the
// caller, with what roce-cni keeps on it.
func Live(pools nodefile.Store, leases *ipam.Book, agentURL string) Node {
	return Node{
		Root:        os.DirFS("/"),
		Sysctl:      func(name string) (string, error) { return sysctl.Sysctl(name) },
		CharDevices: rdmamap.GetRdmaCharDevices,
		Addrs:       func(link netlink.Link) ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V4) },
		Links:       sync.OnceValues(netlink.LinkList),
		RDMA:        readRDMA,
		Routes:      func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) },
		Rules:       netlink.RuleList,
		Devlink:     netlink.DevLinkGetDeviceList,
		Driver:      nic.ReadDriver,
		QoS:         readQoS,
		Run:         report.RunProgram,
		Pools:       pools,
		Leases:      leases,
		Records:     record.Store{Dir: pools.Dir, BootID: pools.BootID},
		AgentURL:    agentURL,
	}
}

func readRDMA(ctx context.Context) (nldev.System, error) {
	c, err := nldev.Dial()
	if err != nil {
		return nldev.System{}, err
	}
	defer c.Close()
	return c.System(ctx)
}

// text returns the content of a file, without the white space around it.
func (n Node) text(name string) (string, error) {
	b, err := fs.ReadFile(n.Root, name)
	return strings.TrimSpace(string(b)), err
}

// has says whether a file is there; that it cannot be looked at is an error.
func (n Node) has(name string) (bool, error) {
	switch _, err := fs.Stat(n.Root, name); {
	case err == nil:
		return true, nil
	case isNotExist(err):
		return false, nil
	default:
		return false, err
	}
}

// number returns a setting that is a number.
func (n Node) number(name string) (int, error) {
	v, err := n.Sysctl(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(v))
}

// port is a port of an RDMA device.
type port struct {
	device nldev.Device
	nldev.Port
}

// String returns the port as rdma link calls it.
func (p port) String() string { return fmt.Sprintf("%s/%d", p.device.Name, p.Number) }

// dir is the port's folder in sysfs.
func (p port) dir() string {
	return fmt.Sprintf("sys/class/infiniband/%s/ports/%d", p.device.Name, p.Number)
}

// eachPort asks about each port of the node that speaks RoCE. If there is none,
// the finding says so.
func (n Node) eachPort(ctx context.Context, look func(p port) report.Finding) []report.Finding {
	ports, err := n.ports(ctx)
	if err != nil {
		return unlisted(err)
	}
	var out []report.Finding
	for _, p := range ports {
		if p.device.Protocol == roce {
			out = append(out, look(p).About(p.String()))
		}
	}
	if len(out) == 0 {
		return []report.Finding{cannotTell("the node has no RoCE port", "a port that speaks RoCE: see rdma-devices and rdma-ports")}
	}
	return out
}

// unlisted is the answer of a check that needs the RDMA devices.
func unlisted(err error) []report.Finding {
	return []report.Finding{cannotTell("the RDMA devices cannot be listed: "+err.Error(), "what rdma-devices says")}
}

// noLinks is the answer of a check that needs the interfaces.
func noLinks(err error) report.Finding {
	return cannotTell("the interfaces cannot be listed: "+err.Error(), "root in the network namespace of the node")
}

const roce = "roce" // nldev.Device.Protocol

func (n Node) ports(ctx context.Context) ([]port, error) {
	s, err := n.RDMA(ctx)
	if err != nil {
		return nil, err
	}
	var out []port
	for _, d := range s.Devices {
		for _, p := range d.Ports {
			out = append(out, port{d, p})
		}
	}
	return out, nil
}

// link returns the interface of a port, nil if it is in another namespace.
func (n Node) link(p port) (netlink.Link, error) {
	links, err := n.Links()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == int(p.NetdevIndex) })
	if i < 0 {
		return nil, nil
	}
	return links[i], nil
}

// pci returns the PCI address of an RDMA device, or of the function that it is
// part of; "DEVICE" in a command for the reader to replace if there is none.
func (n Node) pci(device string) string {
	uevent, err := n.text("sys/class/infiniband/" + device + "/device/uevent")
	if err == nil {
		for line := range strings.Lines(uevent) {
			if slot, found := strings.CutPrefix(strings.TrimSpace(line), "PCI_SLOT_NAME="); found {
				return slot
			}
		}
	}
	return "PCI_ADDRESS"
}

// files returns the names of the files that match a pattern, in the order of their
// base names.
func (n Node) files(pattern string) []string {
	names, _ := fs.Glob(n.Root, pattern) // the pattern is a constant
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) })
	return names
}
