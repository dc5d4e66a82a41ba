// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// DeleteLinks removes links, given all that the namespace has, and returns the
// result of each; that one is gone already is success.
//
// A link that goes by itself waits until nobody on the machine looks at it any
// more (synchronize_net in unregister_netdevice_many, netdev_run_todo), which
// is most of the time that its removal takes. Links of one group go together,
// and wait once (rtnl_group_dellink).
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

// deleteTogether makes a group of the links and removes the group, and says
// whether that worked: it does not before Linux 4.1, nor while somebody has put
// a link into the group that cannot be removed. No signal comes between the
// messages, as they go in one sendmsg.
//
// Another process of ours that does the same in this namespace may take the
// same number. Then the first of them removes the links of both, which both are
// there to remove.
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

// firstGroup is "roce" in ASCII, a number that nobody else would think of.
const firstGroup = 0x726f6365

// freeGroup returns the number of a group that none of the links is in, so that
// none but those that we put into it go with it.
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
