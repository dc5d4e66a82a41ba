// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package agent manages one node's share of the cluster's RailPools. It claims
// RailBlocks, writes the node file that tells the plugins which addresses they may
// lease, and reports how full each block is. It also writes the CIDRs of the cluster's
// Services for the plugins (services.go).
//
// The agent claims another block when more than four fifths of the host indexes are
// leased. Addresses in quarantine do not count: a block of 16 is meant for about eight pods
// and what earlier pods released, and the plugins lease from quarantine when nothing else
// is left. For sticky pools the agent also takes and releases RailLeases.
//
// It never leases an address itself. It never removes a node file because the API
// server does not answer. It gives a block back only if its pool was deleted, or if the
// block was empty for an hour and the node has others (surplus.go). rocectl runs it and
// passes the cluster as a parameter. Read this file first, then pool.go for the steps of one
// pool and their order, and package grant for sticky addresses.
package agent

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// Config is what an Agent works with. All fields are needed.
type Config struct {
	// Node is this node. Own is read at each claim and may be empty here.
	Node block.Node
	// Addresses returns the addresses of the node itself.
	Addresses func(ctx context.Context) ([]netip.Addr, error)

	Store block.Store
	// Requests counts what Store and the others send, and is among the metrics.
	Requests *Requests
	// Machine is block.Claimer's.
	Machine func(ctx context.Context, node string) (string, error)
	// Watch calls see with the current view, and again whenever it changes, until the
	// context ends. The view is complete: a pool that is not in it is gone.
	Watch func(ctx context.Context, see func(View)) error
	// Report writes the usage of a block where people see it. Its errors are those of
	// a Store.
	Report func(ctx context.Context, b block.Block, u block.Usage) error

	// Stands is that of a *kube.API.
	Stands func(ctx context.Context, pool, uid string) (bool, error)

	// Services calls see with the CIDRs of the cluster's Services and again whenever they
	// change, or with the reason why they are not known, until the context ends.
	Services func(ctx context.Context, see func(cidrs []netip.Prefix, err error))

	// Rails returns the rails of the node.
	Rails func() []Rail

	// Tell writes what was healed where people see it. Its errors are those of a Store.
	Tell func(ctx context.Context, node string, c calls.Call) error

	// RailLeases stores the RailLeases.
	RailLeases sticky.Store

	Ranges nodefile.Store
	Leases *ipam.Book // in the folder Ranges.Dir

	pace.Clock
	Log *slog.Logger
}

// View is what a node sees of its cluster.
type View struct {
	Pools []block.Pool
	// Labels and MachineID are what the Node object says of the node.
	Labels    map[string]string
	MachineID string
	// NoNode is why there is no Node object. Then no blocks are claimed, and the node
	// keeps what it has.
	NoNode error
	// Fault is why nothing could be read yet: the other fields are empty.
	Fault error
}

// Agent is the agent of one node.
type Agent struct {
	Config
	meter    *meter
	metrics  *metrics
	services services

	mu      sync.Mutex
	view    map[string]evaluation // nil: not seen yet
	retired map[string]bool       // UIDs of deleted pools of which the node has released everything
	// unseen is why the cluster, or the Node object, is not seen: "" when it is.
	unseen      string
	controllers map[string]*poolController
	// unreadable is why no ADD can lease, "" when the leases were read.
	unreadable string
}

const (
	// tick is how often a poolController checks what is due, and how often the leases
	// are read; tidyEvery is how often the node files are checked.
	tick, tidyEvery = 200 * time.Millisecond, time.Second
	// sweepAfter is the delay before the first search for blocks of this node that no
	// file on the node names; sweepEvery is the interval of the later searches.
	sweepAfter, sweepEvery = 10 * time.Minute, time.Hour
)

// New returns an agent. It does no I/O.
func New(c Config) *Agent {
	a := &Agent{Config: c, controllers: map[string]*poolController{}}
	a.meter = &meter{book: c.Leases, dir: c.Ranges.Dir, now: c.Now}
	a.metrics = newMetrics(a)
	return a
}

