// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package reconcile manages the pools of a whole cluster: it adds and removes the
// finalizer of RailPools, frees what nodes own that are gone for good, deletes
// expired RailLeases, reports how full each pool is, and says which nodes have rails that
// cannot serve.
//
// It never frees anything at the first check and never trusts a cache. No pod needs it: while
// it does not run, ownership does not change. rocectl elects the one that runs. This file has
// the order of the steps, and what limits the objects of one node. mark.go handles new and
// deleted pools, orphans.go lists for people what would be freed and what nodes have,
// summary.go writes the status of a pool, and rails.go those of nodes.
package reconcile

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// Cluster is what a Reconciler needs of a *kube.API.
type Cluster interface {
	sticky.Cluster
	EachLease(ctx context.Context, q sticky.Query, see func(*kube.RailLease)) error
	EachBlock(ctx context.Context, q block.Query, see func(*kube.RailBlock)) error
	Strangers(ctx context.Context, pools []string, see func(*kube.RailBlock)) error
	Used(ctx context.Context, pool string) (bool, error)
	Nodes(ctx context.Context) ([]kube.Node, error)
	Pools(ctx context.Context) ([]kube.RailPool, error)
	Mark(ctx context.Context, p kube.RailPool) error
	Report(ctx context.Context, pool string, s kube.PoolStatus) error
	RailNodes(ctx context.Context) ([]kube.RailNode, error)
	SetRails(ctx context.Context, node string, c fleet.Condition, taint bool) error
}

// Block is a block with the last report of its owner, and the time of that report.
type Block struct {
	block.Block
	block.Usage
	Asserted time.Time // by the owner's clock: for people
}

// Config is what a Reconciler works with. All fields but Rails and Taint are needed.
type Config struct {
	Cluster Cluster
	Store   block.Store
	Leases  sticky.Store
	// Every is how often it looks at the nodes and blocks.
	Every time.Duration
	// Lull is Lull.
	Lull time.Duration
	// Rails is how often it looks at the reports of rails; 0: never. Taint says whether
	// nodes get a taint if their rails are not ready.
	Rails      time.Duration
	Taint      bool
	pace.Clock // without Rand
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
	rails     rails
	// objects has the pools of the last list, because a condition says since when it has
	// its status.
	objects map[string]kube.RailPool
}

// New returns a reconciler that has seen nothing yet.
func New(c Config) *Reconciler {
	return &Reconciler{
		Config: c, marks: marks{known: map[string]bool{}, warned: map[string]bool{}}, rails: rails{wrote: map[string]time.Duration{}},
	}
}

