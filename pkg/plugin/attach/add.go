// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// maxAttempts is how many attempts in a row may end because another machine has an
// address, or because a promised GID index moved, before ADD gives up.
const maxAttempts = 3

// Add makes an attachment and returns what to tell the runtime. If the whole attachment
// exists already, Add changes nothing and returns the same result again. It makes up to
// three attempts: with other addresses if another host has one of them, and with the same
// ones if promised GID indexes moved meanwhile.
//
//   - After an error there is no link, rule, route, lease or record of the attachment.
//   - If the undo failed too, the error says so: lease and record stay, and DEL finishes.
//   - If only the release failed, the record stays if its plan has addresses.
func (n Node) Add(ctx context.Context, req conf.Request) (*current.Result, error) {
	unlock, err := n.Records.Lock(ctx, req.ContainerID)
	if err != nil {
		return nil, err
	}
	defer unlock()

	pod, err := n.open(req.Netns, req.Attachment)
	if err != nil {
		return nil, err
	}
	defer pod.Close()

	if earlier, err := n.resume(ctx, pod, req); earlier != nil || err != nil {
		return earlier, err
	}
	req, rails, err := n.survey(ctx, pod, req)
	if err != nil {
		return nil, err
	}
	claim, leftOut, err := n.claim(req, rails)
	if err != nil {
		return nil, err
	}
	heard := answers{}
	for try := 1; ; try++ {
		rec, err := n.make(ctx, pod, req, claim, n.newRecord(pod, req, leftOut))
		if err == nil {
			if why := rec.Plan.Isolated(req); why != "" {
				n.Log.Warn(why, "container", req.ContainerID, "network", req.Network, "pod", req.Pod.String())
			}
			return rec.Plan.Result(req), nil
		}
		again, err := n.reject(ctx, req, claim, heard, rec, err)
		if !again || try == maxAttempts {
			return nil, errors.Join(err, n.abandon(ctx, pod, rec, err))
		}
	}
}

// make makes the attachment with the addresses that the claim gives now. If an IPAM
// plugin needs the interface, a plan without addresses is performed first. Otherwise the
// lease comes first: it names the attachment, so a DEL finds it without a record.
//
// After an error, reject or abandon comes next: the leases, the record, and the link
// through which another IPAM plugin releases its lease are still there, and with a
// *plan.UndoError something else is, too.
func (n Node) make(ctx context.Context, pod *Pod, req conf.Request, claim *lease.Claim, rec record.Record) (_ record.Record, err error) {
	defer func() {
		if err != nil {
			ctx, cancel := undoing(ctx)
			defer cancel()
			before, _ := n.teardown(rec)
			err = errors.Join(err, pod.undo(ctx, before))
		}
	}()
	if claim.LinkFirst() {
		if err := n.perform(ctx, pod, req, claim.Rails(), &rec); err != nil {
			return rec, err
		}
	}
	leased := n.measure("lease")
	rails, err := claim.Acquire(ctx)
	leased()
	if err != nil {
		return rec, err
	}
	if err := n.perform(ctx, pod, req, rails, &rec); err != nil {
		return rec, err
	}
	return rec, n.commit(pod, &rec)
}

// perform makes the plan of an attachment, saves it in the record, and performs it. What is
// done already is done again, without effect.
func (n Node) perform(ctx context.Context, pod *Pod, req conf.Request, rails []plan.Rail, rec *record.Record) error {
	p, err := plan.Make(req, rails)
	if err != nil {
		return err
	}
	rec.Plan, rec.Saved = p, n.Now()
	if err := n.Records.Save(*rec); err != nil {
		return err
	}
	return pod.inGIDOrder(ctx, p.Ops)
}

// commit compares the GID indexes, and fails if a promised one has moved. It records that
// the ADD has finished, and where its GIDs are.
func (n Node) commit(pod *Pod, rec *record.Record) error {
	rec.Plan.Ops = rec.Plan.Ops.Located(pod.RDMA.Located())
	if err := n.compareGIDs(*rec); err != nil {
		return err
	}
	rec.Committed, rec.Saved = true, n.Now()
	return n.Records.Save(*rec)
}

// newRecord returns the record of the attachment before anything is planned.
func (n Node) newRecord(pod *Pod, req conf.Request, leftOut []string) record.Record {
	return record.Record{
		Network: req.Network, Attachment: req.Attachment, Pod: req.Pod,
		Netns: req.Netns, NetnsID: pod.ID(), IPAM: req.IPAM.Type, Pool: req.IPAM.LeasePool(), Config: req.IPAM.Raw, Digest: req.Digest,
		LeftOut: leftOut, Trace: n.Trace,
	}
}
