// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
)

const deleting = "delete macvlan"

// remove removes links of a pod, given all that are there; that one is gone
// already is success.
//
// A link that goes by itself waits until nobody on the machine looks at it any
// more (synchronize_net in unregister_netdevice_many, netdev_run_todo), which
// is most of the time that its removal takes. Links of one group go together,
// and wait once (rtnl_group_dellink).
func remove(ctx context.Context, pod *rtnl.Conn, doomed, all []rtnl.Link) error {
	if len(doomed) > 1 && removeTogether(ctx, pod, doomed, all) {
		return nil
	}
	return removeEach(ctx, pod, doomed)
}

// removeTogether makes a group of the links and removes the group, and says
// whether that worked: it does not before Linux 4.1, nor while somebody has put
// a link into the group that cannot be removed. No signal comes between the
// messages, as they go in one sendmsg.
//
// Another process of ours that does the same in this pod may take the same
// number. Then the first of them removes the links of both, which both are
// there to remove.
func removeTogether(ctx context.Context, pod *rtnl.Conn, doomed, all []rtnl.Link) bool {
	group := freeGroup(all)
	var changes []rtnl.Change
	for _, l := range doomed {
		changes = append(changes, rtnl.SetGroup(l.Index, group))
	}
	for _, err := range pod.Batch(ctx, append(changes, rtnl.DeleteGroup(group))...) {
		if ignore(err, unix.ENODEV) != nil {
			return false
		}
	}
	return true
}

// firstGroup is "roce" in ASCII, a number that nobody else would think of.
const firstGroup = 0x726f6365

// freeGroup returns the number of a group that none of the links is in, so that
// none but those that we put into it go with it.
func freeGroup(all []rtnl.Link) uint32 {
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

// removeEach removes links one after the other.
func removeEach(ctx context.Context, pod *rtnl.Conn, doomed []rtnl.Link) error {
	var changes []rtnl.Change
	for _, l := range doomed {
		changes = append(changes, rtnl.DeleteLink(l.Index))
	}
	var errs []error
	for i, err := range pod.Each(ctx, changes...) {
		errs = append(errs, classify(deleting, doomed[i].Name, ignore(err, unix.ENODEV)))
	}
	return errors.Join(errs...)
}
