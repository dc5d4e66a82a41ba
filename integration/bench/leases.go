// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// lease is the verb for a lease and its release, as a library call.
const lease verb = "lease and release"

// aNode is how many leases a node has at most: 500 pods with 16 addresses
// each are 8,000.
const aNode = 10_000

// leaseTarget is what a lease may cost beside aNode others, against one on an
// empty node.
const leaseTarget = 2

// spreads are the ways in which used addresses lie in a subnet: the number of
// the lease number i, in an order.
var spreads = []struct { //nolint:gochecknoglobals // a table
	subnet string
	says   string
	number func(i int, order []int) int
}{
	{"10.1.0.0/16", "at random", func(i int, order []int) int { return 1 + order[i] }},
	{"10.0.0.0/8", "each address alone", func(i int, _ []int) int { return 1 + 2*i }},
}

// leases measures what a lease and its release cost beside others, which are
// of living pods. Pods come and go, one each second, so that about 120
// addresses are in quarantine.
func leases(ctx context.Context, o options, out io.Writer) (missed int, err error) {
	dir, err := os.MkdirTemp("/run", "rocebench-leases-") // a tmpfs, as for a node's leases
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for i, s := range spreads {
		c, samples, err := leasesIn(ctx, filepath.Join(dir, fmt.Sprint(i)), netip.MustParsePrefix(s.subnet), s.number)
		if err != nil {
			return missed, err
		}
		c.name = fmt.Sprintf("lease and release, %s %s", s.subnet, s.says)
		missed += c.compare(samples, o, out)
	}
	return missed, nil
}

// leasesIn compares nodes. number says where their addresses are in a subnet.
func leasesIn(ctx context.Context, dir string, subnet netip.Prefix, number func(int, []int) int) (contest, samples, error) {
	const few, node, many = "none", "10,000", "60,000"
	c := contest{against: "against an empty node", runs: 400, rows: []row{
		{"beside 10,000 leases", lease, node, few, leaseTarget, ""},
		{"beside 60,000 leases", lease, many, few, 0, ""},
	}}
	order := rand.New(rand.NewPCG(1, 2)).Perm(65_534)
	at := func(i int) netip.Addr { return plus(subnet.Addr(), number(i, order)) }
	var nodes []*leaser
	for _, n := range []struct {
		name  string
		count int
	}{{few, 0}, {node, aNode}, {many, 60_000}} {
		l := &leaser{dir: filepath.Join(dir, n.name), subnet: subnet, now: time.Hour}
		if err := l.fill(ctx, n.count, at); err != nil {
			return c, nil, err
		}
		c.players = append(c.players, player{name: n.name})
		nodes = append(nodes, l)
	}
	out := samples{}
	for _, p := range c.players {
		out[p.name] = map[verb][]time.Duration{}
	}
	const settle = 150 // pods, until the first address comes back from quarantine
	for round := range settle + c.runs {
		for i, l := range nodes {
			took, err := l.pod(ctx)
			if err != nil {
				return c, nil, err
			}
			if name := c.players[i].name; round >= settle {
				out[name][lease] = append(out[name][lease], took)
			}
		}
	}
	for _, verbs := range out {
		slices.Sort(verbs[lease])
	}
	return c, out, nil
}

// plus returns the IPv4 address n behind a.
func plus(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(sum)
}

// bootID is one that the state folders of leasers have.
const bootID = "5f0c2d1e-8a3b-4c6d-9e7f-000000000001"

// leaser is a node's leases, of one pool, and the pods that come and go.
type leaser struct {
	dir    string
	subnet netip.Prefix
	now    time.Duration
	pods   int
}

func (l *leaser) clock() time.Duration { return l.now }

// owner is a pod of a name.
func (l *leaser) owner(pod string) ipam.Owner {
	return ipam.Owner{
		ContainerID: "id-" + pod, IfName: "net1", Network: "net", PodNamespace: "ns", PodName: pod, PodUID: "uid-" + pod,
		Netns: netns.Ref{Path: l.dir, ID: netns.ID{Dev: 4, Ino: 100}},
	}
}

// fill gives count pods an address each.
func (l *leaser) fill(ctx context.Context, count int, at func(int) netip.Addr) error {
	return ledger.Store{Dir: l.dir, BootID: bootID, Now: l.clock}.Update(ctx, func(book *ledger.Ledger) error {
		for i := range count {
			book.Give(l.owner(fmt.Sprintf("filled-with-%d", i)), ledger.Spot{Pool: "rail", Addr: at(i)})
		}
		return nil
	})
}

// pod leases an address for a new pod and releases it, and returns how long
// that took. Each call opens the database, as each ADD and DEL does.
func (l *leaser) pod(ctx context.Context) (time.Duration, error) {
	l.pods++
	l.now += time.Second
	book := ipam.New(ipam.Config{
		Dir: l.dir, BootID: bootID, Now: l.clock,
		Observe: func() func(netns.Ref) (bool, error) { // the cost of a look, and all are alive
			alive := netns.Observe()
			return func(n netns.Ref) (bool, error) {
				_, err := alive(n)
				return true, err
			}
		},
	})
	o := l.owner(fmt.Sprintf("job-%d", l.pods))
	start := time.Now()
	if _, err := book.Acquire(ctx, ipam.Ask{Pool: "rail", Subnets: []ipam.Subnet{{Prefix: l.subnet}}, Quarantine: 2 * time.Minute, Owner: o}); err != nil {
		return 0, err
	}
	if err := book.Release(ctx, o.Key(), o.Netns); err != nil {
		return 0, err
	}
	return time.Since(start), nil
}
