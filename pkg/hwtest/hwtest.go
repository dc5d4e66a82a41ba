// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package hwtest tests whether RoCE NICs and their drivers behave as roce-cni assumes,
// and collects what the kernel tells about them in one file without names and
// addresses of the user.
//
// Each step asks the kernel through the code that the plugin uses, and compares the
// answer with what the kernel tells elsewhere. The steps of this file change nothing,
// and they can be repeated on a recording. It is for the program roce-hwtest only. Read this
// file first, then those of the other steps: find.go changes nothing, mutate.go, checks.go,
// facts.go, faults.go and disrupt.go do, pair.go and job.go are between two pods or nodes. rows.go
// has what was proven by which step, and archive.go the file.
package hwtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Answer is what a step has found out about one thing.
type Answer struct {
	report.Answer
	Expected string `json:"expected"`
}

// Step is one question about the NICs of a node.
type Step struct {
	Name   string // kebab-case; it is Check of the answers
	Asks   string // the question in a few words
	Expect string // what the code of roce-cni assumes
	look   func(v view, ctx context.Context) []report.Finding
}

// Steps returns the steps that change nothing, in the order in which they run.
func Steps() []Step {
	return []Step{
		{"driver-stack", "which kernel, driver and firmware does each NIC have?", "the driver tells its name and version (ETHTOOL_GDRVINFO)", view.driverStack},
		{"devices", "do netlink and sysfs agree about each device, and is it identified?", "a device has the same name, GUID and ports in netlink and in sysfs, a GUID of its own, and one device file", view.devices},
		{"ports", "is each port active, on Ethernet, with RoCE and a GID table?", "a port has the same state in netlink and in sysfs, is active, has Ethernet below it, and has a GID table", view.portStates},
		{"hardware", "are the RDMA device and the interface on the same PCI function?", "port 1 of a device and its interface are on one PCI function; the device is on the PCI or the auxiliary bus", view.hardware},
		{"discovery", "does the plugin find the RDMA port of each NIC by each of its names, its PCI function, and its device?", "the port that names an interface is the one that ADD uses for a pod on that interface, or on its bond", view.discovery},
		{"host-gids", "does each address of the host have an entry of RoCE v2, and how large is the table?", "each address of an interface has one RoCE v2 entry; with RoCE v1, that entry is the one after the v1 entry of the address", view.hostGIDs},
		{"mode", "does ADD refuse rdma.mode if it contradicts the node?", "error 104 for the other mode", view.modes},
		{"refusal", "does ADD refuse ports that cannot carry RoCE, before it leases an address?", "error 103 for a port without RoCE or without a GID table", view.refusals},
		{"function", "do selectors tell physical, virtual and scalable functions apart?", "function selects an interface if and only if it is of that kind", view.kinds},
		{"layers", "does ADD find the RDMA port below the VLANs and bonds of the host?", "the port of a VLAN or bond is that of the NIC below it", view.layers},
		{"vf-trust", "may virtual functions send the frames of macvlan children?", "ADD refuses a VF with the spoof check on that is not trusted, or that is of mlx5, and no other VF", view.vfTrust},
	}
}

// Node is a node, or the recording of one.
type Node struct {
	Sys    fs.FS                                     // the root of sysfs
	Dial   func(protocol int) (nlsock.Socket, error) // opens a netlink socket
	Driver func(netdev string) (nic.Driver, error)   // asks the driver of an interface
	Stack  Stack
}

// Stack is the software below roce-cni.
type Stack struct {
	Kernel string `json:"kernel"`         // uname -r
	OS     string `json:"os"`             // PRETTY_NAME of os-release
	OFED   string `json:"ofed,omitempty"` // version of NVIDIA's own driver, if it is loaded
}

// Live returns the node that the program runs on. What the kernel answers is added to
// the recording.
func Live(to *recording.Recording) Node {
	return Node{
		Sys: os.DirFS("/sys"),
		Dial: func(protocol int) (nlsock.Socket, error) {
			sock, err := nlsock.Dial(protocol)
			if err != nil {
				return nil, err
			}
			return to.Tap(protocol, sock), nil
		},
		Driver: nic.ReadDriver,
		Stack:  ReadStack(os.DirFS("/")),
	}
}

