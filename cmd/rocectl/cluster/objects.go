// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/cluster/reconcile"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// objects is a reconcile.Cluster on the API server. Only one goroutine may use it.
type objects struct {
	sticky.Cluster
	api *kube.API
	// before has the pools of the last list, because a condition says since when it
	// has its status.
	before map[string]kube.RailPool
}

func newObjects(api *kube.API) *objects { return &objects{Cluster: api.Nodes(), api: api} }

// Leases is reconcile.Cluster's.
func (o *objects) Leases(ctx context.Context, see func(l sticky.Lease, creator string)) error {
	return o.api.Leases().Each(ctx, sticky.Query{}, func(l *kube.RailLease) { see(l.Object(), l.Annotations[kube.CreatedBy]) })
}

// Blocks is reconcile.Cluster's.
func (o *objects) Blocks(ctx context.Context, see func(reconcile.Block)) error {
	return o.api.Blocks().Each(ctx, block.Query{Freshness: block.Latest}, func(b *kube.RailBlock) { see(asBlock(b)) })
}

// Strangers is reconcile.Cluster's.
func (o *objects) Strangers(ctx context.Context, pools []string, see func(reconcile.Block)) error {
	return o.api.Blocks().Others(ctx, pools, func(b *kube.RailBlock) { see(asBlock(b)) })
}

func asBlock(b *kube.RailBlock) reconcile.Block {
	return reconcile.Block{Block: b.Object(), Usage: agent.Usage(b.Status.Usage), Asserted: b.Status.Asserted.Time}
}

// Nodes is reconcile.Cluster's.
func (o *objects) Nodes(ctx context.Context) ([]reconcile.Node, error) {
	all, err := o.api.Nodes().All(ctx)
	var out []reconcile.Node
	for _, n := range all {
		out = append(out, reconcile.Node{Name: n.Name, Labels: n.Labels, MachineID: n.MachineID, Ready: n.Ready, Rails: n.Rails, Tainted: n.Tainted})
	}
	return out, err
}

// Rails is reconcile.Cluster's.
func (o *objects) Rails(ctx context.Context) ([]reconcile.Report, error) {
	all, err := o.api.RailNodes().All(ctx)
	var out []reconcile.Report
	for i := range all {
		out = append(out, reconcile.Report{Node: all[i].Name, Version: all[i].ResourceVersion, Report: all[i].Status.Report})
	}
	return out, err
}

// SetRails is reconcile.Cluster's.
func (o *objects) SetRails(ctx context.Context, node string, c fleet.Condition, taint bool) error {
	return o.api.Nodes().SetRails(ctx, node, c, taint)
}

// Pools is reconcile.Cluster's.
func (o *objects) Pools(ctx context.Context) ([]agent.Pool, error) {
	all, err := o.api.Pools().All(ctx)
	o.before = map[string]kube.RailPool{}
	var out []agent.Pool
	for i := range all {
		p := all[i]
		o.before[p.Name] = p
		out = append(out, asPool(&p))
	}
	return out, err
}

// asPool returns a RailPool in the form of the agent and the reconciler.
func asPool(p *kube.RailPool) agent.Pool {
	return agent.Pool{
		Pool: p.Pool(), UID: string(p.UID), Created: p.CreationTimestamp.Time,
		InUse: slices.Contains(p.Finalizers, kube.InUse), Deleted: p.DeletionTimestamp != nil,
	}
}

// Mark is reconcile.Cluster's.
func (o *objects) Mark(ctx context.Context, pool string) error {
	return o.api.Pools().Mark(ctx, o.before[pool])
}

// Used is reconcile.Cluster's.
func (o *objects) Used(ctx context.Context, pool string) (bool, error) {
	used, err := o.api.Blocks().Any(ctx, pool)
	if used || err != nil {
		return used, err
	}
	err = o.api.Leases().Each(ctx, sticky.Query{Pool: pool}, func(l *kube.RailLease) { used = used || l.Spec.Holder != (block.Owner{}) })
	return used, err
}

// Report is reconcile.Cluster's.
func (o *objects) Report(ctx context.Context, pool string, s reconcile.Summary) error {
	was := o.before[pool]
	now := kube.PoolStatus{
		Blocks: s.Blocks, Claimed: s.Claimed, Size: s.Size, Used: s.Used, Quarantined: s.Quarantined, Free: s.Free, Reserved: s.Reserved,
		Conditions: was.Status.Conditions,
	}
	valid := metav1.Condition{Type: kube.ValidCondition, Status: metav1.ConditionTrue, Reason: "Valid", Message: "its blocks can be claimed", ObservedGeneration: was.Generation}
	if s.Fault != nil {
		reason := "Fault"
		if s.Deleted {
			reason = "Deleted"
		}
		valid.Status, valid.Reason, valid.Message = metav1.ConditionFalse, reason, agent.Line(s.Fault)
	}
	meta.SetStatusCondition(&now.Conditions, valid)
	attention := metav1.Condition{Type: kube.AttentionCondition, Status: metav1.ConditionFalse, Reason: "Checked", Message: "no block and no lease looks wrong", ObservedGeneration: was.Generation}
	if s.Attention != nil {
		attention.Status, attention.Reason, attention.Message = metav1.ConditionTrue, "Wrong", agent.Line(s.Attention)
	}
	meta.SetStatusCondition(&now.Conditions, attention)
	return o.api.Pools().Report(ctx, pool, now)
}
