// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// keeping is a pool of two rails that keeps 32 slots for pods.
func keeping(t *testing.T) block.Pool {
	t.Helper()
	return poolOf(t, "compute", 1, `{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/22"}]}, "sticky": {"ttl": "1h", "slots": "512-543"}}`)
}

func db(pod string) nodefile.Key {
	return nodefile.Key{Namespace: "train", Pod: pod, Interface: "net1"}
}

// Why an ADD is tried again.
var (
	errNoAnswer = errors.New("the agent has no answer")
	errLate     = errors.New("the addresses were leased after the end of the grant")
)

// add is an ADD for a pod that keeps its addresses: it returns the one on the first
// rail, or the zero one if the pod got others.
func (n *node) add(pod, container string) (netip.Addr, error) {
	return n.slowAdd(pod, container, func() {})
}

// slowAdd has a pause between any two steps.
func (n *node) slowAdd(pod, container string, pause func()) (netip.Addr, error) {
	n.t.Helper()
	f, err := n.files().Read("compute")
	if err != nil {
		return netip.Addr{}, err
	}
	key, ok := nodefile.Sticky("train", pod, "net1")
	if !ok || !f.Sticky {
		n.t.Fatalf("the file says sticky: %t, pod %s", f.Sticky, pod)
	}
	a := n.ask(key)
	if a.Wait != "" {
		return netip.Addr{}, fmt.Errorf("%w: %s", errNoAnswer, a.Wait)
	}
	owner := ipam.Owner{Network: "net", ContainerID: container, IfName: "net1", PodNamespace: "train", PodName: pod}
	if !a.Granted() {
		return netip.Addr{}, n.leaseTo(f, owner)
	}
	pause()
	if err := n.leaseTo(f.Only(a), owner); err != nil {
		return netip.Addr{}, err
	}
	pause()
	if n.now() >= a.Until {
		n.release(container)
		return netip.Addr{}, errLate
	}
	return a.Rails[0][0].Ranges[0].First, nil
}

// ask asks as an ADD does.
func (n *node) ask(key nodefile.Key) nodefile.Answer {
	n.mu.Lock()
	a := n.Agent
	n.mu.Unlock()
	began := n.now()
	answer := a.Ask(n.t.Context(), "compute", key)
	if took := n.now() - began; took >= nodefile.AskTime {
		n.t.Errorf("an answer took %v", took)
	}
	return answer
}

// mustAdd adds a pod that gets the addresses that are kept for it.
func (n *node) mustAdd(pod, container string) netip.Addr {
	n.t.Helper()
	got, err := n.add(pod, container)
	if err != nil || !got.IsValid() {
		n.t.Fatalf("%s on %s: got %v, error %v\n%s", pod, n.name, got, err, n.log.String())
	}
	return got
}

// eventuallyAdds adds as a runtime does, which tries again.
func (n *node) eventuallyAdds(pod, container string, within time.Duration) netip.Addr {
	n.t.Helper()
	var last error
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(time.Second) {
		got, err := n.add(pod, container)
		if err == nil {
			return got
		}
		last = err
	}
	n.t.Fatalf("%s got nothing on %s: %v\n%s", pod, n.name, last, n.log.String())
	return netip.Addr{}
}

// holder returns the node that holds the slot of a pod, and whether there is one.
func (c *cluster) holder(pod string) (string, bool) {
	for _, l := range c.kept.Snapshot() {
		if l.Spec.Pod == pod {
			return l.Spec.Holder.NodeName, true
		}
	}
	return "", false
}

// heldBy fails the test unless a node holds the slot of a pod; "": none does.
func (c *cluster) heldBy(t *testing.T, pod, node string) {
	t.Helper()
	if got, there := c.holder(pod); !there || got != node {
		t.Errorf("%q holds the slot of %s (there is a lease: %t), want %q", got, pod, there, node)
	}
}

// two are two nodes of a cluster with a sticky pool.
func two(t *testing.T) (a, b *node) {
	t.Helper()
	c := newCluster(keeping(t))
	a, b = c.node(t, "a"), c.node(t, "b")
	a.run()
	b.run()
	return a, b
}

func TestAPodKeepsItsAddressesFromNodeToNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := two(t)
		a.counts(`roce_cni_sticky_lost_total{pool="compute"} 0`)
		first := a.mustAdd("db-0", "c1")
		if other := a.mustAdd("db-1", "c2"); other == first {
			t.Errorf("two pods have %v", other)
		}
		pass(10 * time.Second)
		a.heldBy(t, "db-0", "a")
		a.release("c1")
		if got := b.eventuallyAdds("db-0", "c3", 5*time.Second); got != first {
			t.Errorf("it had %v and has %v\n%s", first, got, b.log.String())
		}
		a.heldBy(t, "db-0", "b")
		a.heldBy(t, "db-1", "a")
		a.counts(`roce_cni_sticky_answers_total{answer="granted",pool="compute"} 2`)
		a.holds("compute", 1)
		a.healthy()
	})
}

func TestARestartOfThePodOnItsNodeNeedsNoServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, _ := two(t)
		first := a.mustAdd("db-0", "c1")
		pass(time.Minute)
		a.goAway(true)
		a.release("c1")
		if got := a.mustAdd("db-0", "c2"); got != first {
			t.Errorf("it had %v and has %v", first, got)
		}
	})
}

func TestWhatIsNotUsedIsGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, _ := two(t)
		for range 2 { // the second is not taken for the first
			a.ask(db("db-0"))
			pass(9 * time.Second)
			a.heldBy(t, "db-0", "a")
			pass(3 * time.Second)
			a.heldBy(t, "db-0", "")
		}
	})
}

func TestANodeThatIsCutOffCostsThePodItsAddressesButNotItsStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := two(t)
		kept := a.mustAdd("db-0", "c1")
		a.stop()
		began := time.Now()
		if got := b.eventuallyAdds("db-0", "c2", time.Minute); got.IsValid() || kept == got {
			t.Errorf("it got %v, which a holds", got)
		}
		if took := time.Since(began); took < 29*time.Second || took > 33*time.Second {
			t.Errorf("it took %v", took)
		}
		b.logs(`why="node \"a\" holds`)
		a.heldBy(t, "db-0", "a")
		pass(2 * time.Minute)
		b.release("c2")
		a.release("c1")
		a.run()
		pass(12 * time.Second)
		if got := b.eventuallyAdds("db-0", "c3", 10*time.Second); got != kept {
			t.Errorf("a is back, and it got %v, not %v", got, kept)
		}
	})
}

func TestPodsGetOtherAddressesWhileTheServerIsUnreachable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := two(t)
		a.goAway(true)
		if got := a.eventuallyAdds("db-0", "c1", 40*time.Second); got.IsValid() {
			t.Errorf("it got %v from no node", got)
		}
		a.logs("no answer")
		if got := a.kept.Calls(blocktest.List); got > 40 {
			t.Errorf("%d requests", got)
		}
		a.goAway(false)
		a.release("c1")
		pass(2 * time.Minute)
		b.mustAdd("db-0", "c2")
	})
}

func TestWhenAllHostIndexesAreStickyThereIsNoneAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := keeping(t)
		p.Spec.Sticky.Slots = "512-527"
		n := newCluster(p).node(t, "a")
		n.run()
		for i := range 16 {
			n.mustAdd(fmt.Sprintf("db-%d", i), fmt.Sprintf("c%d", i))
		}
		got, err := n.add("one-2", "cx")
		if err != nil || got.IsValid() {
			t.Errorf("got %v, error %v", got, err)
		}
		n.logs("are reserved for other pods")
		n.counts(`roce_cni_sticky_answers_total{answer="none",pool="compute"} 1`)
	})
}

// TestWhatIsHeldIsAffirmed has an etcd that forgets a lease, and one that gives it to
// another node.
func TestWhatIsHeldIsAffirmed(t *testing.T) {
	hours(t)
	bubble(t, func(t *testing.T) {
		a, b := two(t)
		a.mustAdd("db-0", "c1")
		before := a.kept.Snapshot()[0]
		a.kept.Restore(nil)
		a.idle(7 * time.Minute)
		a.heldBy(t, "db-0", "a")
		a.stop()
		a.kept.Restore(nil)
		a.run()
		a.heldBy(t, "db-0", "a")
		pass(time.Minute)

		thief := before
		thief.Spec.Holder = block.Owner{NodeName: "thief", MachineID: "machine-of-thief"}
		thief.UID = "another"
		a.kept.Restore([]sticky.Lease{thief})
		a.idle(7 * time.Minute)
		a.counts(`roce_cni_sticky_lost_total{pool="compute"} 1`)
		a.logs("belongs to another node")
		a.says(200, "lost sticky addresses", thief.Name, "delete the pods")
		if got := a.ask(db("db-0")); got.Granted() {
			t.Errorf("it grants %v again", got)
		}
		a.idle(20 * time.Minute)
		a.counts(`roce_cni_sticky_lost_total{pool="compute"} 1`)
		a.release("c1")
		a.idle(7 * time.Minute)
		a.healthy()
		b.healthy()
	})
}

// TestAPoolThatIsMadeAgainKeepsNoStickyAddresses has an operator make a mistake at that.
func TestAPoolThatIsMadeAgainKeepsNoStickyAddresses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, _ := two(t)
		a.mustAdd("db-0", "c1")
		again := poolOf(t, "compute", 2, `{"rails": [{"subnets": [{"subnet": "10.9.0.0/33"}]}]}`)
		again.UID = "second"
		a.change(func(v *agent.View) { v.Pools = []block.Pool{again} })
		pass(2 * time.Second)
		if got := a.ask(db("db-0")); got.Granted() || !strings.Contains(got.Wait, "10.9.0.0/33") {
			t.Errorf("of the former pool it gets %+v", got)
		}
	})
}

func TestAPoolThatIsNotStickyCostsNothing(t *testing.T) {
	hours(t)
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		if f := n.holds("compute", 1); f.Sticky {
			t.Error("its file says that it is sticky")
		}
		n.mustLease("compute", 1, 14)
		n.idle(time.Hour)
		n.release("c1")
		n.change(func(v *agent.View) { v.Pools = nil })
		n.idle(time.Hour)
		for _, op := range []blocktest.Op{blocktest.Create, blocktest.Get, blocktest.List, stickytest.Update} {
			if got := n.kept.Calls(op); got != 0 {
				t.Errorf("%d calls of %s", got, op)
			}
		}
	})
}
