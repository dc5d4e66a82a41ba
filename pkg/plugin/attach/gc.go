// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
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
	return n.remove(ctx, rec, "", n.Addresses.Release)
}

// Forget removes what is left of an attachment of a pod that is gone: its leases, its
// record, and what it did on the host. It is for a DEL that never comes. The caller knows
// that the namespaces of the node are visible. Errors: those of MustBeGone.
func (n Node) Forget(ctx context.Context, at conf.Attachment) error {
	return n.withRecord(ctx, at, func(rec record.Record) error {
		if err := n.MustBeGone(rec); err != nil {
			return err
		}
		return n.remove(ctx, rec, "", n.Addresses.Release)
	})
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
			err = n.remove(ctx, rec, "", n.Addresses.Release)
		}
	}
	if err != nil && !errors.Is(err, record.ErrNotExist) {
		n.Log.Warn("the record of a pod that is gone stays", "container", at.ContainerID, "interface", at.IfName, "error", err)
	}
}

// GiveBack undoes what an attachment did on the host, if its namespace is gone: RDMA devices
// get their names and settings back. DEL removes all else.
func (n Node) GiveBack(ctx context.Context, at conf.Attachment) error {
	return n.withRecord(ctx, at, func(rec record.Record) error { return n.undoOnHost(ctx, rec, n.withoutMoved(rec)) })
}

// withRecord runs fn with the record of an attachment. While fn runs, the container's
// lock is held.
func (n Node) withRecord(ctx context.Context, at conf.Attachment, fn func(record.Record) error) error {
	unlock, err := n.Records.Lock(ctx, at.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := n.Records.Load(at)
	if err != nil {
		return err
	}
	return fn(rec)
}

// MustBeGone returns an error of code TryAgain if the namespace of an attachment exists.
func (n Node) MustBeGone(rec record.Record) error {
	pod, err := n.openAgain(rec, "")
	if err != nil || pod == nil {
		return err
	}
	pod.Close()
	return cnierr.New(cnierr.TryAgain, "forget interface", string(rec.IfName), "delete the pod: DEL removes the interface",
		"the namespace %q of its pod exists", rec.Netns)
}