// Keeping returns the node that adds what drivers answer to the results.
func (n Node) Keeping(r *Results) Node {
	ask := n.Driver
	n.Driver = func(netdev string) (nic.Driver, error) {
		d, err := ask(netdev)
		known := func(l LinkDriver) bool { return l.Netdev == netdev }
		if err == nil && !slices.ContainsFunc(r.Drivers, known) {
			r.Drivers = append(r.Drivers, LinkDriver{netdev, d})
		}
		return d, err
	}
	return n
}

// ReadStack reads the versions from the root of a file system.
func ReadStack(root fs.FS) Stack {
	line := func(name string) string { return discover.Text(root, name) }
	s := Stack{Kernel: line("proc/sys/kernel/osrelease")}
	for l := range strings.Lines(line("etc/os-release")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(l), "PRETTY_NAME="); ok {
			s.OS = strings.Trim(name, `"`)
		}
	}
	if _, err := fs.Stat(root, "sys/module/mlx_compat"); err == nil {
		s.OFED = strings.TrimSpace("MLNX_OFED or DOCA-OFED " + line("sys/module/mlx_compat/version"))
	}
	return s
}

// Play returns the node of a recording. sys is its tree, unpacked.
func Play(from *recording.Recording, sys fs.FS, r Results) Node {
	return Node{
		Sys:  sys,
		Dial: func(protocol int) (nlsock.Socket, error) { return from.Play(protocol), nil },
		Driver: func(netdev string) (nic.Driver, error) {
			for _, l := range r.Drivers {
				if l.Netdev == netdev {
					return l.Driver, nil
				}
			}
			for _, p := range r.Ports { // a file of a version without Drivers
				if string(p.Netdev) == netdev {
					return p.Driver, nil
				}
			}
			return nic.Driver{}, errors.New("the recording has no driver of this interface")
		},
		Stack: r.Stack,
	}
}

// view is a node as it was at one moment.
type view struct {
	Node
	system nldev.System
	links  []rtnl.Link
	addrs  []rtnl.Address
	route  *rtnl.Conn
}

// open looks at the node. The caller must close route.
func (n Node) open(ctx context.Context) (v view, err error) {
	v.Node = n
	sock, err := n.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return v, failed("interfaces", err)
	}
	v.route = rtnl.New(sock)
	defer func() {
		if err != nil {
			v.route.Close()
		}
	}()
	if v.links, err = v.route.Links(ctx); err != nil {
		return v, failed("interfaces", err)
	}
	if v.addrs, err = v.route.Addresses(ctx, 0); err != nil {
		return v, failed("addresses", err)
	}
	if v.system, err = n.rdma(ctx); err != nil {
		return v, failed("RDMA devices", err)
	}
	if len(v.system.Devices) == 0 {
		return v, cnierr.New(cnierr.NoRDMA, "test", "NICs", "load the RDMA driver of the NIC: rdma link shows its devices", "the node has no RDMA device in this namespace")
	}
	return v, nil
}

// rdma asks for the RDMA devices on a new socket.
func (n Node) rdma(ctx context.Context) (nldev.System, error) {
	c, err := n.dialRDMA()
	if err != nil {
		return nldev.System{}, err
	}
	defer c.Close()
	return c.System(ctx)
}

func (n Node) dialRDMA() (*nldev.Conn, error) {
	sock, err := n.Dial(unix.NETLINK_RDMA)
	if err != nil {
		return nil, err
	}
	return nldev.New(sock), nil
}

func failed(what string, err error) error {
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return cnierr.New(cnierr.NoRDMA, "list", what, discover.LoadDriver, "the kernel has no RDMA: no module of an RDMA NIC is loaded")
	}
	return cnierr.New(cnierr.IO, "list", what, "run it as root on the node, in the network namespace of the host", "%w", err)
}

// Look runs the steps that change nothing. It yields each answer as soon as it is
// known, and returns the ports. Errors: NoRDMA if there is no RDMA device, IO.
func (n Node) Look(ctx context.Context, yield func(Answer)) ([]nic.Details, error) {
	v, err := n.open(ctx)
	if err != nil {
		return nil, err
	}
	defer v.route.Close()
	for _, s := range Steps() {
		for _, f := range s.run(ctx, v) {
			yield(s.answer(f))
		}
	}
	return v.nics().Inventory(), nil
}

