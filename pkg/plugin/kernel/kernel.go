// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package kernel reads facts, and executes link, address, route, rule and sysctl
// operations in a namespace named by an open handle.
//
// It never acts in the ambient namespace, and never removes or replaces foreign
// objects. It stands between the plan, which it performs, and Linux, which no other
// package of ours configures. Read this file first, then run.go, one file for each
// kind of operation, facts.go for what is read, and package rtnl for the way to Linux.
package kernel

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// ErrNetnsGone is returned by Open when the path has no network namespace:
// nothing is there, or something else. What was in the namespace is gone with
// it.
var ErrNetnsGone = netns.ErrGone

// ErrHostNetns is returned by Open when the pod's namespace is the host's.
var ErrHostNetns = errors.New("the host's own network namespace")

// ErrRenamed is in the finding of Check about a link that exists under another
// name, whether it is otherwise right or not. Doing plan.Child again would
// not bring its name back.
var ErrRenamed = errors.New("the pod has renamed the interface")

// ErrNoSubnetRoute is in the finding of Check about an address that exists when
// the main table lacks the route to its subnet. Doing plan.Address again would
// not bring the route back.
var ErrNoSubnetRoute = errors.New("the main table has no route to its subnet")

// ErrRulesLeft is in the error of Undo when all is undone but rules, because there
// are more that agree with ours than Undo deletes. In a pod, these rules belong to
// the pod's own namespace, and end with it.
var ErrRulesLeft = errors.New("rules equal to ours are left: there are too many, or a program keeps adding them")

// Kernel acts on one host and one pod, or on the host alone. It is safe for concurrent use.
type Kernel struct {
	path   string // of the pod's namespace
	sys    fs.FS
	procfs string // where the processes of the node are
	hostNS *netns.Namespace
	podNS  *netns.Namespace // nil in a Kernel from OpenHost
	host   *rtnl.Conn
	pod    *rtnl.Conn
	adds   bool // links were made by this Kernel, so that no program can have moved them
}

const procfs = "/proc"

// Open opens two namespaces: that of the calling thread, which must be the
// host's, and the pod's at netnsPath. sys is the root of sysfs. The caller must
// Close the Kernel.
//
// Errors: ErrNetnsGone and ErrHostNetns, both as *cnierr.Error of code
// BadNetns; IO for what the kernel refuses.
func Open(netnsPath string, sys fs.FS) (*Kernel, error) {
	k := &Kernel{path: netnsPath, sys: sys, procfs: procfs}
	if err := k.open(); err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

// OpenHost opens only the namespace of the calling thread. It is for undoing operations
// on the host after the pod is gone. The caller must Close the Kernel. Errors: IO.
func OpenHost() (*Kernel, error) {
	k := &Kernel{procfs: procfs}
	if err := k.openHost(); err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

const opening = "open network namespace"

func (k *Kernel) openHost() (err error) {
	if k.hostNS, err = netns.Own(); err == nil {
		k.host, err = rtnl.Dial()
	}
	return classify(opening, "host", err)
}

func (k *Kernel) open() error {
	err := k.openHost()
	if err != nil {
		return err
	}
	if k.podNS, err = netns.Open(k.path); err != nil {
		return netnsError(k.path, err)
	}
	if k.podNS.ID == k.hostNS.ID {
		return cnierr.New(cnierr.BadNetns, opening, k.path,
			"remove the network from pods with hostNetwork: true; they have the NICs themselves", "is %w", ErrHostNetns)
	}
	err = k.Enter(func() (err error) {
		k.pod, err = rtnl.Dial()
		return err
	})
	return classify(opening, k.path, err)
}

func netnsError(path string, err error) error {
	if !errors.Is(err, ErrNetnsGone) {
		return classify(opening, path, err)
	}
	return cnierr.New(cnierr.BadNetns, opening, path,
		"the pod is gone, or CNI_NETNS is wrong: ip netns identify PID prints the namespace of a process", "%w", err)
}

// ID returns the identity of the pod's namespace, zero for a Kernel from
// OpenHost.
func (k *Kernel) ID() netns.ID {
	if k.podNS == nil {
		return netns.ID{}
	}
	return k.podNS.ID
}

// Close closes the sockets and the namespaces.
func (k *Kernel) Close() {
	for _, c := range []*rtnl.Conn{k.host, k.pod} {
		if c != nil {
			c.Close()
		}
	}
	k.hostNS.Close()
	k.podNS.Close()
}

// Enter runs fn in the pod's namespace; see netns.Namespace.
func (k *Kernel) Enter(fn func() error) error { return k.podNS.Enter(fn) }

// Start starts a program in the pod's namespace; see netns.Namespace.
func (k *Kernel) Start(cmd *exec.Cmd) (wait func() error, err error) { return k.podNS.Start(cmd) }

// EnterHost runs fn in the host's namespace; see netns.Namespace.
func (k *Kernel) EnterHost(fn func() error) error { return k.hostNS.Enter(fn) }

// Do does a run of operations, in as few messages to the kernel as possible. It
// returns the error of the first operation that fails; operations after that
// one may be done too. Each operation is idempotent and all or nothing; see
// plan.Op and plan.Executor.
func (k *Kernel) Do(ctx context.Context, run ...plan.Op) error {
	x, err := k.executor(run)
	if err != nil {
		return err
	}
	return x.do(ctx)
}

// Undo undoes a run. It leaves alone what is missing or not ours; that is
// success.
func (k *Kernel) Undo(ctx context.Context, run ...plan.Op) error {
	x, err := k.executor(run)
	if err != nil {
		return err
	}
	return x.undo(ctx)
}

// Check returns an error if something of a run is missing or different. Its
// hint has the commands that restore it.
func (k *Kernel) Check(ctx context.Context, run ...plan.Op) error {
	x, err := k.executor(run)
	if err != nil {
		return err
	}
	return x.check(ctx)
}

// damaged returns the finding of a Check: what differs from what Do made, and
// the commands that restore it.
func damaged(action, subject string, fix []string, format string, args ...any) error {
	return cnierr.New(cnierr.Damaged, action, subject, "restore it: "+strings.Join(fix, " && "), format, args...)
}
