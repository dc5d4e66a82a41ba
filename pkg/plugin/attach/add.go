// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/plugin/result"
)

// Add makes an attachment and returns what to tell the runtime. It is all or nothing:
// after an error there is no link, rule, route, lease or record of the attachment. If
// undoing failed too, the error says so. Then lease and record stay, and DEL finishes.
// If only the release failed, the record stays if its plan has addresses. If the whole
// attachment exists already, Add changes nothing and returns the same result again.
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

	if earlier, err := n.resume(ctx, k, req); earlier != nil || err != nil {
		return earlier, err
	}
	if req, err = n.withServices(req); err != nil {
		return nil, err
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

// leaseAndPerform leases the addresses, plans, and performs the plan. If an IPAM plugin
// needs the interface, a plan without addresses is performed first. Otherwise the lease
// comes first: it names the attachment, so a DEL finds it without a record. Each change
// in the kernel is in the record before it is made.
func (n Node) leaseAndPerform(ctx context.Context, k *pod, req conf.Request, claim *lease.Claim, rec *record.Record) error {
	if claim.LinkFirst() {
		if err := n.planAndPerform(ctx, k, req, claim.Rails(), rec); err != nil {
			return err
		}
	}
	rails, err := claim.Acquire(ctx)
	if err != nil {
		return err
	}
	if err := n.planAndPerform(ctx, k, req, rails, rec); err != nil {
		return err
	}
	return n.commit(k, rec)
}

// planAndPerform makes the plan of an attachment, saves it in the record, and performs
// it. Operations that are done already are done again, without effect.
func (n Node) planAndPerform(ctx context.Context, k *pod, req conf.Request, rails []plan.Rail, rec *record.Record) error {
	p, err := plan.Make(req, rails)
	if err != nil {
		return err
	}
	rec.Plan, rec.Saved = p, n.Now()
	if err := n.Records.Save(*rec); err != nil {
		return err
	}
	return n.performInGIDOrder(ctx, k, n.refCounted(k, *rec), p.Ops)
}

// commit compares the GID indexes, and fails if a promised one has moved. It records that
// the ADD has finished, and where its GIDs are.
func (n Node) commit(k *pod, rec *record.Record) error {
	rec.Plan.Ops = rec.Plan.Ops.Located(k.rdma.Located())
	if err := n.compareGIDs(*rec); err != nil {
		return err
	}
	rec.Committed, rec.Saved = true, n.Now()
	return n.Records.Save(*rec)
}

// newRecord returns the record of the attachment before anything is planned.
func (n Node) newRecord(k *pod, req conf.Request) record.Record {
	return record.Record{
		Network: req.Network, Attachment: req.Attachment, Pod: req.Pod,
		Netns: req.Netns, NetnsID: k.ID(), IPAM: req.IPAM.Type, Pool: req.IPAM.LeasePool(), Config: req.IPAM.Raw, Digest: req.Digest,
	}
}
