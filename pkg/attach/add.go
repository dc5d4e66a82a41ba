// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/apply"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/lease"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/probe"
	"github.com/roce-cni/roce-cni/pkg/record"
	"github.com/roce-cni/roce-cni/pkg/result"
)

// maxAddresses is how many attempts in a row may end because another machine has an
// address, before ADD gives up.
const maxAddresses = 3

// Add makes an attachment and returns what to tell the runtime. It is all or nothing:
// after an error there is no link, rule, route, lease or file of the attachment. The
// exception is an error that says that undoing or releasing failed: then the record
// stays and DEL finishes. If the whole attachment exists already, Add changes nothing
// and returns the same result again.
func (n Node) Add(ctx context.Context, req conf.Request) (*current.Result, error) {
	unlock, err := n.Records.Lock(ctx, req.ContainerID)
	if err != nil {
		return nil, err
	}
	defer unlock()

	k, err := n.open(req.Netns)
	if err != nil {
		return nil, err
	}
	defer k.Close()

	if standing, err := n.resume(ctx, k, req); standing != nil || err != nil {
		return standing, err
	}
	s, err := n.survey(ctx, k, req)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		rec, err := n.attempt(ctx, k, req, s)
		if err == nil {
			return result.Of(rec.Plan, req), nil
		}
		again, rejectErr := n.reject(ctx, s.claim, err)
		if !again || rejectErr != nil || try == maxAddresses {
			return nil, errors.Join(err, rejectErr, n.abandon(ctx, k, rec, err))
		}
	}
}

// attempt makes the attachment with the addresses that the claim gives now. After an
// error all is undone but the link through which another IPAM plugin releases its
// lease. An *apply.UndoError in the error says that more is left. The leases and the
// record stay: reject or abandon comes next.
func (n Node) attempt(ctx context.Context, k *pod, req conf.Request, s survey) (record.Record, error) {
	rec := n.record(k, req)
	rec.LeftOut = s.leftOut
	err := n.build(ctx, k, req, s.claim, &rec)
	if err != nil {
		before, _ := n.teardown(rec)
		err = errors.Join(err, n.undoAligned(context.WithoutCancel(ctx), n.sharing(k, rec), before))
	}
	return rec, err
}

// build leases, plans, and does. The lease comes first: it names the attachment, so a
// DEL finds it without a record. Each change in the kernel is on record before its
// effect. Other IPAM plugins may lease through the interface, so for all of them it is
// made first, without addresses.
func (n Node) build(ctx context.Context, k *pod, req conf.Request, claim *lease.Claim, rec *record.Record) error {
	if claim.NeedsLink() {
		if err := n.do(ctx, k, req, claim.Rails(), rec); err != nil {
			return err
		}
	}
	rails, err := claim.Acquire(ctx)
	if err != nil {
		return err
	}
	if err := n.do(ctx, k, req, rails, rec); err != nil {
		return err
	}
	rec.Plan.Ops = rec.Plan.Ops.Located(k.rdma.Located())
	n.warnUnaligned(*rec)
	rec.Committed, rec.Saved = true, n.Now()
	return n.Records.Save(*rec)
}

// do plans an attachment, records the plan, and does it. It repeats operations that
// are done already, which changes nothing.
func (n Node) do(ctx context.Context, k *pod, req conf.Request, rails []plan.Rail, rec *record.Record) error {
	p, err := plan.Make(req, rails)
	if err != nil {
		return err
	}
	rec.Plan, rec.Saved = p, n.Now()
	if err := n.Records.Save(*rec); err != nil {
		return err
	}
	return n.doAligned(ctx, n.sharing(k, *rec), p.Ops)
}

// record returns the record of the attachment before anything is planned.
func (n Node) record(k *pod, req conf.Request) record.Record {
	return record.Record{
		Network: req.Network, Attachment: req.Attachment, Pod: req.Pod,
		Netns: req.Netns, NetnsID: k.ID(), IPAM: req.IPAM.Type, Pool: req.IPAM.LeasePool(), Config: req.IPAM.Raw,
	}
}

// resume deals with what an earlier ADD of the same attachment left. If that finished
// in this namespace and all of it is in place, resume returns its result. Anything else
// is taken away with its lease, and the result is nil: this ADD starts from nothing. The
// pod gets its own address back, because the quarantine is for others.
func (n Node) resume(ctx context.Context, k *pod, req conf.Request) (*current.Result, error) {
	rec, err := n.Records.Load(req.Attachment)
	if errors.Is(err, record.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	here := rec.NetnsID == k.ID()
	if here {
		if err := fits(rec, req); err != nil {
			return nil, err
		}
	}
	if here && rec.Committed && len(examine(ctx, k, rec.Plan, nil).damage) == 0 && n.Addresses.CheckRepeated(ctx, req, rec) == nil {
		return result.Of(rec.Plan, req), nil
	}
	n.Log.Info("remove what an earlier ADD left", "container", req.ContainerID, "interface", req.IfName)
	return nil, n.remove(ctx, rec, req.Netns, n.Addresses.ReleaseUnfinished)
}

// fits refuses a request for an interface that another network of the pod, or
// another roce of the same list, has made.
func fits(rec record.Record, req conf.Request) error {
	const op, hint = "add interface", "choose another interface name in the pod's networks annotation"
	if rec.Network != req.Network {
		return cnierr.New(cnierr.BadEnv, op, string(req.IfName), hint, "the pod has an interface of this name on the network %q", rec.Network)
	}
	if req.Prev != nil && len(rec.Plan.Ops.Links()) > 0 {
		return cnierr.New(cnierr.BadConfig, op, string(req.IfName), "list roce only once: with master, it already does all that it does for an adopted interface",
			"roce itself made this interface")
	}
	return nil
}

// reject puts the addresses that other hosts answered for into quarantine, and returns
// whether another attempt gets others. It does nothing after an error of another kind,
// or if something of ours is left in the kernel.
func (n Node) reject(ctx context.Context, claim *lease.Claim, cause error) (again bool, err error) {
	var taken *probe.TakenError
	if !errors.As(cause, &taken) || left(cause) {
		return false, nil
	}
	targets := make([]plan.Target, 0, len(taken.Taken))
	for _, t := range taken.Taken {
		n.Log.Warn("address is in use", "address", t.Addr, "by", t.By, "interface", t.Link)
		targets = append(targets, t.Target)
	}
	return claim.Reject(ctx, targets)
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
	if !left(cause) {
		notReleased = n.Addresses.ReleaseUnfinished(ctx, rec)
	}
	if len(rec.Plan.Addresses()) > 0 && (left(cause) || notReleased != nil) {
		return notReleased
	}
	_, after := n.teardown(rec)
	err := errors.Join(notReleased, n.undoAligned(ctx, n.sharing(k, rec), after))
	if left(cause) || left(err) {
		return err
	}
	return errors.Join(err, n.Records.Delete(rec.Attachment))
}

// left says whether the undoing that followed a failure failed too.
func left(cause error) bool {
	var undo *apply.UndoError
	return errors.As(cause, &undo)
}
