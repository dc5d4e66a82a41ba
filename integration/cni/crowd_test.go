// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

const crowdWidth = 16

// crowd is a busy node: one attachment in each of many pods.
type crowd struct {
	*world
	all    []attachment
	pods   []*pod
	before []string

	mu    sync.Mutex
	begun int // so many attachments of all were begun to be added
	ended int // so many were begun to be deleted
	owner map[netip.Addr]string
	took  map[string][]time.Duration
}

// crowdSize returns how many pods there are in the crowd: few, for it takes its time, unless
// ROCE_CROWD says how many.
func crowdSize(t *testing.T) int {
	t.Helper()
	text := os.Getenv("ROCE_CROWD")
	if text == "" {
		return 40
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 || n > 250 {
		t.Fatalf("ROCE_CROWD=%s is not a number of pods from 2 to 250", text)
	}
	return n
}

// Many pods get all rails each, with the default probes, sixteen at a time, and lose them
// again. Every tenth ADD is killed first, and a DEL overtakes it. All the time the runtime
// collects garbage of both networks, and so does one with another network on the same pool.
// Each pod has one host part on all rails. It does not run beside other tests, because it
// tells what a call takes on a busy node.
func TestPodsWithAllRailsSixteenAtATime(t *testing.T) {
	w := newWorld(t, rails)
	all := w.matched(cnitest.Subnet4).With("ipam.subnets.0.ranges", []any{"172.16.{rail+10}.2-172.16.{rail+10}.252"}).With("ipam.pool", "crowd")
	c := newCrowd(t, w, crowdSize(t), func(i int) network { return all.With("name", fmt.Sprint("all", i%2)) })
	node := promiscuity.ReplaceAllString(c.snapshot(t), "")
	stop := c.collectGarbage(t)
	c.each(func(i int) { c.add(t, i) })
	c.each(func(i int) {
		c.timed("CHECK", func() {
			if err := c.all[i].check(t); err != nil {
				t.Errorf("CHECK of %s: %v", c.all[i].id, err)
			}
		})
		if got := c.pods[i].rules(t); len(got) != 1+2*rails {
			t.Errorf("%s has the rules %q, want its own and two for each address", c.all[i].id, got)
		}
	})
	if got := c.leases(t, "leased"); len(got) != rails*len(c.all) {
		t.Errorf("%d addresses are leased, want %d", len(got), rails*len(c.all))
	}
	c.each(func(i int) { c.del(t, i) })
	stop()
	c.each(func(i int) { c.pods[i].unchanged(t, c.before[i]) })
	if got := promiscuity.ReplaceAllString(c.snapshot(t), ""); got != node {
		t.Errorf("the node is not as it was:\n%s\nwant\n%s", got, node)
	}
	c.mustBeClean(t)
	parts := map[string]byte{}
	for addr, id := range c.owner {
		part := addr.As4()[3]
		if other, there := parts[id]; there && other != part {
			t.Errorf("%s has the host parts %d and %d, want one for all rails", id, other, part)
		}
		parts[id] = part
	}
	for _, verb := range []string{"ADD", "CHECK", "DEL", "GC"} {
		if took := c.took[verb]; len(took) > 0 {
			slices.Sort(took)
			t.Logf("%d times %s: p50 %v, p99 %v", len(took), verb,
				took[len(took)/2].Round(time.Millisecond), took[len(took)*99/100].Round(time.Millisecond))
		}
	}
}

// newCrowd returns so many pods, each to be attached to the network of its
// number. Networks of an even number have one name, those of an odd one, too.
func newCrowd(t *testing.T, w *world, size int, of func(i int) network) *crowd {
	t.Helper()
	c := &crowd{
		world: w, all: make([]attachment, size), pods: make([]*pod, size), before: make([]string, size),
		owner: map[netip.Addr]string{}, took: map[string][]time.Duration{},
	}
	prefix := strings.TrimSuffix(w.node.Name, "-node")
	for i := range c.all {
		ns := newNamespace(t, fmt.Sprintf("%s-%d", prefix, i))
		c.pods[i] = &pod{ns, "sandbox-" + ns.Name, fmt.Sprintf("job-%d", i)}
		c.all[i] = w.attach(of(i), c.pods[i], "net1")
	}
	// What another program has made in the pod must stay.
	c.each(func(i int) {
		c.pods[i].IP(t, `
			link set dev lo up
			link add eth0 type veth peer name peer0
			link set dev eth0 addrgenmode none
			link set dev eth0 up
			addr add 10.244.0.2/24 dev eth0
			route add 192.0.2.0/24 dev eth0 table 100
			rule add from 172.16.10.0/24 lookup 100 priority 32500`)
		c.before[i] = c.pods[i].snapshot(t)
	})
	return c
}

// each does something with the number of each attachment, sixteen at a time.
func (c *crowd) each(do func(i int)) {
	numbers := make([]int, len(c.all))
	for i := range numbers {
		numbers[i] = i
	}
	atATime(crowdWidth, numbers, do)
}

// timed calls a verb and notes how long it takes.
func (c *crowd) timed(verb string, call func()) {
	start := time.Now()
	call()
	took := time.Since(start)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took[verb] = append(c.took[verb], took)
}

func (c *crowd) add(t *testing.T, i int) {
	c.mu.Lock()
	c.begun = max(c.begun, i+1)
	c.mu.Unlock()
	if i%crowdWidth == 0 {
		// All namespaces share one neighbour table of 1024 entries (arp_tbl,
		// gc_thresh3), and a gateway does not answer who finds no room in it
		// (arp_process). True gateways have tables of their own.
		c.leaf.MustRun(t, "ip", "neigh", "flush", "all")
	}
	a := c.all[i]
	if i%10 == 0 {
		cmd := a.start(t, "ADD")
		<-time.After(time.Duration(i) * time.Millisecond)
		_ = cmd.Process.Kill() // it may be done already
		if err := a.del(t); err != nil {
			t.Errorf("DEL of %s, of which ADD was killed: %v", a.id, err)
		}
		_ = cmd.Wait()
		c.pods[i].unchanged(t, c.before[i])
	}
	c.timed("ADD", func() {
		res, err := a.add(t)
		if err != nil {
			t.Errorf("ADD of %s: %v", a.id, err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, addr := range addrs(res) {
			if other := c.owner[addr]; other != "" {
				t.Errorf("%s was given to %s and to %s", addr, other, a.id)
			}
			c.owner[addr] = a.id
		}
	})
}

func (c *crowd) del(t *testing.T, i int) {
	c.mu.Lock()
	c.ended = max(c.ended, i+1)
	c.mu.Unlock()
	c.timed("DEL", func() {
		if err := c.all[i].del(t); err != nil {
			t.Errorf("DEL of %s: %v", c.all[i].id, err)
		}
	})
}

// collectGarbage calls GC again and again until it is told to stop: of the two
// networks with what is there, what is being made and what may begin until GC
// has begun; and of another network, of which nothing is there.
func (c *crowd) collectGarbage(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	other := c.all[0]
	other.network = other.network.With("name", "other")
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			c.mu.Lock()
			known := valid(c.all[max(0, c.ended-crowdWidth):min(len(c.all), c.begun+4*crowdWidth)]...)
			c.mu.Unlock()
			a := []attachment{c.all[0], c.all[1], other}[i%3]
			if i%3 == 2 {
				known = valid()
			}
			c.timed("GC", func() {
				if err := a.gc(t, "roce", known); err != nil {
					t.Errorf("GC of %s: %v", a.network["name"], err)
				}
			})
		}
	}()
	return func() { cancel(); <-done }
}

// atATime does something with all, with so many of them at a time.
func atATime[T any](n int, all []T, do func(T)) {
	turn := make(chan struct{}, n)
	var calls sync.WaitGroup
	for _, a := range all {
		turn <- struct{}{}
		calls.Go(func() {
			do(a)
			<-turn
		})
	}
	calls.Wait()
}
