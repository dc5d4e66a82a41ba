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
// node's agent has answered already. Other IPAM plugins are not asked: the plan is
// then without addresses.
func (n Node) Preview(ctx context.Context, req conf.Request, facts []plan.RailFacts) (plan.Plan, error) {
	s, err := n.choose(req, facts)
	if err != nil {
		return plan.Plan{}, err
	}
	rails, err := s.claim.Preview(ctx)
	if err != nil {
		return plan.Plan{}, err
	}
	return plan.MakeAll(req.IfName, rails)
}
