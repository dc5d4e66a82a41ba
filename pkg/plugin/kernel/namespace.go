// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// namespace is where the operations of a run act.
type namespace struct {
	*Kernel
	place plan.Place
	conn  *rtnl.Conn
}

// at returns the namespace of a place. A Kernel from OpenHost can do nothing in
// a pod.
func (k *Kernel) at(p plan.Place) (namespace, error) {
	n := namespace{k, p, k.pod}
	if p == plan.Host {
		n.conn = k.host
	}
	if n.conn == nil {
		return n, cnierr.New(cnierr.Bug, "execute operation in", p.String(), "", "its namespace is not open")
	}
	return n, nil
}

// orChoose returns the second half of a hint about a foreign rule or route: what keys of the
// configuration choose another one. On the host nothing can be chosen: table and priority are
// the same for all pods (plan.HostLinkTable).
func (n namespace) orChoose(keys string) string {
	if n.place == plan.Host {
		return ": roce needs its table and its priority there"
	}
	return ", or choose another " + keys
}

// enter runs fn in the namespace.
func (n namespace) enter(fn func() error) error {
	if n.place == plan.Host {
		return n.EnterHost(fn)
	}
	return n.Enter(fn)
}

// redo returns the commands that do an operation by hand. before are the
// commands that must run first, to remove what is in the way.
func (n namespace) redo(k plan.Kind, before ...string) []string {
	return append(before, plan.Op{Place: n.place, Kind: k}.Commands(n.netnsName())...)
}

// ip returns an ip(8) command in the namespace.
func (n namespace) ip(format string, args ...any) string {
	command := " " + shell.Command(format, args...)
	if n.place == plan.Host {
		return "ip" + command
	}
	return plan.IP(n.netnsName()) + command
}