func (v view) nics() nic.Node {
	return nic.Node{Sys: v.Sys, Links: v.links, Addresses: v.addrs, RDMA: v.system, Driver: v.Driver}
}

// run looks, and turns a panic into an answer: the other steps are still of use.
func (s Step) run(ctx context.Context, v view) (out []report.Finding) {
	defer func() {
		if r := recover(); r != nil {
			out = append(out, cannotTell("", "the step itself failed: "+fmt.Sprint(r), "a bug report with this line"))
		}
	}()
	return s.look(v, ctx)
}

func (s Step) answer(f report.Finding) Answer {
	a := Answer{Answer: report.Answer{Check: s.Name, Finding: f}, Expected: s.Expect}
	if f.Verdict == report.Problem {
		a.Why = "roce-cni expects: " + s.Expect
	}
	return a
}

// Findings.

func ok(of, format string, args ...any) report.Finding {
	return report.Finding{Verdict: report.OK, Of: of, Found: fmt.Sprintf(format, args...)}
}

func problem(of, found, fix string) report.Finding {
	return report.Finding{Verdict: report.Problem, Of: of, Found: found, Fix: fix}
}

func cannotTell(of, found, missing string) report.Finding {
	return report.Finding{Verdict: report.CannotTell, Of: of, Found: found, Missing: missing}
}

// judge returns ok with what was found, or a problem for each fault.
func judge(of, found string, faults []fault) []report.Finding {
	if len(faults) == 0 {
		return []report.Finding{ok(of, "%s", found)}
	}
	var out []report.Finding
	for _, f := range faults {
		out = append(out, problem(of, f.found, f.fix))
	}
	return out
}

// fault is something that is not as expected.
type fault struct{ found, fix string }

// text returns the text of a file of sysfs, "" if it cannot be read.
func (v view) text(name string) string { return discover.Text(v.Sys, name) }

// ports returns the ports of the node, roce those that speak RoCE and have an interface in
// the host.
func (v view) ports() []nic.Port { return v.nics().Ports() }

func (v view) roce() []nic.Port {
	return slices.DeleteFunc(v.ports(), func(p nic.Port) bool { return p.Device.Protocol != "roce" || p.Link == "" || p.Own == nil })
}

const aKnownFault = "# a fault of the driver or of roce-cni: send the file to the project"

func (v view) driverStack(_ context.Context) []report.Finding {
	var out []report.Finding
	for _, p := range v.ports() {
		if p.Own == nil {
			continue
		}
		d, err := v.Driver(p.Own.Name)
		if err != nil {
			out = append(out, cannotTell(p.String(), "the driver of "+p.Own.Name+" does not answer: "+err.Error(), "a driver with ethtool -i"))
			continue
		}
		out = append(out, ok(p.String(), "%s %s, firmware %s, Linux %s, %s", d.Name, d.Version,
			cmp.Or(strings.TrimSpace(d.Firmware), "unknown"), v.Stack.Kernel, cmp.Or(v.Stack.OFED, "the kernel's own driver")))
	}
	if len(out) == 0 {
		out = append(out, cannotTell("", "no port tells its interface", "a port with an interface in the host: rdma link"))
	}
	return out
}

func (v view) devices(_ context.Context) []report.Finding {
	var out []report.Finding
	files := discover.Files(v.Sys)
	for _, d := range v.system.Devices {
		out = append(out, judge(d.Name, fmt.Sprintf("GUID %s, ports: %d, protocol %q", d.GUID, len(d.Ports), d.Protocol), v.identity(d, files))...)
	}
	return out
}

