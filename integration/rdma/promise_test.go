// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// promising returns a copy of a network with the key rdma.gidIndex. ADD waits long for
// GIDs, because the machine may be busy.
func promising(c network, index any) network {
	return c.With("rdma", map[string]any{"gidIndex": index, "gidWait": "60s"})
}

// histories gives the NICs of the host different numbers of addresses, until the test
// is over.
func histories(t *testing.T, of func(rail int) int) {
	t.Helper()
	var add, remove strings.Builder
	for i := range rails() {
		for a := range of(i) {
			fmt.Fprintf(&add, "ip addr add 10.%d.0.%d/24 dev r%d\n", i, a+1, i)
			fmt.Fprintf(&remove, "ip addr del 10.%d.0.%d/24 dev r%d\n", i, a+1, i)
		}
	}
	before := allGIDs(t, "")
	t.Cleanup(func() {
		dropFillers(t)
		_, _ = try("sh", "-c", remove.String())
		cnitest.Await(t, "the entries of the host's addresses are gone", func() bool { return cmp.Equal(allGIDs(t, ""), before) })
	})
	shell(t, add.String())
	cnitest.Await(t, "the host's addresses have entries", func() bool {
		for i, now := range allGIDs(t, "") {
			if now.used() < before[i].used()+of(i)*width() {
				return false
			}
		}
		return true
	})
}

// byRail is a history in which each of four rails has one address more.
func byRail(rail int) int { return rail % 4 }

// dropFillers removes the node's fillers, as an operator may.
func dropFillers(t *testing.T) {
	t.Helper()
	if err := netns.Remove(plan.FillerNetns); err != nil {
		t.Error(err)
	}
}

// fillers returns how many entries of fillers a table has.
func (t table) fillers() (n int) {
	addr := plan.FillerRange.Addr()
	for range 256 {
		n += len(t.of(addr.String()))
		addr = addr.Next()
	}
	return n
}

// fillers returns the fillers that are on interfaces of a pod.
func (p *pod) fillers(t *testing.T) string {
	t.Helper()
	return shell(t, fmt.Sprintf("ip -n %s -o -4 addr | grep 169.254. || true", p.Name))
}

// rounds returns ROUNDS of the environment, or few. The environment is that of the command in
// the machine.
func rounds(t *testing.T, few int) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("ROUNDS"))
	if err != nil {
		n = few
	}
	t.Logf("%d rounds, on %d NICs", n, rails())
	return n
}

// TestPromiseEqualHoldsWhilePodsComeAndGo has pods of one rail to all rails come and go at
// random. A table never has more fillers than all other entries of the node.
func TestPromiseEqualHoldsWhilePodsComeAndGo(t *testing.T) {
	n := newNode(t, "shared")
	histories(t, byRail)
	before := allGIDs(t, "")
	rnd := rand.New(rand.NewPCG(1, uint64(rails())))
	type member struct {
		attachment
		on []int // its rails
	}
	pods := map[int]member{}
	most, peak := 0, 0
	for range rounds(t, 12) {
		slot := rnd.IntN(5)
		if p, there := pods[slot]; there {
			p.mustDel()
			delete(pods, slot)
			continue
		}
		on := rnd.Perm(rails())[:1+rnd.IntN(rails())]
		c := n.allRails()
		all := c["rails"].([]any)
		list := make([]any, len(on))
		for j, r := range on {
			list[j] = all[r]
		}
		c = c.With("rails", list)
		if rnd.IntN(3) == 0 {
			c = dualRails(c)
		}
		p := member{n.attach(promising(c, "equal"), n.pod()), on}
		pods[slot] = p
		addrs := p.addRails()
		now := allGIDs(t, p.pod.Name)
		tables := make([]table, len(on))
		for j, r := range on {
			tables[j] = now[r]
		}
		p.aligned(tables, addrs)
		if left := p.pod.fillers(t); left != "" {
			t.Errorf("%s has\n%s", p.pod.Name, left)
		}
		others := 0
		for _, table := range allGIDs(t, "") {
			most, others = max(most, table.fillers()), others+table.used()-table.fillers()
		}
		peak = max(peak, others)
		if rails() <= 2 { // CHECK reads whole tables, which takes long in a virtual machine
			p.mustCheck()
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("at most %d fillers in a table, beside at most %d other entries of the node", most, peak)
	if most > peak {
		t.Errorf("there were up to %d fillers in a table, and up to %d other entries of the node", most, peak)
	}
	for _, p := range pods {
		p.mustDel()
	}
	dropFillers(t)
	cnitest.Await(t, "the GIDs of pods and fillers are gone", func() bool { return cmp.Equal(allGIDs(t, ""), before) })
	n.nothingLeft()
}

// TestPromiseEqualFillersAreShownAndGoWithTheLastPod has the last pod end without DEL.
func TestPromiseEqualFillersAreShownAndGoWithTheLastPod(t *testing.T) {
	n := newNode(t, "shared")
	histories(t, func(rail int) int { return 3 * rail })
	fillers := width() * 3 * (rails() - 1) // on the first rail
	summary := fmt.Sprintf("# %s/1: %d of them are fillers", device(0), fillers)
	first := n.attach(promising(n.allRails(), "equal"), n.pod())
	first.addRails()
	contains(t, n.rocectl("gids"), summary)
	first.mustDel()
	contains(t, n.rocectl("gids"), summary, "filler of roce")
	if !hides() {
		contains(t, n.rocectl("doctor", "gid-table"), fmt.Sprintf(", %d of them by fillers of roce", fillers))
	}
	last := n.attach(promising(n.allRails(), "equal"), n.pod())
	last.addRails()
	last.pod.Remove(t)
	n.settle(`, "rdma": {"fillers": "remove"}`)
	contains(t, n.rocectl("forget", "--yes", last.pod.Name), "forgotten")
	if _, err := os.Stat(plan.FillerNetns); err == nil {
		t.Errorf("there is %s, and the settings say that fillers go with the last pod", plan.FillerNetns)
	}
	n.nothingLeft()
}

// TestPromiseNumberIsTheSameForAllHistories plays two nodes: each has a history of its
// own.
func TestPromiseNumberIsTheSameForAllHistories(t *testing.T) {
	for name, history := range map[string]func(int) int{"one": byRail, "another": func(rail int) int { return 5 - byRail(rail) }} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "shared")
			histories(t, history)
			a := n.attach(promising(n.allRails(), 12), n.pod())
			addrs := a.addRails()
			if at := a.aligned(allGIDs(t, a.pod.Name), addrs); at[0] != 12 {
				t.Errorf("got the index %d, want 12", at[0])
			}
			b := n.attach(promising(n.allRails(), 12), n.pod())
			contains(t, b.mustFail(108), "want index 12, but the lowest free index is 13", "rocectl gids")
			contains(t, n.attach(promising(n.allRails(), 1023), n.pod()).mustFail(7), "rdma.gidIndex", "not in 1 to 255")
			a.mustCheck()
			a.mustDel()
			n.nothingLeft()
		})
	}
}

// TestPromiseExclusiveHoldsAfterTheMove has the tables filled before the devices move.
func TestPromiseExclusiveHoldsAfterTheMove(t *testing.T) {
	n := newNode(t, "exclusive")
	histories(t, byRail)
	a := n.attach(promising(n.allRails(), "equal"), n.pod())
	addrs := a.addRails()
	now := make([]table, rails())
	for i := range now {
		now[i] = gidsInside(t, a.pod.Name, device(i))
	}
	a.aligned(now, addrs)
	a.mustCheck()
	a.mustDel()
	home(t)
	n.nothingLeft()
}
