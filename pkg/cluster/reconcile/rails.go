// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

const (
	// tooOld is how long a report counts that its agent has not written again. It writes one every
	// ten minutes, and each has another version.
	tooOld = 3 * time.Hour
	// reportTooOld is the reason of the condition then.
	reportTooOld = "ReportTooOld"
	// mostWrites is how many nodes one look writes at most: what watches Nodes hears of each.
	mostWrites = 100
	// rest is how many looks pass between two writes of a node, because an agent that was
	// taken over can report something else at each look.
	rest = 5
)

// rails is what tellRails remembers until the next call.
type rails struct {
	nodes map[string]kube.Node     // of the last list, with what was written since
	heard map[string]hearing       // by node
	wrote map[string]time.Duration // by node
	due   time.Duration
	// suspect is how many nodes have no taint because too many others have it.
	suspect int
}

// hearing is a report, and since when it is the last one.
type hearing struct {
	version string
	since   time.Duration
}

// know notes the nodes of a list.
func (s *rails) know(nodes []kube.Node) {
	s.nodes = map[string]kube.Node{}
	for _, n := range nodes {
		s.nodes[n.Name] = n
	}
	maps.DeleteFunc(s.wrote, func(name string, _ time.Duration) bool { return s.nodes[name].Name == "" })
}

// tellRails gives the nodes conditions by their reports, and taints if they are on.
func (r *Reconciler) tellRails(ctx context.Context) error {
	reports, err := r.Cluster.RailNodes(ctx)
	if err != nil {
		r.rails.heard = nil // without a look, no report is known to be old
		return err
	}
	conditions, limit := r.judge(reports)
	tainted, kept, due := 0, 0, []kube.Node{} // with what they shall have
	for _, n := range r.rails.nodes {
		if n.Tainted {
			tainted++
		}
	}
	suspect := 0
	for _, n := range slices.SortedFunc(maps.Values(r.rails.nodes), func(a, b kube.Node) int { return cmp.Compare(a.Name, b.Name) }) {
		now := n
		c, reported := conditions[n.Name]
		if !reported && (n.Rails != fleet.Condition{} || n.Tainted) {
			c = fleet.Condition{Status: "Unknown", Reason: "NoReport", Message: "there is no RailNode of the node: its agent reports nothing"}
		}
		room := tainted < limit
		if n.Tainted {
			room = kept < limit // the cluster may be smaller than it was
		}
		now.Rails, now.Tainted = c, r.Taint && c.Status == "False" && room
		switch {
		case now.Tainted && n.Tainted:
			kept++
		case now.Tainted:
			tainted++
		case r.Taint && c.Status == "False":
			suspect++
		}
		wrote, known := r.rails.wrote[n.Name]
		if (now.Rails != n.Rails || now.Tainted != n.Tainted) && (!known || r.Now()-wrote >= rest*r.Rails) {
			due = append(due, now)
		}
	}
	if suspect > r.rails.suspect {
		r.Log.Warn("nodes with rails that are not ready get no taint, because half of the nodes have it: look for a cause that they share", "nodes", suspect)
	}
	r.rails.suspect = suspect
	// Dead rails come first, because the first look may write all nodes.
	slices.SortStableFunc(due, func(a, b kube.Node) int { return cmp.Compare(a.Rails.Status, b.Rails.Status) })
	return r.write(ctx, due[:min(len(due), mostWrites)])
}

// judge returns the conditions of the nodes that report rails, and how many of them may have
// the taint: fewer than all, whatever the reports say.
func (r *Reconciler) judge(reports []kube.RailNode) (conditions map[string]fleet.Condition, limit int) {
	conditions, heard, count := map[string]fleet.Condition{}, map[string]hearing{}, 0
	for _, one := range reports {
		n, known := r.rails.nodes[one.Name]
		if !known {
			continue
		}
		h, before := r.rails.heard[one.Name]
		if h.version != one.ResourceVersion {
			h = hearing{one.ResourceVersion, r.Now()}
		}
		if !before && n.Rails.Reason == reportTooOld { // the last leader has seen it
			h.since -= tooOld
		}
		heard[one.Name] = h
		if len(one.Status.Rails) == 0 && n.Rails == (fleet.Condition{}) {
			continue // a node without RoCE
		}
		count++
		c := one.Status.Condition()
		if age := r.Now() - h.since; age >= tooOld {
			c = fleet.Condition{Status: "Unknown", Reason: reportTooOld, Message: "the agent of the node has not written its RailNode for three hours"}
		}
		conditions[one.Name] = c
	}
	r.rails.heard = heard
	return conditions, count / 2
}

// write writes the conditions and taints of nodes, until there is an error other than that a
// node is gone or has changed.
func (r *Reconciler) write(ctx context.Context, nodes []kube.Node) error {
	var faults []error
	for _, n := range nodes {
		r.rails.wrote[n.Name] = r.Now()
		err := r.Cluster.SetRails(ctx, n.Name, n.Rails, n.Tainted)
		if err == nil {
			r.Log.Info("wrote the rails of a node", "node", n.Name, "ready", n.Rails.Status, "taint", n.Tainted, "why", n.Rails.Message)
			r.rails.nodes[n.Name] = n
			continue
		}
		if errors.Is(err, block.ErrNotFound) {
			continue
		}
		faults = append(faults, err)
		if !errors.Is(err, block.ErrConflict) {
			break // the API server may be slow, and the leader has more to do: the others come next time
		}
	}
	return errors.Join(faults...)
}

// lookAtRails calls tellRails if it is due, and logs an error.
func (r *Reconciler) lookAtRails(ctx context.Context) {
	now := r.Now()
	if r.Rails <= 0 || now < r.rails.due {
		return
	}
	r.rails.due = now + r.Rails
	if err := r.tellRails(ctx); err != nil && ctx.Err() == nil {
		r.Log.Warn("the rails of nodes could not be written", agent.About(err)...)
	}
}
