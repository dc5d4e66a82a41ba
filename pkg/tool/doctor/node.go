// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// after returns what follows a prefix in the first line of a text that has it.
func after(text, prefix string) (rest string, found bool) {
	for line := range strings.Lines(text) {
		if rest, found = strings.CutPrefix(strings.TrimSpace(line), prefix); found {
			return strings.TrimSpace(rest), true
		}
	}
	return "", false
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
	_, err := fs.Stat(n.Root, name)
	if isNotExist(err) {
		return false, nil
	}
	return err == nil, err
}

func (l *look) number(name, what string) int {
	text, err := l.Sysctl(name)
	l.need(err, what, netnsOfNode)
	n, err := strconv.Atoi(strings.TrimSpace(text))
	l.need(err, what, netnsOfNode)
	return n
}

// What several checks need.
const (
	rootOfNode    = "root in the network namespace of the node"
	sysOfDevice   = "the sysfs of the namespace that has the device"
	sysInfiniband = "the right to read /sys/class/infiniband"
	netnsOfNode   = "the network namespace of the node"
)

// look is a look at a node to answer a check, or a part of it. What cannot be read ends it: the
// answer is that then, whatever is found later with the empty values of what could not be read.
type look struct {
	Node
	ctx  context.Context //nolint:containedctx // it is that of one check
	lack *report.Finding // the first that could not be read
}

// try answers a part of a check, which can lack something without the others.
func (l *look) try(ask func(*look) []report.Finding) []report.Finding {
	part := &look{Node: l.Node, ctx: l.ctx}
	out := ask(part)
	if part.lack != nil {
		return []report.Finding{*part.lack}
	}
	return out
}

// about answers a part of a check that is about one thing.
func (l *look) about(thing string, ask func(*look) report.Finding) report.Finding {
	return l.try(func(l *look) []report.Finding { return []report.Finding{ask(l)} })[0].About(thing)
}

func (l *look) lacks(found, missing string) {
	if l.lack == nil {
		l.lack = new(cannotTell(found, missing))
	}
}

// need ends the look if there is an error, of which what is the beginning.
func (l *look) need(err error, what, missing string) {
	if err == nil {
		return
	}
	found := err.Error()
	if failed, is := errors.AsType[*fs.PathError](err); is && isNotExist(failed) && failed.Op != "fork/exec" {
		found = "there is no /" + strings.TrimPrefix(failed.Path, "/")
	}
	l.lacks(what+found, missing)
}

// read returns the content of a file, without the white space around it.
func (l *look) read(name, what, missing string) string {
	text, err := l.text(name)
	l.need(err, what, missing)
	return text
}

// there says whether a file is there.
func (l *look) there(name, missing string) bool {
	there, err := l.has(name)
	l.need(err, "", missing)
	return there
}

// each asks about each of some things. ask returns no verdict for one of which there is nothing
// to say.
func each[T any](l *look, things []T, ask func(l *look, thing T) report.Finding) (out []report.Finding) {
	for _, thing := range things {
		if f := l.about(fmt.Sprint(thing), func(l *look) report.Finding { return ask(l, thing) }); f.Verdict != "" {
			out = append(out, f)
		}
	}
	return out
}

// eachPort asks about each port of the node that speaks RoCE.
func (l *look) eachPort(ask func(l *look, p nic.Port) report.Finding) []report.Finding {
	ports := slices.DeleteFunc(l.ports(), func(p nic.Port) bool { return p.Device.Protocol != roce })
	if len(ports) == 0 {
		l.lacks("the node has no RoCE port", "rdma-ports")
	}
	return each(l, ports, ask)
}

// deviceNames returns the names of RDMA devices.
func deviceNames(s nldev.System) (names []string) {
	for _, d := range s.Devices {
		names = append(names, d.Name)
	}
	return names
}

// noRDMA is what a kernel has that does not know the socket of RDMA.
const noRDMA = "the kernel has no RDMA: the module ib_core is neither loaded nor built in"

func (l *look) system() nldev.System {
	s, err := l.RDMA(l.ctx)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		l.lacks(noRDMA, "rdma-devices")
	}
	l.need(err, "the kernel does not list the RDMA devices: ", "rdma-devices")
	return s
}

func (l *look) links() []rtnl.Link {
	links, err := l.Links(l.ctx)
	l.need(err, "the interfaces cannot be listed: ", rootOfNode)
	return links
}

const roce = "roce" // nldev.Device.Protocol

func (l *look) ports() []nic.Port {
	return nic.Node{Sys: l.sys(), RDMA: l.system(), Links: l.links()}.Ports()
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
	uevent, _ := n.text("sys/class/infiniband/" + device + "/device/uevent")
	slot, _ := after(uevent, "PCI_SLOT_NAME=")
	return cmp.Or(slot, "PCI_ADDRESS")
}

// files returns the names of the files that match a pattern, as fs.Glob orders them.
func (n Node) files(pattern string) []string {
	names, _ := fs.Glob(n.Root, pattern) // the pattern is a constant
	return names
}
