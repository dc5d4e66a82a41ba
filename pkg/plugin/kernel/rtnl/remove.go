// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// DeleteLinks removes links and returns the result of each. all are the links
// of the namespace. For a link that is already gone the result is success.
//
// The removal of a single link takes long, because it waits until no code on
// the machine looks at the link any more (synchronize_net in
// unregister_netdevice_many, netdev_run_todo). Links in one group are removed
// together and wait once (rtnl_group_dellink).
func (c *Conn) DeleteLinks(ctx context.Context, doomed, all []Link) []error {
	if len(doomed) > 1 && c.deleteTogether(ctx, doomed, all) {
		return make([]error, len(doomed))
	}
	var changes []Change
	for _, l := range doomed {
		changes = append(changes, DeleteLink(l.Index))
	}
	errs := c.Each(ctx, changes...)
	for i := range errs {
		if errors.Is(errs[i], unix.ENODEV) {
			errs[i] = nil
		}
	}
	return errs
}

// deleteTogether puts the links into a group and removes the group. It says
// whether that worked. It does not work before Linux 4.1, and not while the
// group has a link that cannot be removed, which another program put there. One
// sendmsg has all messages, so that no signal comes between them.
//
// Another roce process that does the same in this namespace may use the same
// group number. Then the first of the two removes the links of both. That is
// correct, because both want their links removed.
func (c *Conn) deleteTogether(ctx context.Context, doomed, all []Link) bool {
	group := freeGroup(all)
	var changes []Change
	for _, l := range doomed {
		changes = append(changes, setGroup(l.Index, group))
	}
	for _, err := range c.Batch(ctx, append(changes, deleteGroup(group))...) {
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return false
		}
	}
	return true
}

// firstGroup is "roce" in ASCII, a number that other programs hardly use.
const firstGroup = 0x726f6365

// freeGroup returns the number of a group without links, so that only the links
// that we put into it are removed with it.
func freeGroup(all []Link) uint32 {
	taken := map[uint32]bool{}
	for _, l := range all {
		taken[l.Group] = true
	}
	group := uint32(firstGroup)
	for taken[group] {
		group++
	}
	return group
}
