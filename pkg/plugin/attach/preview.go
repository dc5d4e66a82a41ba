// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// Preview returns what an ADD would plan. The caller gives the facts of the node and
// of the pod, in the form of Kernel.Facts. Preview changes nothing, as long as the
// node's agent has answered already. It does not ask other IPAM plugins: for them the
// plan is without addresses.
func (n Node) Preview(ctx context.Context, req conf.Request, facts []plan.RailFacts) (plan.Plan, error) {
	req, err := n.withServices(req)
	if err != nil {
		return plan.Plan{}, err
	}
	s, err := n.choose(req, facts)
	if err != nil {
		return plan.Plan{}, err
	}
	rails, err := s.claim.Preview(ctx)
	if err != nil {
		return plan.Plan{}, err
	}
	return plan.Make(req, rails)
}
