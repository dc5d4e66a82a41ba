// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sticky_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// The model is a cluster in which everything that has several steps can stop
// between any two of them: agents, plugins, requests, nodes. What an agent and an ADD
// do here, in which order, is what keeps two nodes from using one slot.
type model struct {
	*testing.T
	random *rand.Rand
	store  *stickytest.Mem
	slots  block.Slots
	pools  []block.Pool
	nodes  []*modelNode

	clock   time.Duration
	sighted block.Sightings
	due     []sticky.Lease
	granted int // ADDs that got a slot
	refused int // ADDs that leased too late
	freed   int // leases that were reaped, or freed of their holder
}

// modelNode is a node: what is on its disk, and what its processes are about to do.
type modelNode struct {
	claimer sticky.Claimer
	here    bool                 // there is a Node object
	ledger  map[int]nodefile.Key // what is leased
	running map[int]nodefile.Key // what pods use

	agent   step // its next step, which returns the one after it; nil: it waits
	started bool // it has looked at what it holds
	began   time.Duration
	grants  map[nodefile.Key]grant
	mine    map[nodefile.Key]int // what it has taken and not released since

	adds    map[nodefile.Key]step
	wanted  map[nodefile.Key]bool
	answers map[nodefile.Key]grant // those on their way to ADDs
}

// grant is a slot that an ADD may lease until a time.
type grant struct {
	slot  int
	until time.Duration
}

const (
	modelPods = 5
	grantTime = 10 * time.Second
)

// step is a part of what a process does that nothing interrupts. It returns the
// next one; nil: there is none.
type step func() step

func newModel(t *testing.T, seed uint64) *model {
	m := &model{T: t, random: rand.New(rand.NewPCG(seed, 7)), store: stickytest.NewMem(), slots: slots(t, 1), pools: []block.Pool{pool(t, 1)}}
	m.store.Now = m.now
	m.store.Fault = func(blocktest.Op, string) blocktest.Fault {
		faults := []blocktest.Fault{blocktest.Refused, blocktest.Lost, blocktest.Landed, blocktest.Late}
		if m.random.IntN(6) > 0 {
			return blocktest.None
		}
		return faults[m.random.IntN(len(faults))]
	}
	for i := range 3 {
		n := &modelNode{claimer: claimer(m.store, i), here: true}
		n.claimer.Now = m.now
		m.boot(n)
		m.nodes = append(m.nodes, n)
	}
	return m
}

func (m *model) now() time.Time { return day().Add(m.clock) }

// boot makes nothing of before count: the runtime deletes what it finds.
func (m *model) boot(n *modelNode) {
	m.kill(n)
	n.ledger, n.running, n.adds = map[int]nodefile.Key{}, map[int]nodefile.Key{}, map[nodefile.Key]step{}
	n.answers = map[nodefile.Key]grant{}
}

// kill has the next agent begin. ADDs that wait get no answer.
func (m *model) kill(n *modelNode) {
	n.agent, n.started, n.began = nil, false, m.clock
	n.grants, n.mine, n.wanted = map[nodefile.Key]grant{}, map[nodefile.Key]int{}, map[nodefile.Key]bool{}
}

// add is an ADD. It ends with the pod running, or without a lease.
func (m *model) add(n *modelNode, k nodefile.Key) step {
	return func() step {
		n.wanted[k] = true
		delete(n.answers, k) // of an ADD before
		return m.hear(n, k)
	}
}

// hear is an ADD that waits for its answer.
func (m *model) hear(n *modelNode, k nodefile.Key) step {
	return func() step {
		a, there := n.answers[k]
		switch {
		case there:
			return m.lease(n, k, a)
		case !n.wanted[k] || m.random.IntN(20) == 0:
			delete(n.wanted, k)
			return nil // error 11; the runtime tries again
		}
		return m.hear(n, k)
	}
}

