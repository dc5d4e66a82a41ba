// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"

	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// Preview returns what an ADD would plan on a node and in a pod of which the
// facts are told, as Kernel.Facts tells them, and changes nothing, as long as the
// Agent answers at once, so that nothing is asked of it. Other IPAM plugins are not
// asked: the plan is then without addresses.
func (n Node) Preview(ctx context.Context, req conf.Request, facts []plan.Facts, faults []error) (plan.Plan, error) {
	s, err := n.choose(req, facts, faults)
	if err != nil {
		return plan.Plan{}, err
	}
	if s, err = n.keep(ctx, req, s); err != nil {
		return plan.Plan{}, err
	}
	rails := s.rails
	switch {
	case req.Prev != nil:
		rails, err = nobody{}.Acquire(ctx, req, rails)
	case req.IPAM.Type == conf.PoolType:
		rails, err = n.Pools.Preview(ctx, req, rails)
	}
	if err != nil {
		return plan.Plan{}, err
	}
	return plan.MakeAll(req.IfName, rails)
}
