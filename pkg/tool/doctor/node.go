// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/Mellanox/rdmamap"
	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Node is a node as checks see it. Each part may fail without the others.
type Node struct {
	// Root is the root of the node's file system, with its /proc and /sys. Its errors have
	// paths of the node.
	Root fs.FS
	// Settings is what is wrong with the settings of the node, the error of settings.Load.
	Settings error
	// Sysctl reads a setting of the node's network namespace, by its name with dots
	// or slashes.
	Sysctl func(name string) (string, error)
	// CharDevices returns the paths of the device files that the kernel has made for
	// an RDMA device.
	CharDevices func(device string) []string
	// Links returns the interfaces of the node, Addrs their addresses, VFs those of a NIC.
	Links func(ctx context.Context) ([]rtnl.Link, error)
	Addrs func(ctx context.Context) ([]rtnl.Address, error)
	VFs   func(ctx context.Context, nic string) ([]rtnl.VF, error)
	// RDMA returns the RDMA devices that the node has now.
	RDMA func(ctx context.Context) (nldev.System, error)
	// Routes returns the routes of the node, Rules its routing rules.
	Routes func(ctx context.Context) ([]rtnl.Route, error)
	Rules  func(ctx context.Context) ([]rtnl.Rule, error)
	// Devlink returns the devices that devlink knows.
	Devlink func() ([]*netlink.DevlinkDevice, error)
	// Driver asks the driver of an interface for its versions, and QoS for its classes
	// of traffic.
	Driver func(netdev string) (nic.Driver, error)
	QoS    func(netdev string) (nic.QoS, error)
	// Run runs a program of the node and returns what it prints, complaints included.
	Run func(ctx context.Context, program string, args ...string) (string, error)
	// Pools, Leases and Records are what roce-cni itself keeps on the node.
	Pools   nodefile.Store
	Leases  *ipam.Book
	Records record.Store
	// ConfDir and BinDir are the runtime's folders for CNI configuration and plugins; "": those
	// that its configuration names.
	ConfDir, BinDir string
	// Peers is with how many others each address talks; 0 if that is unknown.
	Peers int
	// AgentURL is where rocectl agent tells its health.
	AgentURL string
}

// Live returns the node that the program runs on, in the network namespace of the
// caller, with what roce-cni keeps on it.
func Live(pools nodefile.Store, leases *ipam.Book, agentURL string) Node {
	return Node{
		Root:        rooted{os.DirFS("/"), "/"},
		Sysctl:      func(name string) (string, error) { return sysctl.Sysctl(name) },
		CharDevices: rdmamap.GetRdmaCharDevices,
		Links:       asking((*rtnl.Conn).Links),
		Addrs:       asking(func(c *rtnl.Conn, ctx context.Context) ([]rtnl.Address, error) { return c.Addresses(ctx, 0) }),
		VFs: func(ctx context.Context, nic string) ([]rtnl.VF, error) {
			return asking(func(c *rtnl.Conn, ctx context.Context) ([]rtnl.VF, error) { return c.VFs(ctx, nic) })(ctx)
		},
		RDMA:     nic.ReadRDMA,
		Routes:   asking((*rtnl.Conn).Routes),
		Rules:    asking(func(c *rtnl.Conn, ctx context.Context) ([]rtnl.Rule, error) { return c.Rules(ctx, unix.AF_UNSPEC) }),
		Devlink:  netlink.DevLinkGetDeviceList,
		Driver:   nic.ReadDriver,
		QoS:      func(netdev string) (nic.QoS, error) { return nic.ReadQoS(os.DirFS("/sys"), netdev) },
		Run:      report.RunProgram,
		Pools:    pools,
		Leases:   leases,
		Records:  record.Store{Dir: pools.Dir, BootID: pools.BootID},
		AgentURL: agentURL,
	}
}

// asking returns a question that has a socket of its own.
func asking[T any](ask func(c *rtnl.Conn, ctx context.Context) ([]T, error)) func(ctx context.Context) ([]T, error) {
	return func(ctx context.Context) ([]T, error) {
		c, err := rtnl.Dial()
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return ask(c, ctx)
	}
}

