// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// namespace is where the operations of a run act.
type namespace struct {
	*Kernel
	place plan.Place
	conn  *rtnl.Conn
}

// in implements onLink.
func (n namespace) in() namespace { return n }

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
	return append(before, plan.Op{Place: n.place, Kind: k}.Commands(plan.NetnsName(n.path))...)
}

// ip returns an ip(8) command in the namespace.
func (n namespace) ip(format string, args ...any) string {
	command := " " + shell.Command(format, args...)
	if n.place == plan.Host {
		return "ip" + command
	}
	return plan.IP(plan.NetnsName(n.path)) + command
}

const (
	// searchTime is how long a search in all namespaces takes at most, and lookTime that
	// in one of them. The programs of a namespace can change its links all the time, so
	// that a dump never ends, and a node can have thousands of namespaces. Only the
	// attachment with the missing link waits. A busy node must find the link too.
	searchTime = 30 * time.Second
	lookTime   = time.Second
)

// removeElsewhere removes links with our marks from the other namespaces of the node. A
// link that leaves its namespace loses addresses and routes, but keeps alias and MAC.
func (r children) removeElsewhere(ctx context.Context) error {
	if len(r) == 0 {
		return nil
	}
	for look, o := range r[0].others(ctx) {
		moved := slices.DeleteFunc(slices.Clone(o.links), func(l rtnl.Link) bool {
			return !slices.ContainsFunc(r, func(m child) bool { return m.moved(l) })
		})
		if err := remove(look, o.conn, moved, o.links); err != nil {
			return err
		}
	}
	return nil
}

// elsewhere returns our link in another namespace of the node, and the path of that
// namespace, "" if it is in none.
func (m child) elsewhere(ctx context.Context) (at string, is rtnl.Link) {
	for _, o := range m.others(ctx) {
		if i := slices.IndexFunc(o.links, m.moved); i >= 0 {
			return o.path, o.links[i]
		}
	}
	return "", rtnl.Link{}
}

// moved says whether a link of another namespace is ours. There, the MAC alone proves
// nothing: a later pod with our address has it too.
func (m child) moved(l rtnl.Link) bool { return m.isKind(l) && l.Alias == m.op.Mark }

// other is another namespace of the node than the pod's.
type other struct {
	path  string
	conn  *rtnl.Conn
	links []rtnl.Link
}

// others yields the other namespaces of the node, until searchTime is over, each with the
// context to look into it. It leaves out namespaces that cannot be opened or read: most of
// them are just ending, and programs in one must not stop the DEL of another pod. Without
// procfs, nothing is known of other namespaces.
func (k *Kernel) others(ctx context.Context) iter.Seq2[context.Context, other] {
	return func(yield func(context.Context, other) bool) {
		ctx, cancel := context.WithTimeout(ctx, searchTime)
		defer cancel()
		for ns, err := range netns.Each(k.procfs) {
			if ctx.Err() != nil || err == nil && ns.ID != k.ID() && !lookInto(ctx, ns, yield) {
				return
			}
		}
	}
}

func lookInto(ctx context.Context, ns *netns.Namespace, yield func(context.Context, other) bool) (more bool) {
	var c *rtnl.Conn
	if err := ns.Enter(func() (err error) {
		c, err = rtnl.Dial()
		return err
	}); err != nil {
		return true
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	links, err := c.Links(ctx)
	return err != nil || yield(ctx, other{ns.Path, c, links})
}

// ErrInUse is in the error of Undo about a link on the host that stays, because something of
// another program stands on it.
var ErrInUse = errors.New("another program uses it")

// upon yields each link of another program that stands on a link of the host, in any
// namespace of the node, and where the link is.
func (k *Kernel) upon(ctx context.Context) iter.Seq2[rtnl.Link, string] {
	return func(yield func(l rtnl.Link, at string) bool) {
		stop := func(links []rtnl.Link, host int32, at string) bool {
			return slices.ContainsFunc(links, func(l rtnl.Link) bool {
				return l.Lower.Index != 0 && l.Lower.NSID == host && !strings.HasPrefix(l.Alias, plan.MarkPrefix) && !yield(l, at)
			})
		}
		stopIn := func(ctx context.Context, o other) bool {
			host, err := o.conn.NSID(ctx, k.hostNS.FD())
			return err == nil && host != rtnl.NoNSID && stop(o.links, host, o.path)
		}
		if links, err := k.host.Links(ctx); err == nil && stop(links, rtnl.NoNSID, "host") {
			return
		}
		if k.pod != nil {
			if links, err := k.pod.Links(ctx); err == nil && stopIn(ctx, other{k.path, k.pod, links}) {
				return
			}
		}
		for look, o := range k.others(ctx) {
			if stopIn(look, o) {
				return
			}
		}
	}
}

// unused returns ErrInUse if a link of the host has an address, is a port of another link,
// or carries a link of another program.
func (k *Kernel) unused(ctx context.Context, l rtnl.Link) error {
	addrs, err := k.host.Addresses(ctx, l.Index)
	if err != nil {
		return err
	}
	addrs = slices.DeleteFunc(addrs, func(a rtnl.Address) bool { return a.Prefix.Addr().IsLinkLocalUnicast() })
	if len(addrs) > 0 {
		return fmt.Errorf("%w: it has %s", ErrInUse, list(addrs))
	}
	if l.Master != 0 {
		return fmt.Errorf("%w: it is a port of a %s", ErrInUse, l.SlaveKind)
	}
	for on, at := range k.upon(ctx) {
		if on.Lower.Index == l.Index {
			return fmt.Errorf("%w: %q in the namespace %s stands on it", ErrInUse, on.Name, at)
		}
	}
	return nil
}

// keepModes refuses ipvlans on a NIC with one of another program that has another mode. All
// ipvlans of a NIC have one mode, and the kernel would give ours to the other one
// (ipvlan_set_port_mode).
func (k *Kernel) keepModes(ctx context.Context, rails []plan.RailFacts) {
	for l, at := range k.upon(ctx) {
		i := slices.IndexFunc(rails, func(r plan.RailFacts) bool { return r.Fault == nil && r.Parent.Index == l.Lower.Index })
		if i >= 0 && l.Kind == conf.L2.Kind() && l.Mode != string(conf.L2) {
			rails[i].Fault = cnierr.New(cnierr.BadParent, "use master", string(rails[i].Parent.Name),
				"set mode l2 in the network of the other interface, or use another NIC",
				"the ipvlan %q in the namespace %s has mode %s, and all ipvlans of a NIC have one mode", l.Name, at, l.Mode)
		}
	}
}
