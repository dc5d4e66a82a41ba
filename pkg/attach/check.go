// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"

	"github.com/roce-cni/roce-cni/pkg/apply"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/record"
)

// Check says everything about an attachment that is not as ADD made it, each
// with the command that restores it. It changes nothing.
func (n Node) Check(ctx context.Context, req conf.Request) error {
	unlock, err := n.Records.Lock(ctx, req.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()

	rec, err := n.Records.Load(req.ContainerID, req.IfName)
	if errors.Is(err, record.ErrNotExist) || (err == nil && !rec.Committed) {
		return cnierr.New(cnierr.Damaged, "check interface", string(req.IfName),
			"delete the pod: its ADD did not finish, or was undone, on this node",
			"container %q has no such attachment on record", req.ContainerID)
	}
	if err != nil {
		return err
	}
	k, err := n.Open(req.Netns)
	if err != nil {
		return err
	}
	defer k.Close()
	if k.ID() != rec.NetnsID {
		return cnierr.New(cnierr.Damaged, "check namespace", req.Netns, "delete the pod: its namespace was replaced",
			"it is not the one that ADD worked in")
	}
	return errors.Join(apply.Check(ctx, n.steps(k), rec.Plan.Ops), n.checkLeases(ctx, req, rec))
}

// checkLeases says whether IPAM still knows the attachment's addresses.
func (n Node) checkLeases(ctx context.Context, req conf.Request, rec record.Record) error {
	switch rec.IPAM {
	case "":
		return nil
	case conf.PoolType:
		return n.Pools.Check(ctx, rec)
	}
	return n.Delegate.Check(ctx, req)
}
