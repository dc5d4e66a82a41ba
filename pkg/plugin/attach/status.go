// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
)

// Status says why an ADD of the network would fail now, whatever the pod:
// cnierr.NotAvailable, or cnierr.Limited when running pods have lost their network
// too, because the master is missing or down.
func (n Node) Status(ctx context.Context, req conf.Request) error {
	unlock, err := n.Records.Lock(ctx, "status")
	if err != nil {
		return cnierr.Unavailable(err)
	}
	unlock()
	if req, err = n.withServices(req); err != nil {
		return cnierr.Unavailable(err)
	}
	if req.Match == nil && req.Rails[0].Parent.Default() && req.IPAM.Type == "" {
		return cnierr.Unavailable(n.statusMode(ctx, req)) // roce adopts an interface that another plugin makes later
	}
	nameless := slices.ContainsFunc(req.Rails, func(r conf.Rail) bool { return r.Parent.Name == "" })
	if req.LinkInContainer && (nameless || req.IPAM.FromMaster != nil || req.IPAM.RailPool != nil) {
		return cnierr.Unavailable(n.statusMode(ctx, req)) // only the pod has this interface and its addresses
	}
	rails, err := n.Machine.Facts(ctx, req)
	if err != nil {
		return cnierr.Unavailable(err)
	}
	for i, one := range req.Rails {
		if errors.Is(rails[i].Fault, rdma.ErrNoDevice) && n.heldByPod(plan.Link{}, one.Parent.RDMA) != nil {
			return nil // a pod has it
		}
		if rails[i].Fault == nil {
			rails[i].Fault = n.statusRDMA(ctx, req, one, rails[i].Parent)
		}
	}
	claim, _, err := n.claim(req, rails)
	if err != nil {
		return lease.StatusError(req, err)
	}
	return claim.Status(ctx)
}
