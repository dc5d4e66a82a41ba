// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"encoding/json"
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

	rec, err := n.Records.Load(d.ContainerID, d.IfName)
	switch {
	case err == nil:
		return n.remove(ctx, rec, d.Netns, n.leaser(rec.IPAM).Release)
	case errors.Is(err, record.ErrNotExist):
	case cnierr.CodeOf(err) == cnierr.Unreadable:
		n.Log.Warn("the record is unreadable: removing what carries the attachment's mark", "error", err)
	default:
		return err
	}
	return n.remove(ctx, lost(d), d.Netns, n.releaseAny)
}

// lost returns what a record would have said, as far as DEL's input tells.
func lost(d conf.Del) record.Record {
	return record.Record{
		Network: d.Network, ContainerID: d.ContainerID, IfName: d.IfName, Netns: d.Netns,
		IPAM: d.IPAM, Config: json.RawMessage(d.Raw),
		Plan: plan.Plan{Ops: plan.Unrecorded(d.ContainerID, d.IfName)},
	}
}

// releaseAny releases the leases of an attachment of which nobody knows whether
// it has any: its record is lost, or its ADD did not come to an end. A
// delegated plugin that is not installed has no say: ADD could not have leased
// from it.
func (n Node) releaseAny(ctx context.Context, rec record.Record) error {
	err := n.Pools.Release(ctx, rec)
	if err != nil || rec.IPAM == "" || rec.IPAM == conf.PoolType {
		return err
	}
	if err := n.Delegate.Release(ctx, rec); err != nil && cnierr.CodeOf(err) != cnierr.BadConfig {
		return err
	}
	return nil
}

// remove takes an attachment away with the container's lock held. netns is
// where its namespace is now; "" is where it was.
func (n Node) remove(ctx context.Context, rec record.Record, netns string, release func(context.Context, record.Record) error) error {
	if netns == "" {
		netns = rec.Netns
	}
	if err := n.undo(ctx, netns, rec.NetnsID, rec.Plan.Ops.Teardown()); err != nil {
		return err
	}
	if err := release(ctx, rec); err != nil {
		return err
	}
	return n.Records.Delete(rec.ContainerID, rec.IfName)
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
