// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// Ten pods get four interfaces each on one segment and of one pool, eight
// calls at a time, those for one pod among them.
func TestFortyAttachmentsInParallel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.bridge(t, 4)
	var all []attachment
	var pods []*pod
	before := map[*pod]string{}
	for range 10 {
		p := w.pod(t)
		pods = append(pods, p)
		before[p] = p.snapshot(t)
		for i := range 4 {
			c := w.rail(i).With("ipam.pool", "all").With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)})
			all = append(all, w.attach(c, p, fmt.Sprintf("net%d", i+1)))
		}
	}
	var mu sync.Mutex
	owner := map[netip.Addr]string{}
	atATime(8, all, func(a attachment) {
		res, err := a.add(t)
		if err != nil {
			t.Errorf("ADD %s %s: %v", a.id, a.ifName, err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, addr := range addrs(res) {
			if other := owner[addr]; other != "" {
				t.Errorf("%s was given to %s and to %s %s", addr, other, a.id, a.ifName)
			}
			owner[addr] = a.id + " " + a.ifName
		}
	})
	if got := w.leases(t, "leased"); len(got) != 80 {
		t.Errorf("%d addresses are leased, want 80", len(got))
	}
	for _, p := range pods {
		if got := p.rules(t); len(got) != 16 {
			t.Errorf("%s has %d rules, want 16: %q", p.id, len(got), got)
		}
		for table := 100; table < 104; table++ {
			if got := p.routes(t, fmt.Sprint(table)); len(got) != 4 {
				t.Errorf("%s: table %d has %q, want four routes", p.id, table, got)
			}
		}
	}
	atATime(8, all, func(a attachment) {
		if err := a.del(t); err != nil {
			t.Errorf("DEL %s %s: %v", a.id, a.ifName, err)
		}
	})
	for _, p := range pods {
		p.unchanged(t, before[p])
	}
	w.nothingLeased(t)
	w.noRecords(t)
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
