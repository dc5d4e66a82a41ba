// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
)

const (
	claiming = "claim block of RailPool"
	// smallPool is the most blocks of a pool that is listed whole: 1,000 objects, about 0.7
	// MB, cost less than requests for blocks that have an owner.
	smallPool = 1024
	// patience is the number of conflicts after which Claim lists again. In a small pool
	// they come of other nodes that claim just now, in a large one of a pool nearly full.
	patience, longPatience = 2, 256
	// lists is how many lists are needed to know that no block is free. The last is Latest.
	lists = 2
	// recent is how long Claim uses the answer that Own got: an agent that starts
	// claims at once.
	recent = 5 * time.Second
)

// Claimer claims blocks for a node. All fields are needed. Only one goroutine at a time may
// use it. A process keeps one for each pool: it remembers a name that got no answer.
type Claimer struct {
	Store Store
	Node  Node
	// Machine is Cluster's, for other nodes that have blocks with our machine-id.
	Machine func(ctx context.Context, node string) (string, error)
	// Doubt is told, perhaps again and again, what is wrong with another node's block, which
	// stops no claim: it does not fit the pool, or another live node has our machine-id.
	Doubt func(err error)
	pace.Clock

	pending string // a block that we may have made, or that the server may still make for us
	told    told   // by Own
}

// told is the last answer to Own, and the rack of the node at that time.
type told struct {
	pool, rack string
	blocks     []Block
	until      time.Duration
}

// answers says whether it is as good as a new answer to this query of Claim.
func (t told) answers(q Query, now time.Duration) bool {
	return q.MachineID != "" && q.Pool == t.pool && q.Rack == t.rack && now < t.until
}

// Claim is a block that the node owns, and the work that was needed to get it.
type Claim struct {
	Block
	Conflicts int // names that other nodes had
	Lists     int
}

// Claim gets one more block for the node: one that it owns and that is not in have, or the
// first free one in the node's order. It requests one name until there is an answer, and only
// then the next. If the context ends before, the next call begins with this name.
//
// Errors: PoolExhausted; BadConfig for a machine-id that is missing, or for a block of
// this node that does not fit the pool; TryAgain when the context ends; and the store's.
func (c *Claimer) Claim(ctx context.Context, s Space, have []Block) (Claim, error) {
	w := &claim{Claimer: c, space: s, taken: map[string]bool{}, closed: map[string]bool{}}
	for _, b := range have {
		w.closed[b.Name] = true
	}
	b, err := w.run(ctx)
	if err != nil {
		return Claim{}, c.explain(ctx, s, err)
	}
	w.result.Block = b
	return w.result, nil
}

// Own returns the node's blocks, by index. One that was claimed a moment ago may be missing:
// Claim adopts it. In a large pool, a Claim in the next seconds uses the same answer, because
// all nodes of a cluster start at once. The errors are those of Claim without PoolExhausted.
func (c *Claimer) Own(ctx context.Context, s Space) ([]Block, error) {
	w := &claim{Claimer: c, space: s, taken: map[string]bool{}}
	all, err := w.list(ctx, Query{Pool: s.pool, MachineID: c.Node.MachineID, Freshness: Cached})
	var mine []Block
	if err == nil {
		c.told = told{s.pool, s.rack, all, c.Now() + recent}
		mine, err = w.sift(ctx, all)
	}
	if err != nil {
		return nil, c.explain(ctx, s, err)
	}
	slices.SortFunc(mine, func(a, b Block) int { return a.Spec.Index - b.Spec.Index })
	return mine, nil
}

// claim is one call of Claim.
type claim struct {
	*Claimer
	space  Space
	closed map[string]bool // ours, and known to the caller
	taken  map[string]bool // blocks with an owner, when we last looked
	result Claim
}

func (w *claim) run(ctx context.Context) (Block, error) {
	if w.pending != "" {
		if b, ours, err := w.settle(ctx, w.pending); err != nil || ours {
			return b, err
		}
	}
	q := w.all(Cached)
	if w.space.Blocks() > smallPool {
		q.MachineID = w.Node.MachineID
	}
	for range lists {
		mine, err := w.look(ctx, q)
		if err != nil {
			return Block{}, err
		}
		b, ours, err := w.adopt(ctx, mine)
		if err == nil && !ours {
			b, ours, err = w.pass(ctx, q.Freshness)
		}
		if err != nil || ours {
			return b, err
		}
		q = w.all(Latest)
	}
	return Block{}, cnierr.New(cnierr.PoolExhausted, claiming, w.space.pool,
		"widen the ranges of the RailPool, or look at the owners of the blocks: kubectl get railblocks",
		"all %d blocks of %d host indexes have an owner", w.space.Blocks(), w.space.size)
}

