// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/probe"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// maxAttempts is how many attempts in a row may end because another machine has an
// address, before ADD gives up.
const maxAttempts = 3

// attempts makes the attachment, again with other addresses if another machine has
// one. After an error, what it left is as Add says.
func (n Node) attempts(ctx context.Context, k *pod, req conf.Request, s survey) (record.Record, error) {
	heard := answers{}
	for i := 1; ; i++ {
		rec, err := n.attempt(ctx, k, req, s)
		if err == nil {
			return rec, nil
		}
		taken := inUse(req, rec.Plan, err)
		if all := n.answersAll(heard, taken); all != nil {
			taken, err = nil, errors.Join(all, err)
		}
		again, rejectErr := n.reject(ctx, s.claim, taken, err)
		if !again || rejectErr != nil || i == maxAttempts {
			return rec, errors.Join(err, rejectErr, n.abandon(ctx, k, rec, err))
		}
	}
}

// attempt makes the attachment with the addresses that the claim gives now. After an
// error all is undone but the link through which another IPAM plugin releases its
// lease. An *plan.UndoError in the error says that more is left. The leases and the
// record stay: reject or abandon comes next.
func (n Node) attempt(ctx context.Context, k *pod, req conf.Request, s survey) (record.Record, error) {
	rec := n.newRecord(k, req)
	rec.LeftOut = s.leftOut
	err := n.leaseAndPerform(ctx, k, req, s.claim, &rec)
	if err != nil {
		before, _ := n.teardown(rec)
		err = errors.Join(err, n.undoInGIDOrder(context.WithoutCancel(ctx), n.refCounted(k, rec), before))
	}
	return rec, err
}

// reject puts addresses that are in use into quarantine, and returns whether another
// attempt gets others. It does nothing without such addresses, or if something of ours
// is left in the kernel.
func (n Node) reject(ctx context.Context, claim *lease.Claim, taken []probe.Taken, cause error) (again bool, err error) {
	if len(taken) == 0 || undoFailed(cause) {
		return false, nil
	}
	targets := make([]plan.Target, 0, len(taken))
	for _, t := range taken {
		n.Log.Warn("address is in use", "address", t.Addr, "by", t.By, "interface", t.Link, "what", t.What)
		targets = append(targets, t.Target)
	}
	return claim.Reject(ctx, targets)
}

// addressInUse returns the address that another ipvlan of the same NIC has. A link-local
// address is not leased.
func addressInUse(p plan.Plan, has *kernel.AddressInUseError) []probe.Taken {
	for _, i := range p.Interfaces {
		for _, a := range i.Addresses {
			if a.Prefix.Addr() == has.Addr {
				return []probe.Taken{{Target: plan.Target{Link: i.Name, MAC: i.MAC, Addr: has.Addr}, What: has.Error()}}
			}
		}
	}
	return nil
}

// inUse returns the addresses that an ADD found to be in use. Another host answered for
// them, another ipvlan has them, or another child of the same NIC has the MAC that is made
// from them. A link that was moved out of a namespace before its DEL is such a child.
func inUse(req conf.Request, p plan.Plan, cause error) []probe.Taken {
	var taken *probe.TakenError
	if errors.As(cause, &taken) {
		return taken.Taken
	}
	var has *kernel.AddressInUseError
	if errors.As(cause, &has) {
		return addressInUse(p, has)
	}
	var busy *kernel.MACInUseError
	if !errors.As(cause, &busy) || !plan.MACFromAddress(req) {
		return nil
	}
	var out []probe.Taken
	for _, i := range p.Interfaces {
		if i.Name == busy.Link {
			t := plan.Target{Link: i.Name, MAC: i.MAC, Addr: i.Addresses[0].Prefix.Addr()}
			out = append(out, probe.Taken{Target: t, By: i.MAC, What: busy.Error()})
		}
	}
	return out
}

// releaseTime is how long a failed ADD waits for its leases to be released. If that
// takes longer, the DEL that follows releases them.
const releaseTime = 30 * time.Second

// abandon releases the lease of a failed ADD, undoes what attempt left, and deletes the
// record. If something of ours stays in the kernel, lease and record stay, so that the
// address is not given away and DEL can finish. If the plan has addresses that could not
// be released, the record stays too, and the link that their IPAM plugin needs. A plan
// without addresses needs no record: DEL calls the IPAM plugin without one too.
func (n Node) abandon(ctx context.Context, k *pod, rec record.Record, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	var notReleased error
	if !undoFailed(cause) {
		notReleased = n.Addresses.ReleaseUnfinished(ctx, rec)
	}
	if len(rec.Plan.Addresses()) > 0 && (undoFailed(cause) || notReleased != nil) {
		return notReleased
	}
	_, after := n.teardown(rec)
	err := errors.Join(notReleased, n.undoInGIDOrder(ctx, n.refCounted(k, rec), after))
	if undoFailed(cause) || undoFailed(err) {
		return err
	}
	return errors.Join(err, n.Records.Delete(rec.Attachment))
}

// undoFailed says whether the undoing that followed a failure failed too.
func undoFailed(cause error) bool {
	var undo *plan.UndoError
	return errors.As(cause, &undo)
}
