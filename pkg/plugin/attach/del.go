// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Del removes an attachment. It needs only the record: no master, no namespace, no
// valid configuration. Without a record it removes the link that carries the
// attachment's mark. If the configuration has an ipam, it also releases the leases of
// the attachment. What is gone already counts as success. When the kernel part fails,
// lease and record stay for the next DEL.
func (n Node) Del(ctx context.Context, d conf.Del) error {
	unlock, err := n.Records.Lock(ctx, d.ContainerID)
	if cnierr.CodeOf(err) == cnierr.IO { // no state can be read: the pod loses at least what carries the mark
		return errors.Join(err, n.undo(ctx, unrecorded(d), d.Netns, plan.Unrecorded(d.Attachment)))
	}
	if err != nil {
		return err
	}
	defer unlock()

	rec, err := n.Records.Load(d.Attachment)
	switch {
	case err == nil:
		return n.Remove(ctx, rec, d.Netns, func(ctx context.Context, rec record.Record) error {
			return n.Addresses.ReleaseByDEL(ctx, rec, d)
		})
	case errors.Is(err, record.ErrNotExist):
	case cnierr.CodeOf(err) == cnierr.Unreadable:
		n.Log.Warn("the record is unreadable: everything with the attachment's mark is removed", "error", err)
	default:
		return err
	}
	return n.Remove(ctx, unrecorded(d), d.Netns, n.Addresses.ReleaseUnfinished)
}

// unrecorded returns the record that is missing, as far as DEL's input tells it.
func unrecorded(d conf.Del) record.Record {
	return record.Record{
		Network: d.Network, Attachment: d.Attachment, Netns: d.Netns,
		IPAM: d.IPAM, Config: json.RawMessage(d.Raw),
		Plan: plan.Plan{Ops: plan.Unrecorded(d.Attachment)},
	}
}

// Remove removes an attachment. The caller holds the container's lock. path is the
// path of its namespace, as the runtime says; "" means the recorded path. After a failure
// the record stays, with each lease of an address that may still be on a link, and the link
// that an IPAM plugin needs to release its lease.
func (n Node) Remove(ctx context.Context, rec record.Record, path string, release func(context.Context, record.Record) error) error {
	if rec.NetnsID == (netns.ID{}) { // no ADD wrote that: it could name what other pods have
		rec.Plan = plan.Plan{Ops: plan.Unrecorded(rec.Attachment)}
	}
	rec.Plan.Ops = n.withoutMoved(rec)
	before, after := n.teardown(rec)
	if err := n.undo(ctx, rec, path, append(n.carriers(rec), before...)); err != nil {
		return err
	}
	if err := release(ctx, rec); err != nil {
		return err
	}
	n.tellUsers(ctx, rec)
	// An IPAM plugin may have used all the time of the call.
	if err := n.undo(context.WithoutCancel(ctx), rec, path, after); err != nil {
		return err
	}
	return n.drop(ctx, rec)
}

// tellUsers tells of the programs of a pod that still use shared RDMA devices: they hold GID
// indexes, which read as unused. Such a program keeps a namespace that is being deleted.
func (n Node) tellUsers(ctx context.Context, rec record.Record) {
	if !slices.ContainsFunc(rec.Plan.Ops, sharesDevice) {
		return
	}
	r := n.Machine.RDMA("", nil)
	defer r.Close()
	users, err := r.Users(ctx, rec.Plan.Ops, rec.NetnsID)
	if len(users) > 0 || err != nil {
		n.Log.Warn("programs of the pod hold its GID indexes until they end", "container", rec.ContainerID, "users", cnierr.Some(users), "error", err)
	}
	if len(users) == 0 || n.Held == nil {
		return
	}
	h := calls.Held{Netns: rec.NetnsID.Ino, BootID: n.Records.BootID, Since: n.Now()}
	for g := range plan.All[plan.GID](rec.Plan.Ops) {
		h.Device, h.Port = g.Device.Name, g.Device.Port
		for _, index := range g.Indexes() {
			h.Index = index
			n.Held(h)
		}
	}
}

// sharesDevice says whether an operation is about an RDMA device in the host's namespace.
func sharesDevice(op plan.Op) bool {
	return plan.Is[plan.Port](op) && op.Place == plan.Host
}

// carriers returns the addresses to take off links that an IPAM plugin may still need,
// without those that another attachment of the pod has too.
func (n Node) carriers(rec record.Record) plan.Ops {
	if len(rec.Plan.Ops.Links()) == 0 || len(rec.Plan.Addresses()) == 0 {
		return nil
	}
	others := map[netip.Addr]bool{}
	siblings, _ := n.Records.Of(rec.ContainerID) // without them, the addresses of this attachment still must go
	for _, at := range siblings {
		if at == rec.Attachment {
			continue
		}
		if other, err := n.Records.Load(at); err == nil {
			for _, a := range other.Plan.Addresses() {
				others[a.Prefix.Addr()] = true
			}
		}
	}
	var op plan.Carriers
	for _, a := range rec.Plan.Addresses() {
		if !others[a.Prefix.Addr()] {
			op.Addresses = append(op.Addresses, a.Prefix.Addr())
		}
	}
	return plan.InPod(op)
}

// teardown returns the operations to undo before the leases are released, and those
// to undo after. No address is released while it is on a link, and dhcp releases its
// lease through the interface.
func (n Node) teardown(rec record.Record) (before, after plan.Ops) {
	if lease.Is(rec.IPAM) {
		return rec.Plan.Ops.OnLinks(), rec.Plan.Ops.Links()
	}
	return rec.Plan.Ops.Teardown(), nil
}

// undo undoes operations of a record in its namespace. If the namespace is gone, only
// what is on the host is left to undo.
func (n Node) undo(ctx context.Context, rec record.Record, path string, ops plan.Ops) error {
	if len(ops) == 0 {
		return nil
	}
	pod, err := n.OpenAgain(rec, path)
	if err != nil {
		return err
	}
	if pod == nil {
		return n.undoOnHost(ctx, rec, ops)
	}
	defer pod.Close()
	return pod.undo(ctx, ops)
}

// undoOnHost undoes what operations did on the host. It is for a pod without
// namespace.
func (n Node) undoOnHost(ctx context.Context, rec record.Record, ops plan.Ops) error {
	if ops = ops.At(plan.Host); len(ops) == 0 {
		return nil
	}
	host, err := n.openHost(rec.Attachment)
	if err != nil {
		return err
	}
	defer host.Close()
	return ops.Undo(ctx, host)
}

// OpenAgain opens the namespace that ADD worked in, also when only a process or a mount has
// it; nil if it is nowhere. If the record is lost, that is what the runtime names. The caller
// must Close it.
func (n Node) OpenAgain(rec record.Record, path string) (*Pod, error) {
	for at := range candidates(rec, path) {
		if at == "" || rec.NetnsID == (netns.ID{}) && at != path {
			continue
		}
		pod, err := n.open(at, rec.Attachment)
		if errors.Is(err, kernel.ErrNetnsGone) || errors.Is(err, kernel.ErrHostNetns) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if rec.NetnsID == (netns.ID{}) || pod.ID() == rec.NetnsID {
			return pod, nil
		}
		pod.Close()
	}
	return nil, nil
}

// candidates returns paths that the namespace of a record can have; one may be empty. The
// last one is looked for only if it is needed, because that can read all processes.
func candidates(rec record.Record, path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		_ = yield(path) && (path == rec.Netns || yield(rec.Netns)) && rec.NetnsID != (netns.ID{}) && yield(netns.Find(rec.Netns, rec.NetnsID))
	}
}