// adopt takes one of the node's blocks that the caller does not know: another agent of the
// node claimed it.
func (w *claim) adopt(ctx context.Context, mine []Block) (Block, bool, error) {
	for _, b := range mine {
		if _, open := w.space.has(b.Name); w.closed[b.Name] || !open {
			continue
		}
		if b, err := w.assert(ctx, b); !held(err) {
			return b, err == nil, err
		}
	}
	return Block{}, false, nil
}

// settle repeats the request for the name that got no answer.
func (w *claim) settle(ctx context.Context, name string) (Block, bool, error) {
	if _, open := w.space.has(name); open && !w.closed[name] {
		return w.take(ctx, name)
	}
	// The caller knows it by now, or the pool has changed and Own shows it.
	w.pending = ""
	return Block{}, false, nil
}

// pass tries each block without known owner, after a list of this freshness. In a large pool,
// which is not listed whole, it peeks at each but the first before: that costs far less than
// a write for a block that has an owner.
func (w *claim) pass(ctx context.Context, f Freshness) (b Block, ours bool, err error) {
	met, limit := 0, patience
	if w.space.Blocks() > smallPool {
		limit = longPatience
	}
	for index := range w.space.order(w.Node) {
		name := w.space.Name(index)
		if w.taken[name] || w.closed[name] {
			continue
		}
		free := true
		if met > 0 && limit == longPatience && f == Cached {
			if free, err = w.peek(ctx, name); err != nil {
				return Block{}, false, err
			}
		}
		if free {
			if b, ours, err = w.take(ctx, name); err != nil || ours {
				return b, ours, err
			}
		}
		if met++; met%limit != 0 {
			continue
		}
		mine, err := w.look(ctx, w.all(Cached))
		if err == nil {
			b, ours, err = w.adopt(ctx, mine)
		}
		if err != nil || ours {
			return b, ours, err
		}
	}
	return Block{}, false, nil
}

// peek says whether a block may be free, or ours: take finds out which.
func (w *claim) peek(ctx context.Context, name string) (free bool, err error) {
	var b Block
	err = w.retry(ctx, func() (err error) { b, err = w.Store.Peek(ctx, name); return err })
	if errors.Is(err, ErrNotFound) {
		return true, nil
	}
	if err != nil || w.Node.owns(b) {
		return true, err
	}
	return false, w.met(ctx, b)
}

// met looks at another node's block. The error is that of a request.
func (w *claim) met(ctx context.Context, b Block) error {
	if err := w.space.Check(b); err != nil {
		w.misfit(b, err)
	}
	return w.clone(ctx, b)
}

// misfit has all blocks count as taken with which a block that does not fit shares slots.
func (w *claim) misfit(b Block, why error) {
	w.Doubt(why)
	size := min(max(b.Spec.Size, 1), MaxSize)
	first := min(max(b.Spec.Index, 0), MaxBlocks) * size
	for i := first / w.space.size; i <= (first+size-1)/w.space.size; i++ {
		w.taken[w.space.Name(i)] = true
	}
}

// all is a query for the blocks that the node can meet.
func (w *claim) all(f Freshness) Query {
	return Query{Pool: w.space.pool, Rack: w.space.rack, Freshness: f}
}

// take creates a block, unless it has an owner, and says whether it is ours. Until there is an
// answer, the name is pending: the request may still create the block.
func (w *claim) take(ctx context.Context, name string) (Block, bool, error) {
	w.pending = name
	b, err := w.hold(ctx, w.block(name))
	if err == nil || held(err) {
		w.pending = ""
	}
	if !held(err) {
		return b, err == nil, err
	}
	w.result.Conflicts++
	return Block{}, false, w.met(ctx, b)
}

// block is the block that we request.
func (w *claim) block(name string) Block {
	index, _ := w.space.has(name)
	return Block{Name: name, Spec: Spec{
		Pool: w.space.pool, Rack: w.space.rack, Index: index, Size: w.space.size,
		Owner: w.Node.Owner(),
	}}
}

// list asks the store.
func (w *claim) list(ctx context.Context, q Query) (all []Block, err error) {
	if w.Node.Name == "" || w.Node.MachineID == "" {
		return nil, cnierr.New(cnierr.BadConfig, claiming, w.space.pool, "make a machine-id: systemd-machine-id-setup",
			"node %q has machine-id %q", w.Node.Name, w.Node.MachineID)
	}
	w.result.Lists++
	err = w.retry(ctx, func() (err error) { all, err = w.Store.List(ctx, q); return err })
	return all, err
}

