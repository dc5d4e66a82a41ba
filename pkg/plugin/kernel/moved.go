// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
)

// procfs is where the processes of the node are.
const procfs = "/proc"

const (
	// searchTime is how long a search in all namespaces takes at most, and lookTime that
	// in one of them. The programs of a namespace can change its links all the time, so
	// that a dump never ends, and a node can have thousands of namespaces. Only the
	// attachment with the missing link waits. A busy node must find the link too.
	searchTime = 30 * time.Second
	lookTime   = time.Second
)

// removeElsewhere removes links with our marks from the other namespaces of the node. A
// link that leaves its namespace loses addresses and routes, but keeps alias and MAC. A
// namespace that cannot be read is left out: its programs must not stop the DEL of
// another pod.
func (r children) removeElsewhere(ctx context.Context) error {
	if len(r) == 0 {
		return nil
	}
	return r[0].eachNamespace(ctx, func(look context.Context, _ string, c *rtnl.Conn) (bool, error) {
		links, err := c.Links(look)
		if err != nil {
			return true, nil //nolint:nilerr // what cannot be read has nothing
		}
		moved := slices.DeleteFunc(slices.Clone(links), func(l rtnl.Link) bool {
			return !slices.ContainsFunc(r, func(m child) bool { return m.moved(l) })
		})
		return true, remove(ctx, c, moved, links)
	})
}

// elsewhere returns our link in another namespace of the node, and the path of that
// namespace, "" if it is in none.
func (m child) elsewhere(ctx context.Context) (at string, is rtnl.Link) {
	_ = m.eachNamespace(ctx, func(look context.Context, path string, c *rtnl.Conn) (bool, error) { // what cannot be read has nothing
		links, err := c.Links(look)
		if i := slices.IndexFunc(links, m.moved); err == nil && i >= 0 {
			at, is = path, links[i]
		}
		return at == "", nil
	})
	return at, is
}

// moved says whether a link of another namespace is ours. There, the MAC alone proves
// nothing: a later pod with our address has it too.
func (m child) moved(l rtnl.Link) bool { return m.isKind(l) && l.Alias == m.op.Mark }

// visit looks into a namespace, in the time of its context. It says whether to go on.
type visit func(look context.Context, path string, c *rtnl.Conn) (more bool, err error)

// eachNamespace calls fn for the namespaces of the node but the pod's, until fn returns
// false or an error, or searchTime is over. It leaves out namespaces that cannot be
// opened, because most of them are just ending. Without procfs, nothing is known of other
// namespaces.
func (k *Kernel) eachNamespace(ctx context.Context, fn visit) error {
	ctx, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	for ns, err := range netns.Each(procfs) {
		if ctx.Err() != nil {
			return nil
		}
		if err != nil || ns.ID == k.ID() {
			continue
		}
		if more, err := lookInto(ctx, ns, fn); err != nil || !more {
			return err
		}
	}
	return nil
}

// lookInto calls fn for a namespace that may be entered.
func lookInto(ctx context.Context, ns *netns.Namespace, fn visit) (more bool, err error) {
	var c *rtnl.Conn
	if err := ns.Enter(func() (err error) {
		c, err = rtnl.Dial()
		return err
	}); err != nil {
		return true, nil //nolint:nilerr // it may not be entered
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	return fn(ctx, ns.Path, c)
}
