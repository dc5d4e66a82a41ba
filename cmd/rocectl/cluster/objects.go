// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/pkg/agent"
	"github.com/roce-cni/roce-cni/pkg/agent/reconcile"
	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/kube"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

// objects is a reconcile.Cluster on the API server. It is for one goroutine.
type objects struct {
	block.Cluster
	api *kube.API
	// before has the pools as they were listed last: a condition says since when it
	// is as it is.
	before map[string]kube.RailPool
}

func newObjects(api *kube.API) *objects { return &objects{Cluster: api.Nodes(), api: api} }

// Blocks is reconcile.Cluster's.
func (o *objects) Blocks(ctx context.Context) ([]reconcile.Block, error) {
	all, err := o.api.Blocks().Objects(ctx, block.Query{Freshness: block.Latest})
	var out []reconcile.Block
	for i := range all {
		b := &all[i]
		out = append(out, reconcile.Block{Block: b.Block(), Usage: agent.Usage(b.Status.Usage), Asserted: b.Status.Asserted.Time})
	}
	return out, err
}

// Nodes is reconcile.Cluster's.
func (o *objects) Nodes(ctx context.Context) ([]reconcile.Node, error) {
	all, err := o.api.Nodes().All(ctx)
	var out []reconcile.Node
	for _, n := range all {
		out = append(out, reconcile.Node(n))
	}
	return out, err
}

// Pools is reconcile.Cluster's.
func (o *objects) Pools(ctx context.Context) ([]agent.Pool, error) {
	all, err := o.api.Pools().All(ctx)
	o.before = map[string]kube.RailPool{}
	var out []agent.Pool
	for i := range all {
		p := all[i]
		o.before[p.Name] = p
		out = append(out, agent.Pool{Pool: p.Pool(), Created: p.CreationTimestamp.Time})
	}
	return out, err
}

// Report is reconcile.Cluster's.
func (o *objects) Report(ctx context.Context, pool string, s reconcile.Summary) error {
	was := o.before[pool]
	now := kube.PoolStatus{
		Blocks: s.Blocks, Claimed: s.Claimed, Size: s.Size, Used: s.Used, Resting: s.Resting, Free: s.Free, Reserved: s.Reserved,
		Conditions: was.Status.Conditions,
	}
	valid := metav1.Condition{Type: kube.ValidCondition, Status: metav1.ConditionTrue, Reason: "Valid", Message: "blocks of it can be claimed", ObservedGeneration: was.Generation}
	if s.Fault != nil {
		valid.Status, valid.Reason, valid.Message = metav1.ConditionFalse, "Fault", cnierr.CNI("rocectl", s.Fault).Msg
	}
	meta.SetStatusCondition(&now.Conditions, valid)
	return o.api.Pools().Report(ctx, pool, now)
}