// text returns the content of a file, without the white space around it.
func (n Node) text(name string) (string, error) {
	b, err := fs.ReadFile(n.Root, name)
	return strings.TrimSpace(string(b)), err
}

// rooted is the file system below a folder of the node. Its errors name files as the node
// does: those of an fs.FS have names without "/".
type rooted struct {
	fs.FS
	dir string // with "/" at its end
}

func (r rooted) named(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: p.Op, Path: r.dir + p.Path, Err: p.Err}
	}
	return err
}

// Open implements fs.FS.
func (r rooted) Open(name string) (fs.File, error) {
	f, err := r.FS.Open(name)
	return f, r.named(err)
}

// ReadLink implements fs.ReadLinkFS.
func (r rooted) ReadLink(name string) (string, error) {
	target, err := fs.ReadLink(r.FS, name)
	return target, r.named(err)
}

// Lstat implements fs.ReadLinkFS.
func (r rooted) Lstat(name string) (fs.FileInfo, error) {
	info, err := fs.Lstat(r.FS, name)
	return info, r.named(err)
}

// Sub implements fs.SubFS.
func (r rooted) Sub(dir string) (fs.FS, error) {
	below, err := fs.Sub(r.FS, dir)
	return rooted{below, r.dir + dir + "/"}, err
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

// eachDevice asks about each RDMA device that look knows something of. If it is none, the
// finding says what there is none of.
func (n Node) eachDevice(ctx context.Context, none string, look func(device string) (f report.Finding, has bool)) []report.Finding {
	s, err := n.RDMA(ctx)
	if err != nil {
		return unlisted(err)
	}
	var out []report.Finding
	for _, d := range s.Devices {
		if f, has := look(d.Name); has {
			out = append(out, f.About(d.Name))
		}
	}
	if len(out) == 0 {
		return []report.Finding{ok("%s", none)}
	}
	return out
}

// eachPort asks about each port of the node that speaks RoCE. If there is none,
// the finding says so.
func (n Node) eachPort(ctx context.Context, look func(p nic.Port) report.Finding) []report.Finding {
	ports, unknown := n.ports(ctx)
	if unknown != nil {
		return unknown
	}
	var out []report.Finding
	for _, p := range ports {
		if p.Device.Protocol == roce {
			out = append(out, look(p).About(p.String()))
		}
	}
	if len(out) == 0 {
		return []report.Finding{cannotTell("the node has no RoCE port", "rdma-ports")}
	}
	return out
}

// unlisted is the answer of a check that needs the RDMA devices.
func unlisted(err error) []report.Finding {
	found := "the kernel does not list the RDMA devices: " + err.Error()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		found = noRDMA
	}
	return []report.Finding{cannotTell(found, "rdma-devices")}
}

// noRDMA is what a kernel has that does not know the socket of RDMA.
const noRDMA = "the kernel has no RDMA: the module ib_core is neither loaded nor built in"

// noLinks is the answer of a check that needs the interfaces.
func noLinks(err error) report.Finding {
	return cannotTell("the interfaces cannot be listed: "+err.Error(), "root in the network namespace of the node")
}

const roce = "roce" // nldev.Device.Protocol

// ports returns the ports of the node, or else the answer of a check that needs them.
func (n Node) ports(ctx context.Context) ([]nic.Port, []report.Finding) {
	s, err := n.RDMA(ctx)
	if err != nil {
		return nil, unlisted(err)
	}
	links, err := n.Links(ctx)
	if err != nil {
		return nil, []report.Finding{noLinks(err)}
	}
	return nic.Node{Sys: n.sys(), Links: links, RDMA: s}.Ports(), nil
}

// sys returns the root of sysfs.
func (n Node) sys() fs.FS {
	sys, err := fs.Sub(n.Root, "sys")
	if err != nil {
		panic("doctor: " + err.Error()) // the name is valid
	}
	return sys
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
