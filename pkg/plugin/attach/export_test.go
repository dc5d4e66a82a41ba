// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// AddOps is Add with a plan that is given: no request makes shared operations yet.
func (n Node) AddOps(ctx context.Context, req conf.Request, ops plan.Ops) error {
	unlock, err := n.Records.Lock(ctx, req.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	pod, err := n.open(req.Netns, req.Attachment)
	if err != nil {
		return err
	}
	defer pod.Close()
	rec := n.newRecord(pod, req, nil)
	rec.Plan.Ops, rec.Saved = ops, n.Now()
	if err := n.Records.Save(rec); err != nil {
		return err
	}
	err = pod.inGIDOrder(ctx, ops)
	if err == nil {
		rec.Committed = true
		return n.Records.Save(rec)
	}
	before, _ := n.teardown(rec)
	err = errors.Join(err, pod.undo(context.WithoutCancel(ctx), before))
	return errors.Join(err, n.abandon(ctx, pod, rec, err))
}
