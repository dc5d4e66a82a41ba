// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/lease"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/record"
	"github.com/roce-cni/roce-cni/pkg/result"
)

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
	rec, err := n.attempts(ctx, k, req, s)
	if err != nil {
		return nil, err
	}
	if why := rec.Plan.CutOff(req); why != "" {
		n.Log.Warn(why, "container", req.ContainerID, "network", req.Network, "pod", req.Pod.String())
	}
	return result.Of(rec.Plan, req), nil
}

// make leases, plans and does. The lease comes first: it names the attachment, so a DEL
// finds it without a record. Each change in the kernel is on record before its effect.
func (n Node) make(ctx context.Context, k *pod, req conf.Request, claim *lease.Claim, rec *record.Record) error {
	if claim.LinkFirst() {
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
	return n.commit(k, rec)
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

// commit records that the ADD has finished, and where its GIDs are.
func (n Node) commit(k *pod, rec *record.Record) error {
	rec.Plan.Ops = rec.Plan.Ops.Located(k.rdma.Located())
	if err := n.compareGIDs(*rec); err != nil {
		return err
	}
	rec.Committed, rec.Saved = true, n.Now()
	return n.Records.Save(*rec)
}

// record returns the record of the attachment before anything is planned.
func (n Node) record(k *pod, req conf.Request) record.Record {
	return record.Record{
		Network: req.Network, Attachment: req.Attachment, Pod: req.Pod,
		Netns: req.Netns, NetnsID: k.ID(), IPAM: req.IPAM.Type, Pool: req.IPAM.LeasePool(), Config: req.IPAM.Raw,
	}
}
