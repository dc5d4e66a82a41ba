// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/kernel/netns"
	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// procfs is where the processes of the node are.
const procfs = "/proc"

// removeElsewhere removes links with our marks from the other namespaces of the node. A
// link that leaves its namespace loses addresses and routes, but keeps alias and MAC. What
// cannot be read has nothing of ours: another pod must not be able to stop this one.
func (r macvlans) removeElsewhere(ctx context.Context) error {
	if len(r) == 0 {
		return nil
	}
	return r[0].eachNamespace(func(_ string, c *rtnl.Conn) (bool, error) {
		links, err := c.Links(ctx)
		if err != nil {
			return ctx.Err() == nil, nil
		}
		moved := slices.DeleteFunc(slices.Clone(links), func(l rtnl.Link) bool {
			return !slices.ContainsFunc(r, func(m macvlan) bool { return m.moved(l) })
		})
		return true, remove(ctx, c, moved, links)
	})
}

// elsewhere returns our link in another namespace of the node, and the path of that
// namespace, "" if it is in none.
func (m macvlan) elsewhere(ctx context.Context) (at string, is rtnl.Link) {
	_ = m.eachNamespace(func(path string, c *rtnl.Conn) (bool, error) { // what cannot be read has nothing
		links, err := c.Links(ctx)
		if i := slices.IndexFunc(links, m.moved); err == nil && i >= 0 {
			at, is = path, links[i]
		}
		return at == "", nil
	})
	return at, is
}

// moved says whether a link of another namespace is ours. There, the MAC alone proves
// nothing: a later pod with our address has it too.
func (m macvlan) moved(l rtnl.Link) bool { return l.Kind == "macvlan" && l.Alias == m.op.Mark }

// eachNamespace calls fn for the namespaces of the node but the pod's, until fn returns
// false or an error. It leaves out namespaces that cannot be opened, because most of them
// are just ending.
func (k *Kernel) eachNamespace(fn func(path string, c *rtnl.Conn) (bool, error)) error {
	paths, _, err := netns.Paths(procfs)
	if err != nil {
		return nil //nolint:nilerr // without procfs, nothing is known of other namespaces
	}
	seen := map[plan.NetnsID]bool{k.id: true}
	for _, path := range paths {
		more, err := k.lookInto(path, seen, fn)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// lookInto calls fn for the namespace at a path, unless it was seen before.
func (k *Kernel) lookInto(path string, seen map[plan.NetnsID]bool, fn func(path string, c *rtnl.Conn) (bool, error)) (more bool, err error) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil || seen[plan.NetnsID{Dev: st.Dev, Ino: st.Ino}] {
		return true, nil
	}
	fd, id, err := netns.Open(path)
	if err != nil || seen[id] {
		return true, nil //nolint:nilerr // it has ended
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written to it
	seen[id] = true
	var c *rtnl.Conn
	if err := netns.Enter(fd, path, func() (err error) {
		c, err = rtnl.Dial()
		return err
	}); err != nil {
		return true, nil //nolint:nilerr // it may not be entered
	}
	defer c.Close()
	return fn(path, c)
}
