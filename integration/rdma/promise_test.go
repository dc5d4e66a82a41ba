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
		_, _ = try("sh", "-c", remove.String())
		cnitest.Await(t, "the entries of the host's addresses are gone", func() bool { return cmp.Equal(allGIDs(t, ""), before) })
	})
	shell(t, add.String())
	cnitest.Await(t, "the host's addresses have entries", func() bool {
		for i, now := range allGIDs(t, "") {
			if now.used() < before[i].used()+of(i) {
				return false
			}
		}
		return true
	})
}

// byRail is a history in which each of four rails has one address more.
func byRail(rail int) int { return rail % 4 }

// fillers returns the fillers that are on interfaces of a pod.
func (p *pod) fillers(t *testing.T) string {
	t.Helper()
	return shell(t, fmt.Sprintf("ip -n %s -o -4 addr | grep 169.254. || true", p.Name))
}

// rounds returns how many pods come or go: ROUNDS of the environment, or few. The
// environment is that of the command in the machine.
func rounds(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("ROUNDS"))
	if err != nil {
		n = 6
	}
	t.Logf("%d pods come or go, on %d NICs", n, rails())
	return n
}

// TestPromiseEqualHoldsWhilePodsComeAndGo has pods come and go at random.
func TestPromiseEqualHoldsWhilePodsComeAndGo(t *testing.T) {
	n := newNode(t, "shared")
	histories(t, byRail)
	before := allGIDs(t, "")
	rnd := rand.New(rand.NewPCG(1, uint64(rails())))
	var pods [4]attachment
	there := map[int]bool{}
	for i := range pods {
		c := n.allRails()
		if i%2 == 1 {
			c = dualRails(c)
		}
		pods[i] = n.attach(promising(c, "equal"), n.pod())
	}
	for range rounds(t) {
		i := rnd.IntN(len(pods))
		if there[i] {
			pods[i].mustDel()
		} else {
			addrs := pods[i].addRails()
			pods[i].aligned(allGIDs(t, pods[i].pod.Name), addrs)
			if left := pods[i].pod.fillers(t); left != "" {
				t.Errorf("%s still has\n%s", pods[i].pod.Name, left)
			}
			if rails() <= 2 { // CHECK reads whole tables, which takes long in a virtual machine
				pods[i].mustCheck()
			}
		}
		there[i] = !there[i]
		if t.Failed() {
			t.FailNow()
		}
	}
	for i := range there {
		if there[i] {
			pods[i].mustDel()
		}
	}
	cnitest.Await(t, "the GIDs are gone", func() bool { return cmp.Equal(allGIDs(t, ""), before) })
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
