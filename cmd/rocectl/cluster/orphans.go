// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/reconcile"
)

// overview prints what a reconciler sees at one look.
func overview(ctx context.Context, w io.Writer, r *reconcile.Reconciler) error {
	o, err := r.Overview(ctx)
	if err != nil {
		return block.Explain(err)
	}
	return errors.Join(writeOrphans(w, o.Orphans, time.Now()), writeIdle(w, o.Idle, time.Now()), writeHoldings(w, o.Holdings), writeCrowds(w, o.Crowds))
}

// writeOrphans prints the blocks without node, and what each block waits for.
func writeOrphans(w io.Writer, orphans []reconcile.Orphan, now time.Time) error {
	if len(orphans) == 0 {
		_, err := fmt.Fprintln(w, "every block has a node")
		return err
	}
	slices.SortFunc(orphans, func(a, b reconcile.Orphan) int { return strings.Compare(a.Name, b.Name) })
	t := cli.NewTable(w, "BLOCK", "NODE", "ITS NODE IS", "WRITTEN", "FREED WHEN")
	for _, o := range orphans {
		t.Row(o.Name, o.Spec.NodeName, o.Owner, ago(o.Asserted, now), needed(o))
	}
	return t.Print()
}

// ago says when the owner of a block has last written it, by its own clock.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return now.Sub(t).Round(time.Second).String() + " ago"
}

// needed says what a block waits for. Only the process that runs all the time knows
// since when its node is gone.
func needed(o reconcile.Orphan) string {
	switch {
	case o.Owner == block.Replaced:
		return "the Node object has reported another machine for an hour"
	case o.Bound:
		return "no pod is bound to the node, for an hour: kubectl get pods -A --field-selector spec.nodeName=" + o.Spec.NodeName
	}
	return "the node has been gone for an hour"
}

// writeIdle prints the leases that no node uses, if there are any, and what each
// lease waits for.
func writeIdle(w io.Writer, idle []reconcile.Idle, now time.Time) error {
	if len(idle) == 0 {
		return nil
	}
	slices.SortFunc(idle, func(a, b reconcile.Idle) int { return strings.Compare(a.Name, b.Name) })
	fmt.Fprintln(w)
	t := cli.NewTable(w, "LEASE", "POD", "NODE", "ITS NODE IS", "WRITTEN", "NEXT")
	for _, i := range idle {
		var node, state string
		if i.Owner != "" {
			node, state = i.Spec.Holder.NodeName, string(i.Owner)
		}
		t.Row(i.Name, i.Spec.Namespace+"/"+i.Spec.Pod, node, state, ago(i.Spec.Written, now), ending(i, now))
	}
	return t.Print()
}

// ending says what happens to a lease.
func ending(i reconcile.Idle, now time.Time) string {
	since := i.Created
	if i.Spec.Written.After(since) {
		since = i.Spec.Written
	}
	left := i.TTL - now.Sub(since)
	switch {
	case i.Owner == block.Replaced:
		return "another node may have it when the Node object has reported another machine for an hour"
	case i.Bound:
		return "another node may have it when no pod is bound to the node, for an hour"
	case i.Owner == block.Gone:
		return "another node may have it when the node has been gone for an hour"
	case i.Absent:
		return "another node may have it when the pod has not been bound to the node for an hour"
	case i.Useless != "":
		return "it stays, but has no effect: " + i.Useless
	case i.Spec.Keep:
		return "it stays: spec.keep"
	case i.TTL == 0:
		return "it is deleted: its RailPool is gone, or not sticky"
	case left <= 0:
		return "it is deleted when its quarantine is over"
	}
	return "it is deleted in " + left.Round(time.Second).String()
}

// writeCrowds prints the nodes with more objects than their pods can need.
func writeCrowds(w io.Writer, crowds []reconcile.Crowd) error {
	for _, c := range crowds {
		if _, err := fmt.Fprintf(w, "\nnode %s has %d objects of kind %s, more than its pods can need, and most are not shown: look what its agent does\n", c.Node, c.Count, c.Kind); err != nil {
			return err
		}
	}
	return nil
}

// mostHoldings is how many nodes are shown.
const mostHoldings = 20

// writeHoldings prints what nodes have of the pools.
func writeHoldings(w io.Writer, all []reconcile.Holding) error {
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := cli.NewTable(w, "NODE", "POOL", "BLOCKS", "HOST INDEXES IN USE", "LEASES", "FOR PODS OF OTHER NODES")
	for _, h := range all[:min(len(all), mostHoldings)] {
		t.Row(h.Node, h.Pool, h.Blocks, fmt.Sprintf("%d of %d", h.Used, h.Size), h.Leases, h.Absent)
	}
	if more := len(all) - mostHoldings; more > 0 {
		t.Row(fmt.Sprintf("and %d more with fewer", more))
	}
	return t.Print()
}
