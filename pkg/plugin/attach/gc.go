// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// GC removes every attachment of a network that is not among the valid ones, whether
// it has a record or only leases. It returns all failures. An attachment that ADD
// finished after GC began stays, because the list cannot have it. GC also removes
// what killed calls left before they wrote a record. It releases leases without
// record only if the network leases from our pools: behind another plugin they belong
// to that plugin.
func (n Node) GC(ctx context.Context, gc conf.GC) error {
	began := n.Now()
	keys, err := n.Records.List()
	errs := []error{err}
	held, err := n.Addresses.Held(ctx, gc)
	errs = append(errs, err)
	for _, k := range append(keys, held...) {
		if slices.Contains(gc.Valid, k) {
			continue
		}
		errs = append(errs, n.collect(ctx, gc, k, began))
	}
	errs = append(errs, n.Records.Sweep(ctx), n.Addresses.GC(ctx, gc))
	return errors.Join(errs...)
}

// collect removes one attachment if its record names the network and was saved before a
// time. Without a record, it removes the leases of the attachment, and a record that is
// only partly written.
//
// It reads the record before it waits for the lock: the ADD of another network may take
// a minute. A record that stays then stays later too, because each write makes it newer.
func (n Node) collect(ctx context.Context, gc conf.GC, k conf.Attachment, before time.Duration) error {
	stays := func(rec record.Record) bool { return rec.Network != gc.Network || rec.Saved >= before }
	if rec, err := n.Records.Load(k); err == nil && stays(rec) {
		return nil
	}
	unlock, err := n.Records.Lock(ctx, k.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()

	rec, err := n.Records.Load(k)
	switch {
	case errors.Is(err, record.ErrNotExist):
		if err := n.Addresses.ReleaseHeld(ctx, gc, k); err != nil {
			return err
		}
		return n.Records.Delete(k) // what an ADD left that was killed while it wrote
	case err != nil:
		return err
	case stays(rec):
		return nil
	}
	return n.Remove(ctx, rec, "", n.Addresses.Release)
}

// ForgetReaped removes what is left of an attachment with leases that were reaped: its
// record, and what it did on the host. netns is the namespace of the leases, which is
// gone. ForgetReaped leaves alone an attachment with a record of another namespace, and
// one that a call works on: that call does it. A failure is logged, because the call that
// has reaped the leases is about another pod.
func (n Node) ForgetReaped(ctx context.Context, at conf.Attachment, netns netns.ID) {
	unlock, ok, err := n.Records.TryLock(ctx, at.ContainerID)
	if ok {
		defer unlock()
		var rec record.Record
		rec, err = n.Records.Load(at)
		if err == nil && rec.NetnsID == netns {
			err = n.Remove(ctx, rec, "", n.Addresses.Release)
		}
	}
	if err != nil && !errors.Is(err, record.ErrNotExist) {
		n.Log.Warn("the record of a pod that is gone stays", "container", at.ContainerID, "interface", at.IfName, "error", err)
	}
}

// GiveBack undoes what an attachment did on the host, if its namespace is gone: RDMA devices
// get their names and settings back. DEL removes all else. The caller holds the container's
// lock.
func (n Node) GiveBack(ctx context.Context, rec record.Record) error {
	return n.undoOnHost(ctx, rec, n.withoutMoved(rec))
}
