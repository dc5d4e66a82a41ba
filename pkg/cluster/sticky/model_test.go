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

	clock    time.Duration
	sighted  sticky.Sightings
	due      []sticky.Lease
	granted  int // ADDs that got a slot
	refused  int // ADDs that found their answer gone
	returned int // answers that were withdrawn in vain
	freed    int // leases that were reaped, or freed of their holder
}

// modelNode is a node: what is on its disk, and what its processes are about to do.
type modelNode struct {
	claimer sticky.Claimer
	here    bool // there is a Node object
	answers map[nodefile.Key]int
	wanted  map[nodefile.Key]bool
	ledger  map[int]nodefile.Key // what is leased
	running map[int]nodefile.Key // what pods use

	agent   step // its next step, which returns the one after it; nil: it waits
	started bool // it has looked at what it holds
	adds    map[nodefile.Key]step
}

const modelPods = 5

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
		n := &modelNode{claimer: claimer(m.store, i), here: true, wanted: map[nodefile.Key]bool{}}
		n.claimer.Now = m.now
		n.boot()
		m.nodes = append(m.nodes, n)
	}
	return m
}

func (m *model) now() time.Time { return day().Add(m.clock) }

// boot makes nothing of before count: answers are of a boot, and the runtime
// deletes what it finds.
func (n *modelNode) boot() {
	n.agent, n.started = nil, false
	n.answers, n.ledger, n.running = map[nodefile.Key]int{}, map[int]nodefile.Key{}, map[int]nodefile.Key{}
	n.adds = map[nodefile.Key]step{}
}

// add is an ADD. It ends with the pod running, or without a lease.
func (m *model) add(n *modelNode, k nodefile.Key) step {
	return func() step {
		slot, there := n.answers[k]
		if !there {
			n.wanted[k] = true
			return nil // error 11; the runtime tries again
		}
		return func() step {
			if _, used := n.ledger[slot]; used {
				return nil // by the former sandbox of the pod
			}
			n.ledger[slot] = k
			return func() step {
				if again, there := n.answers[k]; !there || again != slot {
					delete(n.ledger, slot)
					m.refused++
					return nil
				}
				n.running[slot] = k
				m.granted++
				return nil
			}
		}
	}
}

// serve is what an agent does about a request.
func (m *model) serve(n *modelNode, k nodefile.Key) step {
	return func() step {
		l, err := n.claimer.Take(m.Context(), m.slots, k)
		if err != nil {
			if errors.As(err, new(*sticky.HeldError)) || errors.As(err, new(*sticky.NoneError)) {
				delete(n.wanted, k) // ordinary addresses
			}
			return nil
		}
		return func() step {
			n.answers[k] = l.Spec.Slot
			return func() step {
				delete(n.wanted, k)
				return nil
			}
		}
	}
}

// withdraw is what an agent does about an answer that no pod uses.
func (m *model) withdraw(n *modelNode, k nodefile.Key) step {
	slot := n.answers[k]
	if _, used := n.ledger[slot]; used || n.wanted[k] {
		return nil
	}
	return func() step {
		delete(n.answers, k)
		return func() step {
			if _, used := n.ledger[slot]; used {
				n.answers[k] = slot
				m.returned++
				return nil
			}
			return m.release(n, slot)
		}
	}
}

func (m *model) release(n *modelNode, slot int) step {
	return func() step {
		if err := n.claimer.Release(m.Context(), sticky.Lease{Name: m.slots.Name(slot)}); err != nil {
			n.started = m.random.IntN(2) == 0 // it looks at once, or when it does so anyway
		}
		return nil
	}
}

// start is what an agent does about what the server says it holds, and about its
// answers.
func (m *model) start(n *modelNode) step {
	return func() step {
		held, err := n.claimer.Held(m.Context(), m.slots.Pool)
		if err != nil {
			return nil
		}
		n.started = true
		var steps []step
		for _, l := range held {
			_, used := n.ledger[l.Spec.Slot]
			if answered, there := n.answers[l.Spec.Key()]; !used && !n.wanted[l.Spec.Key()] && (!there || answered != l.Spec.Slot) {
				steps = append(steps, m.release(n, l.Spec.Slot))
			}
		}
		for _, k := range slices.SortedFunc(maps.Keys(n.answers), byPod) {
			steps = append(steps, m.affirm(n, k))
		}
		return inOrder(steps)
	}
}

func (m *model) affirm(n *modelNode, k nodefile.Key) step {
	return func() step {
		slot := n.answers[k]
		_, err := n.claimer.Affirm(m.Context(), sticky.Lease{Name: m.slots.Name(slot), Spec: sticky.Spec{
			Pool: m.slots.Pool, Slot: slot, Namespace: k.Namespace, Pod: k.Pod, Interface: k.Interface,
		}})
		if errors.As(err, new(*sticky.HeldError)) {
			m.Fatalf("%s has lost %s, and etcd was never restored: %v", n.claimer.Node.Name, m.slots.Name(slot), err)
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
			m.sighted = sticky.Sightings{} // another replica
		}
		m.sighted, m.due = m.sighted.Look(m.clock, m.now(), sticky.World{Leases: m.store.Snapshot(), Pools: sticky.TermsOf(m.pools), Nodes: c.nodes})
		return
	}
	if done, _ := sticky.Reap(m.Context(), m.store, c, m.now(), m.due[0]); done {
		m.freed++
	}
	m.due = m.due[1:]
}

// act is one step of a participant.
func (m *model) act() {
	n := m.nodes[m.random.IntN(len(m.nodes))]
	switch x := m.random.IntN(200); {
	case x < 2:
		m.clock += time.Duration(m.random.IntN(180)) * time.Minute
	case x < 3: // the agent is killed
		n.agent, n.started = nil, false
	case x < 4: // the node is switched off, and its Node object deleted, or comes back
		n.boot()
		n.here = !n.here
	case x < 5:
		n.boot()
	case x < 10:
		m.reap()
	case x < 16:
		m.store.Land()
	case !n.here:
	case x < 105:
		m.agentStep(n)
	default:
		m.podStep(n, pod(m.random.IntN(modelPods)))
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
	case len(n.answers) > 0 && m.random.IntN(2) == 0:
		return m.withdraw(n, one(m, n.answers))
	case m.random.IntN(20) == 0:
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
	held := map[int]sticky.Holder{}
	for _, l := range m.store.Snapshot() {
		held[l.Spec.Slot] = l.Spec.Holder
	}
	for i, n := range m.nodes {
		for slot, k := range n.running {
			if held[slot] != holder(i) {
				m.Fatalf("%v uses slot %d on node %d, and %+v holds it", k, slot, i, held[slot])
			}
		}
		for k, slot := range n.answers {
			if held[slot] != holder(i) {
				m.Fatalf("node %d would give slot %d to %v, and %+v holds it", i, slot, k, held[slot])
			}
		}
	}
}

func TestTwoNodesNeverUseOneSlot(t *testing.T) {
	t.Parallel()
	var granted, refused, returned, freed int
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newModel(t, seed)
			for range 6000 {
				m.act()
				m.verify()
			}
			granted, refused, returned, freed = granted+m.granted, refused+m.refused, returned+m.returned, freed+m.freed
		})
	}
	t.Logf("%d ADDs got a slot, %d found their answer gone, %d answers were put back, %d leases reaped or freed", granted, refused, returned, freed)
	if granted < 300 || refused < 10 || returned < 3 || freed < 50 {
		t.Error("the model does not reach what it is about")
	}
}
