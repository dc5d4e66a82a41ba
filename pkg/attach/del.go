// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"

	"github.com/roce-cni/roce-cni/pkg/apply"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/record"
)

// Del takes an attachment away. It needs nothing but the record: no master, no
// namespace, no configuration that still holds. Without a record it removes
// the link that carries the attachment's mark and the leases that carry its
// name. What is gone already is success. When the kernel part fails, lease and
// record stay for the next DEL.
func (n Node) Del(ctx context.Context, d conf.Del) error {
	unlock, err := n.Records.Lock(ctx, d.ContainerID)
	if err != nil && cnierr.CodeOf(err) == cnierr.IO {
		return errors.Join(err, n.undo(ctx, d.Netns, plan.NetnsID{}, plan.Unrecorded(d.ContainerID, d.IfName)))
	}
	if err != nil {
		return err
	}
	defer unlock()
	return n.remove(ctx, d.ContainerID, d.IfName, d.Netns)
}

// remove takes an attachment away with the container's lock held.
func (n Node) remove(ctx context.Context, id conf.ContainerID, ifName conf.LinkName, netns string) error {
	rec, err := n.Records.Load(id, ifName)
	ops := rec.Plan.Ops.Teardown()
	switch {
	case errors.Is(err, record.ErrNotExist):
		rec = record.Record{ContainerID: id, IfName: ifName, Netns: netns}
		ops = plan.Unrecorded(id, ifName)
	case err != nil && cnierr.CodeOf(err) == cnierr.Unreadable:
		n.Log.Warn("the record is unreadable: removing what carries the attachment's mark", "error", err)
		rec = record.Record{ContainerID: id, IfName: ifName, Netns: netns}
		ops = plan.Unrecorded(id, ifName)
	case err != nil:
		return err
	case netns == "":
		netns = rec.Netns
	}
	if err := n.undo(ctx, netns, rec.NetnsID, ops); err != nil {
		return err
	}
	if err := n.Leases.Release(ctx, rec); err != nil {
		return err
	}
	return n.Records.Delete(id, ifName)
}

// undo undoes operations in the namespace at netns, if it is still the one
// that they were done in (the zero want is any). A namespace that is gone took
// everything of ours with it.
func (n Node) undo(ctx context.Context, netns string, want plan.NetnsID, ops plan.Ops) error {
	if netns == "" || len(ops) == 0 {
		return nil
	}
	k, err := n.Open(netns)
	if errors.Is(err, kernel.ErrNetnsGone) || errors.Is(err, kernel.ErrHostNetns) {
		return nil
	}
	if err != nil {
		return err
	}
	defer k.Close()
	if want != (plan.NetnsID{}) && k.ID() != want {
		return nil
	}
	return apply.Undo(ctx, n.steps(k), ops)
}
