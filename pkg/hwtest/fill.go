// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// How far a table is filled: the step gid-room leaves some entries for the host, and
// stops at a number of addresses. gid-full stops at another number.
const (
	leave    = 8
	mostRoom = 256
	mostFull = 1100
	batch    = 16
)

// filling is what the addresses of a pod did to a table.
type filling struct {
	set    int    // addresses
	free   int    // entries
	width  int    // entries of an address
	table  string // its fill, for people
	room   string // how many more pods fit
	hidden bool   // there can be entries of others that cannot be seen
}

// fill gives the interface of the pod addresses until only a number of entries is free.
// Each must have its entry in time. The addresses go with the pod.
func (p *pod) fill(ctx context.Context, leave, most int) (f filling, err error) {
	s, k, end, err := p.subsystem()
	if err != nil {
		return f, err
	}
	defer end()
	d := p.rail().Device
	for {
		if err := f.look(s, d); err != nil {
			return f, err
		}
		n := min(batch, (f.free-leave)/f.width, most-f.set)
		if n <= 0 {
			return f, nil
		}
		var addrs []netip.Addr
		for range n {
			a := netip.AddrFrom4([4]byte{198, 18, byte(200 + f.set/250), byte(1 + f.set%250)})
			if err := change(ctx, k, rtnl.AddAddress, alone(a)); err != nil {
				return f, err
			}
			addrs = append(addrs, a)
			f.set++
		}
		p.more = append(p.more, addrs...)
		if _, err := s.Place(ctx, p.rail(), addrs, nil); err != nil {
			return f, errors.Join(err, f.look(s, d))
		}
	}
}

// entries returns the entries that host and pod see together.
func entries(s *rdma.Subsystem, d plan.RDMADevice) (all []rdma.Entry, size int, hidden bool, err error) {
	var seen [2][]rdma.Entry
	for _, reader := range []rdma.Side{rdma.Host, rdma.Pod} {
		if seen[reader], size, err = s.Table(rdma.Host, reader, d.Name, d.Port); err != nil {
			return nil, 0, false, err
		}
	}
	all, hidden = rdma.Merge(seen[rdma.Host], seen[rdma.Pod])
	return all, size, hidden, nil
}

func (f *filling) look(s *rdma.Subsystem, d plan.RDMADevice) error {
	all, size, hidden, err := entries(s, d)
	if err != nil {
		return err
	}
	f.free, f.width, f.hidden, f.table = size-len(all), gidtable.Width(all), hidden, gidtable.Fill(all, size)
	f.room = gidtable.Room(f.free, f.width)
	return nil
}

const sharedOnly = "it is tested in shared mode only"

// room asks how many entries the table takes.
func (p *pod) room(ctx context.Context, v view) report.Finding {
	of := p.ports[0].String()
	if v.system.Exclusive {
		return cannotTell(of, sharedOnly, "rdma system set netns shared")
	}
	start := time.Now()
	f, err := p.fill(ctx, leave, mostRoom)
	found := fmt.Sprintf("%d more addresses have entries after %s: %s; %s", f.set, time.Since(start).Round(time.Millisecond), f.table, f.room)
	switch {
	case err != nil && f.hidden && cnierr.CodeOf(err) == cnierr.NoGID:
		return cannotTell(of, "with hidden entries of others: "+err.Error(), "a node without pods")
	case cnierr.CodeOf(err) == cnierr.NoGID:
		return problem(of, fmt.Sprintf("the table has free places and takes no more: %s: %v", f.table, err), aKnownFault)
	case err != nil:
		return cannotTell(of, err.Error(), "the right to set addresses")
	}
	return ok(of, "%s", found)
}

// full fills the table with the addresses of one pod, and asks for another pod.
func (b Bench) full(ctx context.Context, v view, s *scene) []report.Finding {
	of := s.port.String()
	if v.system.Exclusive {
		return []report.Finding{cannotTell(of, sharedOnly, "rdma system set netns shared")}
	}
	first, err := s.add(ctx, nil)
	if err != nil {
		return []report.Finding{cannotTell(of, err.Error(), "a pod: see pod-add")}
	}
	f, err := first.fill(ctx, 0, mostFull)
	if err == nil && f.set == mostFull {
		return []report.Finding{cannotTell(of, fmt.Sprintf("after %d addresses it is not full: %s", f.set, f.table), "a smaller table")}
	}
	if err != nil && !f.hidden { // with hidden entries the end is not seen before
		return []report.Finding{problem(of, err.Error(), aKnownFault)}
	}
	second, err := s.add(ctx, map[string]any{"gidWait": "1s"})
	says := fmt.Sprint(err)
	switch {
	case err == nil:
		return []report.Finding{problem(of, "a pod was added although the table is full: "+f.table, aKnownFault)}
	case cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(says, "full"):
		return []report.Finding{problem(of, "ADD does not say that the table is full: "+says, aKnownFault)}
	}
	if _, left := b.Attach.Records.Load(second.req.Attachment); !errors.Is(left, record.ErrNotExist) {
		return []report.Finding{problem(of, fmt.Sprintf("the ADD that failed has left a record (%v)", left), aKnownFault)}
	}
	return []report.Finding{ok(of, "after %d addresses ADD says: %s", f.set, says)}
}