// look lists blocks, unless Own has just listed them, and sifts them.
func (w *claim) look(ctx context.Context, q Query) (mine []Block, err error) {
	all := w.told.blocks
	if !w.told.answers(q, w.Now()) {
		if all, err = w.list(ctx, q); err != nil {
			return nil, err
		}
	}
	return w.sift(ctx, all)
}

// sift notes which blocks have an owner, and returns ours.
func (w *claim) sift(ctx context.Context, all []Block) (mine []Block, err error) {
	clear(w.taken)
	asked := map[string]bool{}
	for _, b := range all {
		w.taken[b.Name] = true
		unfit := w.space.Check(b)
		if w.Node.owns(b) {
			if unfit != nil {
				return nil, unfit
			}
			mine = append(mine, b)
			continue
		}
		// A clone may be in another rack. Then its blocks do not conflict with ours.
		if unfit != nil && b.Spec.Rack == w.space.rack {
			w.misfit(b, unfit)
		}
		if !asked[b.Spec.NodeName] {
			asked[b.Spec.NodeName] = true
			if err := w.clone(ctx, b); err != nil {
				return nil, err
			}
		}
	}
	return mine, nil
}

// clone reports the owner of b, which is another node, if it lives and has our machine-id. That stops
// no claim (ADR 25).
func (w *claim) clone(ctx context.Context, b Block) error {
	if b.Spec.MachineID != w.Node.MachineID {
		return nil
	}
	var state OwnerState
	err := w.retry(ctx, func() (err error) { state, err = OwnerNow(ctx, w.Machine, b.Spec.Owner); return err })
	if err != nil || state != Here {
		return err
	}
	w.Doubt(cnierr.New(cnierr.BadConfig, "compare machine-ids in RailPool", w.space.pool,
		fmt.Sprintf("give one of the two a new machine-id: rm /etc/machine-id, systemd-machine-id-setup, reboot; and empty the file in the image of %s and %s", b.Spec.NodeName, w.Node.Name),
		"nodes %q and %q have the same machine-id %s, and %s has block %s", b.Spec.NodeName, w.Node.Name, w.Node.MachineID, b.Spec.NodeName, b.Name))
	return nil
}

// Node is a node that claims blocks.
type Node struct {
	Name      string // of its Node object
	MachineID string // /etc/machine-id
	// Own is the addresses of the node itself on the rails, if it has any. They say
	// where the search begins.
	Own []netip.Addr
}

// Confirm compares the machine-id with the one that the Node object reports; "" is no error.
// TryAgain: they differ. The node must not claim, because a reaper would take its blocks as
// those of a replaced machine.
func (n Node) Confirm(reported string) error {
	if reported == "" || reported == n.MachineID {
		return nil
	}
	return cnierr.New(cnierr.TryAgain, "confirm machine-id of node", n.Name,
		"restart kubelet, which reports the machine-id of its own start; if it still differs, another machine uses this node name: kubectl get node "+n.Name+" -o jsonpath={.status.nodeInfo}",
		"it is %s here, and %s in the Node object", n.MachineID, reported)
}

// Owner returns the node as the owner of an object.
func (n Node) Owner() Owner { return Owner{n.Name, n.MachineID} }

// owns says whether the node owns a block.
func (n Node) owns(b Block) bool { return b.Spec.Owner == n.Owner() }

// order returns the indexes of all blocks in the order in which a node tries them, which is
// the same after a restart: the hint, and then by double hashing of the node. So two nodes
// that met at one block do not meet again at the next one.
func (s Space) order(node Node) iter.Seq[int] {
	sum := sha256.Sum256([]byte(node.MachineID + "\x00" + node.Name))
	hint, hinted := s.Hint(node.Own)
	return func(yield func(int) bool) {
		if hinted && !yield(s.Index(hint)) {
			return
		}
		for n := range probes(sum[:16], s.Blocks()) {
			if hinted && n == hint {
				continue
			}
			if !yield(s.Index(n)) {
				return
			}
		}
	}
}

// probes returns the numbers below count, each once: a sum of 16 bytes has start and step.
func probes(sum []byte, count int) iter.Seq[int] {
	return func(yield func(int) bool) {
		if count == 0 {
			return
		}
		n := uint64(count)
		start, step := binary.BigEndian.Uint64(sum[:8])%n, binary.BigEndian.Uint64(sum[8:])%n
		for gcd(step, n) != 1 { // otherwise some numbers are never reached
			step++
		}
		for i := range n {
			if !yield(int((start + i*step%n) % n)) {
				return
			}
		}
	}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
