// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package reconcile manages the pools of a whole cluster: it adds and removes the
// finalizer of RailPools, frees what nodes own that are gone for good, deletes
// expired RailLeases, and reports how full each pool is.
//
// It never frees anything at the first check and never trusts a cache. No pod needs
// it: while it does not run, ownership does not change. One instance must run at a
// time; rocectl elects it. It uses block and sticky, as the agent does. The order of
// the steps is in this file. crowd.go limits what one node can make it keep,
// mark.go handles new and deleted pools, orphans.go lists
// for people what would be freed and what nodes have, and summary.go writes the status of
// a pool.
package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// Cluster is the view of the cluster. Every answer is as new as the call. Errors are
// those of a block.Store.
type Cluster interface {
	sticky.Cluster
	// Leases and Blocks call see for each object, and keep none of them. creator is the
	// node that has created a lease; "": an operator has.
	Leases(ctx context.Context, see func(l sticky.Lease, creator string)) error
	Blocks(ctx context.Context, see func(Block)) error
	Nodes(ctx context.Context) ([]Node, error)
	Pools(ctx context.Context) ([]agent.Pool, error)
	// Mark marks a pool from Pools as InUse. If the pool was deleted, Mark removes
	// the mark, and the pool is gone. ErrConflict: the pool has changed since.
	Mark(ctx context.Context, pool string) error
	// Used says whether there is a block of a pool, or a lease that a node holds.
	Used(ctx context.Context, pool string) (bool, error)
	// Strangers is Blocks for the blocks of other pools than these.
	Strangers(ctx context.Context, pools []string, see func(Block)) error
	// Report writes the summary of a pool. ErrNotFound: there is no such pool.
	Report(ctx context.Context, pool string, s Summary) error
}

// Block is a block with the last report of its owner, and the time of that report.
type Block struct {
	block.Block
	agent.Usage
	Asserted time.Time // by the owner's clock: for people
}

// Node is a Node object.
type Node struct {
	Name      string
	Labels    map[string]string
	MachineID string
	Ready     bool
}

// Config is what a Reconciler works with. All fields are needed.
type Config struct {
	Cluster Cluster
	Store   block.Store
	Leases  sticky.Store
	// Every is how often it looks at the nodes and blocks.
	Every time.Duration
	// Lull is Lull.
	Lull time.Duration
	// Wait returns after d, or with the context's error when that ends.
	Wait func(ctx context.Context, d time.Duration) error
	// Now returns CLOCK_BOOTTIME.
	Now func() time.Duration
	// Date is the wall clock: leases say when they were written.
	Date func() time.Time
	Log  *slog.Logger
}

// Reconciler manages the pools of a cluster. Only one goroutine may use it. What it
// has seen is lost when its process ends; then everything waits longer.
type Reconciler struct {
	Config
	sightings block.Sightings
	kept      block.Sightings
	absences  sticky.Absences
	last      time.Duration // when the last round was
	next      time.Duration // when the next one is due
	marks     marks
}

// New returns a reconciler that has seen nothing yet.
func New(c Config) *Reconciler { return &Reconciler{Config: c} }

// Run looks, frees and reports until the context ends, and returns its error. It logs
// a round that fails, and tries again in the next round.
func (r *Reconciler) Run(ctx context.Context) error {
	for {
		if r.markPools(ctx) {
			r.next = min(r.next, r.last+atLeast)
		}
		if now := r.Now(); now >= r.next {
			r.last, r.next = now, now+r.Every
			r.turn(ctx)
		}
		if err := r.Wait(ctx, often); err != nil {
			return err
		}
	}
}

func (r *Reconciler) turn(ctx context.Context) {
	if err := r.round(ctx); err != nil && ctx.Err() == nil {
		r.Log.Warn("a check of the cluster was not completed", agent.About(err)...)
	}
}