func (m *model) lease(n *modelNode, k nodefile.Key, a grant) step {
	return func() step {
		if _, used := n.ledger[a.slot]; used {
			return nil // by the former sandbox of the pod
		}
		n.ledger[a.slot] = k
		return func() step {
			if m.clock >= a.until {
				delete(n.ledger, a.slot)
				m.refused++
				return nil
			}
			n.running[a.slot] = k
			m.granted++
			return nil
		}
	}
}

// serve is what an agent does about a request.
func (m *model) serve(n *modelNode, k nodefile.Key) step {
	if slot, there := n.mine[k]; there {
		return m.answer(n, k, slot)
	}
	return func() step {
		l, err := n.claimer.Take(m.Context(), m.slots, k)
		if err != nil {
			delete(n.wanted, k) // ordinary addresses, or error 11
			return nil
		}
		n.mine[k] = l.Spec.Slot
		return m.answer(n, k, l.Spec.Slot)
	}
}

func (m *model) answer(n *modelNode, k nodefile.Key, slot int) step {
	return func() step {
		g := grant{slot, m.clock + grantTime}
		n.grants[k] = g
		return func() step {
			if n.wanted[k] {
				n.answers[k] = g
			}
			delete(n.wanted, k)
			return nil
		}
	}
}

// start is what an agent does about what the server says it holds: it releases what no
// pod uses, and affirms the rest.
func (m *model) start(n *modelNode) step {
	return func() step {
		held, err := n.claimer.Held(m.Context(), m.slots.Pool)
		if err != nil {
			return nil
		}
		return func() step {
			maps.DeleteFunc(n.grants, func(_ nodefile.Key, g grant) bool { return m.clock >= g.until })
			granted := map[int]bool{}
			for _, g := range n.grants {
				granted[g.slot] = true
			}
			return func() step {
				n.started = true
				var steps []step
				for _, l := range held {
					if _, used := n.ledger[l.Spec.Slot]; used || granted[l.Spec.Slot] {
						steps = append(steps, m.affirm(n, l))
					} else if m.clock >= n.began+grantTime {
						steps = append(steps, m.release(n, l))
					}
				}
				return inOrder(steps)
			}
		}
	}
}

func (m *model) release(n *modelNode, l sticky.Lease) step {
	return func() step {
		delete(n.mine, l.Spec.Key())
		if err := n.claimer.Release(m.Context(), l); err != nil {
			n.started = m.random.IntN(2) == 0 // it looks at once, or when it does so anyway
		}
		return nil
	}
}

func (m *model) affirm(n *modelNode, l sticky.Lease) step {
	return func() step {
		_, err := n.claimer.Affirm(m.Context(), l)
		if errors.As(err, new(*block.HeldError)) {
			m.Fatalf("%s has lost %s, and etcd was never restored: %v", n.claimer.Node.Name, l.Name, err)
		}
		if err == nil {
			n.mine[l.Spec.Key()] = l.Spec.Slot
		}
		return nil
	}
}

func byPod(a, b nodefile.Key) int { return slices.Compare([]byte(a.Pod), []byte(b.Pod)) }

// inOrder does steps, each with those that follow from it.
func inOrder(steps []step) step {
	if len(steps) == 0 {
		return nil
	}
	return func() step {
		if next := steps[0](); next != nil {
			return inOrder(append([]step{next}, steps[1:]...))
		}
		return inOrder(steps[1:])
	}
}

// reap is a step of the reaper.
func (m *model) reap() {
	c := newCluster()
	for _, n := range m.nodes {
		if n.here {
			c.nodes[n.claimer.Node.Name] = n.claimer.Node.MachineID
		}
	}
	if len(m.due) == 0 {
		if m.random.IntN(20) == 0 {
			m.sighted = block.Sightings{} // another replica
		}
		m.sighted, m.due = sticky.Look(m.sighted, m.clock, m.now(), sticky.World{Leases: m.store.Snapshot(), Pools: sticky.TermsOf(m.pools), Nodes: c.nodes})
		return
	}
	if done, _ := sticky.Reap(m.Context(), m.store, c, m.now(), m.due[0]); done {
		m.freed++
	}
	m.due = m.due[1:]
}