func (v view) identity(d nldev.Device, files []discover.File) []fault {
	dir := "class/infiniband/" + d.Name
	var out []fault
	guid := v.text(dir + "/node_guid")
	same := slices.DeleteFunc(slices.Clone(v.system.Devices), func(o nldev.Device) bool { return o.GUID != d.GUID })
	switch {
	case guid != d.GUID:
		out = append(out, fault{fmt.Sprintf("its GUID is %s in netlink, and %q in sysfs", d.GUID, guid), aKnownFault})
	case strings.Trim(guid, "0:") == "":
		out = append(out, fault{"it has no GUID: connections of rdma_cm fail", "ip link set PF vf N mac MAC  # a VF has a GUID when it has an administrative MAC"})
	case len(same) > 1:
		out = append(out, fault{fmt.Sprintf("%d devices have its GUID %s", len(same), guid), aKnownFault})
	}
	numbers, err := fs.ReadDir(v.Sys, dir+"/ports")
	if err != nil || len(numbers) != len(d.Ports) {
		out = append(out, fault{fmt.Sprintf("it has %d ports in netlink, and %d in sysfs", len(d.Ports), len(numbers)), aKnownFault})
	}
	own := slices.DeleteFunc(slices.Clone(files), func(f discover.File) bool { return f.Device != d.Name })
	if len(own) != 1 {
		out = append(out, fault{fmt.Sprintf("it has %d device files", len(own)), "modprobe ib_uverbs; ls /sys/class/infiniband_verbs"})
	}
	return out
}

func (v view) portStates(_ context.Context) []report.Finding {
	var out []report.Finding
	for _, p := range v.ports() {
		found := fmt.Sprintf("%s, %s, %s, on %s", p.State, v.text(p.Dir()+"/link_layer"), v.text(p.Dir()+"/rate"), cmp.Or(string(p.Link), "no interface"))
		out = append(out, judge(p.String(), found, v.carries(p))...)
	}
	return out
}

func (v view) carries(p nic.Port) []fault {
	var out []fault
	layer, state := v.text(p.Dir()+"/link_layer"), v.text(p.Dir()+"/state")
	if _, name, _ := strings.Cut(state, ": "); name != p.State.String() {
		out = append(out, fault{fmt.Sprintf("its state is %s in netlink, and %q in sysfs", p.State, state), aKnownFault})
	}
	if layer != "Ethernet" && p.Device.Protocol == "roce" {
		out = append(out, fault{fmt.Sprintf("it speaks RoCE, and its link layer is %q", layer), aKnownFault})
	}
	if _, err := fs.Stat(v.Sys, p.Dir()+"/gids/0"); err != nil {
		return append(out, fault{"it has no GID table: RoCE is off, or the NIC is in switchdev mode", "devlink dev param show; devlink dev eswitch show"})
	}
	switch {
	case p.Device.Protocol != "roce":
		out = append(out, fault{fmt.Sprintf("it speaks %q, not RoCE", p.Device.Protocol), "# leave it, if the port is meant for that"})
	case p.State != nldev.Active:
		out = append(out, fault{"its state is " + p.State.String(), "rdma link; ip link  # then the cable and the switch port"})
	case p.Link == "":
		out = append(out, fault{"no interface of the host belongs to it", "rdma link; ip link  # a pod may have the interface"})
	}
	return out
}

func (v view) hardware(_ context.Context) []report.Finding {
	var out []report.Finding
	for _, p := range v.roce() {
		out = append(out, v.function(p))
	}
	return out
}

func (v view) function(p nic.Port) report.Finding {
	bus, name := discover.Hardware(v.Sys, p.Device.Name)
	own, below := discover.Function(v.Sys, p.Device.Name, ""), discover.Function(v.Sys, "", conf.LinkName(p.Own.Name))
	l := p.Own
	kind := "a physical function"
	if _, err := fs.ReadLink(v.Sys, path.Join("bus/pci/devices", below, "physfn")); err == nil {
		kind = "a virtual function"
	}
	if l.PhysPort != "" {
		kind += ", port " + l.PhysPort
	}
	switch {
	case bus == "":
		return cannotTell(p.String(), "the device has no hardware of its own, as with Soft-RoCE", "a NIC with RDMA")
	case own == below:
		return ok(p.String(), "%s on the %s bus, function %s, %s", name, bus, below, kind)
	case p.Number > 1 || len(p.Device.Ports) > 1 || l.SlaveKind != "" || l.Kind != "":
		return ok(p.String(), "the device is on function %s, and the interface of this port on %s (%s)", own, below, kind)
	}
	return problem(p.String(), fmt.Sprintf("the device is on function %q, and its interface %s on %q", own, p.Own.Name, below), aKnownFault)
}