func (r *Reconciler) round(ctx context.Context) error {
	seen, err := r.look(ctx)
	if err != nil {
		return err
	}
	faults := []error{r.thin(ctx, seen)}
	for _, b := range seen.due {
		freed, err := block.Reap(ctx, r.Store, r.Cluster, b)
		switch {
		case err != nil:
			faults = append(faults, err)
		case freed:
			r.Log.Info("freed a block: its node is gone", "pool", b.Spec.Pool, "block", b.Name, "node", b.Spec.NodeName, "machine-id", b.Spec.MachineID)
		}
	}
	faults = append(faults, r.reapLeases(ctx, seen.dueLeases), r.freeLeases(ctx, seen.misheld))
	for name, s := range summarize(seen) {
		if err := r.Cluster.Report(ctx, name, s); err != nil && !errors.Is(err, block.ErrNotFound) {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// reapLeases deletes leases, or removes their holders.
func (r *Reconciler) reapLeases(ctx context.Context, due []sticky.Lease) error {
	var faults []error
	for _, l := range due {
		done, err := sticky.Reap(ctx, r.Leases, r.Cluster, r.Date(), l)
		what := "ended a lease: its pod has not come back"
		if l.Spec.Holder != (block.Owner{}) {
			what = "took a lease from a node that is gone: the pod can get it on another node"
		}
		if done {
			r.Log.Info(what, "pool", l.Spec.Pool, "lease", l.Name, "namespace", l.Spec.Namespace, "pod", l.Spec.Pod, "node", l.Spec.Holder.NodeName)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// freeLeases removes the holders of leases that do not run the pods.
func (r *Reconciler) freeLeases(ctx context.Context, due []sticky.Lease) error {
	var faults []error
	for _, l := range due {
		done, err := sticky.Free(ctx, r.Leases, r.Cluster, r.Date(), l)
		if done {
			r.Log.Warn("took a lease from a node that does not run its pod: if this happens again, look at the agent of the node",
				"pool", l.Spec.Pool, "lease", l.Name, "namespace", l.Spec.Namespace, "pod", l.Spec.Pod, "node", l.Spec.Holder.NodeName)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// world is what a look has seen.
type world struct {
	leases []sticky.Lease
	pools  []agent.Pool
	blocks []Block
	nodes  []Node
	bound  map[string]bool

	existed map[string]bool // marks.known

	crowds    []Crowd
	surplus   surplus
	due       []block.Block
	dueLeases []sticky.Lease
	misheld   []sticky.Lease           // due: their holders do not run the pods
	absent    map[string]time.Duration // by UID of the lease, since when its holder was seen not to run the pod
}

// look is one sighting. It lists leases before pools and nodes, blocks before nodes,
// and nodes before pods, as sticky.World and block.Sightings require.
func (r *Reconciler) look(ctx context.Context) (world, error) {
	w, err := r.census(ctx)
	if err != nil {
		return world{}, err
	}
	w.bound, w.existed = map[string]bool{}, r.marks.known
	if w.nodes, err = r.Cluster.Nodes(ctx); err != nil {
		return world{}, err
	}
	nodes, blocks := w.known()
	for _, name := range nodes.Missing(append(sticky.Owners(w.leases), block.Owners(blocks)...)) {
		if w.bound[name], err = r.Cluster.Bound(ctx, name); err != nil {
			return world{}, err
		}
	}
	r.sightings, w.due = r.sightings.Look(r.Now(), blocks, nodes, w.bound)
	r.kept, w.dueLeases = sticky.Look(r.kept, r.Now(), r.Date(), sticky.World{Leases: w.leases, Pools: w.terms(), Nodes: nodes, Bound: w.bound})
	return w, r.lookForPods(ctx, &w, nodes)
}

// lookForPods asks whether nodes run the pods of the leases that they hold.
func (r *Reconciler) lookForPods(ctx context.Context, w *world, nodes block.Nodes) error {
	ready := map[string]bool{}
	for _, n := range w.nodes {
		ready[n.Name] = n.Ready
	}
	var held []sticky.Lease
	for _, l := range w.leases {
		if h := l.Spec.Holder; ready[h.NodeName] && nodes[h.NodeName] == h.MachineID {
			held = append(held, l)
		}
	}
	var err error
	r.absences, w.misheld, err = r.absences.Look(r.Now(), held, func(l sticky.Lease) (bool, error) {
		return r.Cluster.Runs(ctx, l.Spec.Namespace, l.Spec.Pod, l.Spec.Holder.NodeName)
	})
	w.absent = map[string]time.Duration{}
	for _, l := range held {
		if since, absent := r.absences.Since(l); absent {
			w.absent[l.UID] = r.Now() - since
		}
	}
	return err
}

func (w world) known() (block.Nodes, []block.Block) {
	nodes := block.Nodes{}
	for _, n := range w.nodes {
		nodes[n.Name] = n.MachineID
	}
	var blocks []block.Block
	for _, b := range w.blocks {
		blocks = append(blocks, b.Block)
	}
	return nodes, blocks
}

// terms returns the terms of the pools for leases.
func (w world) terms() map[string]sticky.Terms {
	var pools []block.Pool
	for _, p := range w.pools {
		if !p.Deleted {
			pools = append(pools, p.Pool)
		}
	}
	return sticky.TermsOf(pools)
}