// act is one step of a participant.
func (m *model) act() {
	m.clock += time.Duration(m.random.IntN(300)) * time.Millisecond
	n := m.nodes[m.random.IntN(len(m.nodes))]
	switch x := m.random.IntN(200); {
	case x < 1:
		m.clock += time.Duration(m.random.IntN(180)) * time.Minute
	case x < 2: // the agent is killed
		m.kill(n)
	case x < 3: // the node is switched off, and its Node object deleted, or comes back
		m.boot(n)
		n.here = !n.here
	case x < 4:
		m.boot(n)
	case x < 10:
		m.reap()
	case x < 16:
		m.store.Land()
	case !n.here:
	case x < 105:
		m.agentStep(n)
	default:
		k := pod(m.random.IntN(modelPods))
		if len(n.adds) > 0 && m.random.IntN(4) > 0 {
			k = one(m, n.adds)
		}
		m.podStep(n, k)
	}
}

func (m *model) agentStep(n *modelNode) {
	if n.agent == nil {
		n.agent = m.chore(n)
		return
	}
	n.agent = n.agent()
}

// chore is what an agent that waits begins with.
func (m *model) chore(n *modelNode) step {
	switch {
	case !n.started:
		return m.start(n)
	case len(n.wanted) > 0:
		return m.serve(n, one(m, n.wanted))
	case m.random.IntN(3) == 0:
		return m.start(n)
	}
	return nil
}

// one returns one of the pods that a map is about.
func one[V any](m *model, of map[nodefile.Key]V) nodefile.Key {
	keys := slices.SortedFunc(maps.Keys(of), byPod)
	return keys[m.random.IntN(len(keys))]
}

// podStep goes on with an ADD of a pod, begins one, kills it, or deletes the pod.
func (m *model) podStep(n *modelNode, k nodefile.Key) {
	switch next := n.adds[k]; {
	case next != nil && m.random.IntN(20) == 0: // killed: its DEL comes when it comes
		delete(n.adds, k)
	case next != nil:
		if n.adds[k] = next(); n.adds[k] == nil {
			delete(n.adds, k)
		}
	case has(n.ledger, k) && m.random.IntN(3) == 0:
		maps.DeleteFunc(n.running, func(_ int, o nodefile.Key) bool { return o == k })
		maps.DeleteFunc(n.ledger, func(_ int, o nodefile.Key) bool { return o == k })
	case !has(n.running, k):
		n.adds[k] = m.add(n, k) // maybe on two nodes: the pod was deleted by force
	}
}

func has(slots map[int]nodefile.Key, k nodefile.Key) bool {
	return slices.Contains(slices.Collect(maps.Values(slots)), k)
}

// verify finds two nodes that use one slot, and one that uses what it does not hold.
func (m *model) verify() {
	held := map[int]block.Owner{}
	for _, l := range m.store.Snapshot() {
		held[l.Spec.Slot] = l.Spec.Holder
	}
	for i, n := range m.nodes {
		for slot, k := range n.running {
			if held[slot] != holder(i) {
				m.Fatalf("%v uses slot %d on node %d, and %+v holds it", k, slot, i, held[slot])
			}
		}
		for k, g := range n.grants {
			if m.clock < g.until && held[g.slot] != holder(i) {
				m.Fatalf("node %d has granted slot %d to %v, and %+v holds it", i, g.slot, k, held[g.slot])
			}
		}
	}
}

func TestTwoNodesNeverUseOneSlot(t *testing.T) {
	t.Parallel()
	var granted, refused, freed int
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newModel(t, seed)
			for range 20000 {
				m.act()
				m.verify()
			}
			granted, refused, freed = granted+m.granted, refused+m.refused, freed+m.freed
		})
	}
	t.Logf("%d ADDs got a slot, %d leased too late, %d leases reaped or freed", granted, refused, freed)
	if granted < 300 || refused < 10 || freed < 20 {
		t.Error("the model does not reach what it is about")
	}
}