// Run looks, frees and reports until the context ends, and returns its error. It logs
// a round that fails, and tries again in the next round.
func (r *Reconciler) Run(ctx context.Context) error {
	for {
		if r.markPools(ctx) {
			r.next = min(r.next, r.last+atLeast)
		}
		if now := r.Now(); now >= r.next {
			r.last, r.next = now, now+r.Every
			if err := r.round(ctx); err != nil && ctx.Err() == nil {
				r.Log.Warn("a check of the cluster was not completed", agent.About(err)...)
			}
		}
		r.lookAtRails(ctx)
		if err := r.Wait(ctx, often); err != nil {
			return err
		}
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
	for _, l := range seen.dueLeases {
		done, err := sticky.Reap(ctx, r.Leases, r.Cluster, r.Date(), l)
		what := "ended a lease: its pod has not come back"
		if l.Spec.Holder != (block.Owner{}) {
			what = "took a lease from a node that is gone: the pod can get it on another node"
		}
		if done {
			r.Log.Info(what, leaseOf(l)...)
		}
		faults = append(faults, err)
	}
	for _, l := range seen.misheld {
		done, err := sticky.Free(ctx, r.Leases, r.Cluster, r.Date(), l)
		if done {
			r.Log.Warn("took a lease from a node that does not run its pod: if this happens again, look at the agent of the node", leaseOf(l)...)
		}
		faults = append(faults, err)
	}
	for name, s := range summarize(seen) {
		if err := r.Cluster.Report(ctx, name, s.status(r.objects[name])); err != nil && !errors.Is(err, block.ErrNotFound) {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// leaseOf has the fields of a log line about a lease.
func leaseOf(l sticky.Lease) []any {
	return []any{"pool", l.Spec.Pool, "lease", l.Name, "namespace", l.Spec.Namespace, "pod", l.Spec.Pod, "node", l.Spec.Holder.NodeName}
}

// world is what a look has seen.
type world struct {
	leases []sticky.Lease
	pools  []block.Pool
	blocks []Block
	nodes  []kube.Node
	bound  map[string]bool

	existed map[string]bool // marks.known

	crowds []Crowd
	// surplus is what a look has not kept of pools that do not exist. No node claims blocks of
	// such a pool, and a node with pods on a block creates the block again.
	surplus struct {
		blocks []block.Block
		leases []sticky.Lease
	}
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
	r.rails.know(w.nodes)
	nodes, blocks := w.known()
	for _, name := range nodes.Missing(append(sticky.Owners(w.leases), block.Owners(blocks)...)) {
		if w.bound[name], err = r.Cluster.Bound(ctx, name); err != nil {
			return world{}, err
		}
	}
	r.sightings, w.due = r.sightings.Look(r.Now(), blocks, nodes, w.bound)
	r.kept, w.dueLeases = sticky.Look(r.kept, r.Now(), r.Date(), sticky.World{Leases: w.leases, Pools: sticky.TermsOf(w.pools), Nodes: nodes, Bound: w.bound})
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

// No policy of the API server can count, so an agent that was taken over can create objects
// without end. What a look keeps of them is limited for each node.
const (
	// most is how many blocks, and how many leases, of one node a look keeps. No node has
	// as many pods.
	most = 1024
	// mostDeleted is how many blocks, and how many leases, one round deletes at most
	// because their node has too many.
	mostDeleted = 10_000
)

// Crowd is a node with more objects of a kind than a look keeps.
type Crowd struct {
	Kind, Node string
	Count      int
}

// counts counts the objects of nodes. The Count of its keys is 0.
type counts map[Crowd]int

// admit counts an object, and says whether a look keeps it. An operator has created what is
// of no node.
func (c counts) admit(kind, node string) bool {
	c[Crowd{Kind: kind, Node: node}]++
	return node == "" || c[Crowd{Kind: kind, Node: node}] <= most
}

// crowds returns the nodes that have too many, those with the most first.
func (c counts) crowds() []Crowd {
	var out []Crowd
	for of, n := range c {
		if of.Node != "" && n > most {
			out = append(out, Crowd{of.Kind, of.Node, n})
		}
	}
	slices.SortFunc(out, func(a, b Crowd) int {
		return cmp.Or(b.Count-a.Count, cmp.Compare(a.Node, b.Node), cmp.Compare(a.Kind, b.Kind))
	})
	return out
}

// census lists the leases, then the pools, then the blocks.
func (r *Reconciler) census(ctx context.Context) (w world, err error) {
	seen, unknown := counts{}, missing(r.marks.pools)
	err = r.Cluster.EachLease(ctx, sticky.Query{}, func(l *kube.RailLease) {
		if seen.admit("RailLease", cmp.Or(l.Spec.Holder.NodeName, l.Annotations[kube.CreatedBy])) {
			w.leases = append(w.leases, l.Object())
		} else if unknown(l.Spec.Pool) && len(w.surplus.leases) < mostDeleted {
			w.surplus.leases = append(w.surplus.leases, l.Object())
		}
	})
	if err != nil {
		return world{}, err
	}
	if w.pools, err = r.pools(ctx); err != nil {
		return world{}, err
	}
	unknown = missing(w.pools)
	w.surplus.leases = slices.DeleteFunc(w.surplus.leases, func(l sticky.Lease) bool { return !unknown(l.Spec.Pool) })
	err = r.Cluster.EachBlock(ctx, block.Query{Freshness: block.Latest}, func(b *kube.RailBlock) {
		if seen.admit("RailBlock", b.Spec.NodeName) {
			w.blocks = append(w.blocks, Block{b.Object(), b.Status.Usage, b.Status.Asserted.Time})
		} else if unknown(b.Spec.Pool) && len(w.surplus.blocks) < mostDeleted {
			w.surplus.blocks = append(w.surplus.blocks, b.Object())
		}
	})
	w.crowds = seen.crowds()
	return w, err
}

// pools lists the pools.
func (r *Reconciler) pools(ctx context.Context) ([]block.Pool, error) {
	all, err := r.Cluster.Pools(ctx)
	r.objects = map[string]kube.RailPool{}
	var out []block.Pool
	for _, p := range all {
		r.objects[p.Name] = p
		out = append(out, p.Pool())
	}
	return out, err
}

// missing returns a function that says whether a pool is none of these.
func missing(pools []block.Pool) func(name string) bool {
	there := map[string]bool{}
	for _, p := range pools {
		there[p.Name] = true
	}
	return func(name string) bool { return !there[name] }
}

// thin logs the nodes that have too many objects, and deletes the surplus.
func (r *Reconciler) thin(ctx context.Context, w world) error {
	for _, c := range w.crowds {
		r.Log.Warn("one node has more objects than its pods can need: look at its agent; those of RailPools that do not exist are deleted",
			"node", c.Node, "kind", c.Kind, "count", c.Count)
	}
	for _, b := range w.surplus.blocks {
		if _, err := block.Done(r.Store.Delete(ctx, b.Name, b.UID, b.ResourceVersion)); err != nil {
			return err
		}
	}
	for _, l := range w.surplus.leases {
		if _, err := block.Done(r.Leases.Delete(ctx, l.Name, l.UID, l.ResourceVersion)); err != nil {
			return err
		}
	}
	return nil
}

// crowded returns an error if a node has too many objects. Then the numbers of all pools
// may be too low.
func (w world) crowded() error {
	if len(w.crowds) == 0 {
		return nil
	}
	c := w.crowds[0]
	return cnierr.New(cnierr.BadConfig, "count objects of node", c.Node,
		"look what its agent does; a node that was taken over has them until it is removed from the cluster",
		"it has %d objects of kind %s, and only %d of them are looked at", c.Count, c.Kind, most)
}