// Run works until the context ends, and returns its error, or that of Watch. There is
// nothing to undo: the next start finds requests again that got no answer.
func (a *Agent) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { a.look(ctx) })
	all.Go(func() { a.sweeps(ctx, &all) })
	all.Go(func() { a.keepServices(ctx) })
	all.Go(func() { a.tellHeals(ctx) })
	err := a.Watch(ctx, func(v View) { a.see(ctx, &all, v) })
	stop()
	all.Wait()
	return err
}

// look reads the leases periodically, and writes node files again that were removed or
// changed.
func (a *Agent) look(ctx context.Context) {
	var tidying pace.Pause
	for {
		if err := a.meter.read(ctx); ctx.Err() == nil {
			a.unread(err)
		}
		if now := a.Now(); tidying.Over(now) {
			tidying.Until = now + tidyEvery
			a.tidy()
		}
		if a.Wait(ctx, tick) != nil {
			return
		}
	}
}

// tidy corrects each node file, and looks for orphans.
func (a *Agent) tidy() {
	a.writeServices()
	a.mu.Lock()
	controllers := slices.Collect(maps.Values(a.controllers))
	a.mu.Unlock()
	for _, k := range controllers {
		k.mu.Lock()
		k.write()
		k.findOrphans()
		k.mu.Unlock()
	}
}

// unread stores why the leases cannot be read, and logs a change.
func (a *Agent) unread(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.unreadable
	a.unreadable = ""
	if err != nil {
		a.unreadable = "the leases of the node cannot be read, and ADDs fail: " + Line(err)
	}
	switch {
	case a.unreadable == before:
	case err == nil:
		a.Log.Info("the leases of the node can be read again")
	default:
		a.Log.Error("the leases of the node cannot be read: ADDs fail, and the agent cannot tell when the node needs another block", About(err)...)
	}
}

// see processes a new view.
func (a *Agent) see(ctx context.Context, all *sync.WaitGroup, v View) {
	if a.blind(v); v.Fault != nil {
		return
	}
	view := evaluate(a.Node, v)
	wanted, err := a.Ranges.Pools() // a pool with a file was ours before the agent was started
	if err != nil {
		a.Log.Error("the node files of the pools cannot be read", "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	retired := map[string]bool{}
	for name, j := range view {
		retired[j.uid] = a.retired[j.uid]
		if j.selected && !retired[j.uid] {
			wanted = append(wanted, name)
		}
	}
	a.view, a.retired = view, retired
	for _, name := range wanted {
		a.keep(ctx, all, name)
	}
}

// blind stores why a view is incomplete.
func (a *Agent) blind(v View) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unseen = ""
	if err := cmp.Or(v.Fault, v.NoNode); err != nil {
		a.unseen = Line(err)
	}
}

// keep starts the controller of a pool, unless one runs. It is called with the lock
// held.
func (a *Agent) keep(ctx context.Context, all *sync.WaitGroup, pool string) {
	if a.controllers[pool] != nil || ctx.Err() != nil {
		return
	}
	k := newPoolController(a, pool)
	a.controllers[pool] = k
	all.Go(func() { k.run(ctx) })
}

// evaluation returns the evaluation of a pool, and whether the pool exists. A deleted
// pool does not count.
func (a *Agent) evaluation(pool string) (evaluation, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	j, there := a.view[pool]
	return j, there && !j.deleted
}

// forget ends the management of a pool, unless it exists again.
func (a *Agent) forget(pool string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	j, there := a.view[pool]
	if there && !j.deleted {
		return false
	}
	if there {
		a.retired[j.uid] = true
	}
	delete(a.controllers, pool)
	return true
}

// sweeps looks from time to time for blocks of this node in pools that the agent does not
// manage, because they selected the node before a boot or were deleted while no agent ran.
func (a *Agent) sweeps(ctx context.Context, all *sync.WaitGroup) {
	after := sweepAfter
	for a.Wait(ctx, a.Spread(after)) == nil {
		after = sweepEvery
		blocks, err := a.Store.List(ctx, block.Query{MachineID: a.Node.MachineID, Freshness: block.Cached})
		if err != nil {
			after = sweepAfter
			continue // the store has logged the reason
		}
		a.mu.Lock()
		for _, b := range blocks {
			if b.Spec.NodeName == a.Node.Name && a.view != nil {
				a.keep(ctx, all, b.Spec.Pool)
			}
		}
		a.mu.Unlock()
	}
}
