// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

// model is what the book must know, kept as simply as can be.
type model struct {
	leased      map[netip.Addr]string // pod
	quarantined map[netip.Addr]quarantine
}

type quarantine struct {
	last  string
	freed time.Duration
}

// TestBookAgreesWithASimpleModel does thousands of random operations on a
// small pool, with one address for each pod and with three, and checks after
// each that no address has two owners, that what is given was free, or in quarantine
// long enough, or was the pod's own, or was the one that was in quarantine longest, and
// that the book lists what the model has.
func TestBookAgreesWithASimpleModel(t *testing.T) {
	t.Parallel()
	seeds := uint64(8)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			n, m := newNode(t), model{map[netip.Addr]string{}, map[netip.Addr]quarantine{}}
			rnd := rand.New(rand.NewPCG(seed, 7))
			s := subnet("10.0.0.0/28 10.0.0.9", "10.0.0.0-10.0.0.12") // 11 addresses
			rails := slices.Repeat([]ipam.Subnet{s}, 1+2*int(seed%2))
			for range 500 {
				n.now += time.Duration(rnd.IntN(40)) * time.Second
				pod := fmt.Sprint("pod", rnd.IntN(14/len(rails)))
				switch rnd.IntN(3) {
				case 0, 1:
					m.acquire(t, n, ask(pod, rails...))
				case 2:
					n.release(pod)
					m.release(pod, n.now)
				}
				m.compare(t, n)
				if t.Failed() {
					return
				}
			}
		})
	}
}

func (m model) acquire(t *testing.T, n *node, a ipam.Ask) {
	t.Helper()
	pod := a.Owner.PodName
	leases, err := n.book().Acquire(ctx, a)
	had := m.held(pod)
	if err != nil {
		if free := m.unused(a.Subnets[0]); len(free)+len(m.quarantined) >= len(a.Subnets) || len(had) > 0 {
			t.Errorf("%s gets %v though %v are free and %v in quarantine", pod, err, free, m.quarantined)
		}
		return
	}
	if len(leases) != len(a.Subnets) {
		t.Errorf("%s gets %v", pod, leases)
	}
	for _, l := range leases {
		if addr := l.Prefix.Addr(); len(had) == 0 {
			m.give(t, n, a, l)
		} else if !slices.Contains(had, addr) {
			t.Errorf("%s has %v and gets %v", pod, had, addr)
		}
	}
}

func (m model) give(t *testing.T, n *node, a ipam.Ask, l ipam.Lease) {
	t.Helper()
	pod, addr := a.Owner.PodName, l.Prefix.Addr()
	r, wasQuarantined := m.quarantined[addr]
	switch {
	case m.leased[addr] != "":
		t.Errorf("%s gets %v, which %s has", pod, addr, m.leased[addr])
	case wasQuarantined && r.last != pod && n.now-r.freed < a.Quarantine:
		if !l.Early || len(m.unused(a.Subnets[0])) > 0 || m.oldest() != r.freed {
			t.Errorf("%s gets %v, which is in quarantine since %v; early %v, in quarantine %v", pod, addr, r.freed, l.Early, m.quarantined)
		}
	case l.Early:
		t.Errorf("%s gets %v early, though it was not in quarantine", pod, addr)
	}
	delete(m.quarantined, addr)
	m.leased[addr] = pod
}

func (m model) release(pod string, now time.Duration) {
	for _, a := range m.held(pod) {
		delete(m.leased, a)
		m.quarantined[a] = quarantine{pod, now}
	}
}

func (m model) held(pod string) []netip.Addr {
	var out []netip.Addr
	for a, p := range m.leased {
		if p == pod {
			out = append(out, a)
		}
	}
	return out
}

// unused returns the addresses that are neither leased nor in quarantine.
func (m model) unused(s ipam.Subnet) []netip.Addr {
	var out []netip.Addr
	for a := s.Ranges[0].First; s.Ranges[0].Contains(a); a = a.Next() {
		_, bad := netrange.Unusable(s.Prefix)[a]
		if _, quarantined := m.quarantined[a]; !bad && !quarantined && m.leased[a] == "" && a != s.Gateway {
			out = append(out, a)
		}
	}
	return out
}

func (m model) oldest() time.Duration {
	return slices.MinFunc(slices.Collect(maps.Values(m.quarantined)), func(a, b quarantine) int { return int(a.freed - b.freed) }).freed
}

// compare checks that the book lists the model's leases. It checks that every
// address that the book lists in quarantine is in quarantine. The book may
// forget an address after its quarantine.
func (m model) compare(t *testing.T, n *node) {
	t.Helper()
	entries, err := n.book().List(ctx, "rail")
	must(t, err)
	leased := map[netip.Addr]string{}
	quarantined := map[netip.Addr]bool{}
	for _, e := range entries {
		if e.State.String() == "leased" {
			leased[e.Addr] = e.Owner.PodName
		} else {
			quarantined[e.Addr] = true
		}
	}
	if !maps.Equal(m.leased, leased) {
		t.Errorf("leased %v, want %v", leased, m.leased)
	}
	for a := range quarantined {
		if _, ok := m.quarantined[a]; !ok {
			t.Errorf("%v is in quarantine, and should not be", a)
		}
	}
	for a, r := range m.quarantined {
		if !quarantined[a] && n.now-r.freed < 2*time.Minute {
			t.Errorf("%v is not in quarantine any more after %v", a, n.now-r.freed)
		} else if !quarantined[a] {
			delete(m.quarantined, a)
		}
	}
}
