// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package hwtest tests whether RoCE NICs and their drivers behave as roce-cni assumes,
// and collects what the kernel tells about them in one file without names and
// addresses of the user.
//
// Each step asks the kernel through the code that the plugin uses, and compares the
// answer with what the kernel tells elsewhere. The steps of this file change nothing,
// and they can be repeated on a recording. It is for the program roce-hwtest only. Read this file
// first, then look.go and the files of the steps: find.go and refuse.go change nothing,
// mutate.go, fill.go, checks.go, faults.go and disrupt.go do (slaves.go restores bonds),
// pair.go is between two pods of a node, peer.go between two nodes. rows.go has what was
// proven by which step, archive.go the file, usual.go the names that it cannot replace.
package hwtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
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
	look   func(ctx context.Context, v view) []report.Finding
}

// Steps returns the steps that change nothing, in the order in which they run.
func Steps() []Step {
	return []Step{
		driverStack(), devices(), ports(), hardware(), discovery(), hostGIDs(),
		modes(), refusals(), kinds(), layers(), vfTrust(),
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
	line := func(name string) string {
		b, err := fs.ReadFile(root, name)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
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
		return cnierr.New(cnierr.NoRDMA, "list", what, discover.LoadDriver, "the kernel has no RDMA: %w", err)
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
	return s.look(ctx, v)
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
func (v view) text(name string) string {
	b, err := fs.ReadFile(v.Sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
