// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/hwtest/uverbs"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// watch is a program of the host that has the device of a port open.
type watch struct {
	*uverbs.Device
	port uint32
}

// open opens the device of a port. The caller must Close it, if there is no finding that says
// why it cannot be opened.
func (v view) open(p nic.Port) (w watch, why *report.Finding) {
	if v.system.Exclusive {
		return w, new(cannotTell(p.String(), sharedOnly, "rdma system set netns shared"))
	}
	own := files(v, p.Device.Name)
	err := errors.New("it has no device file: modprobe ib_uverbs")
	if len(own) > 0 {
		w.port = p.Number
		w.Device, err = uverbs.Open(path.Join("/dev/infiniband", own[0]))
	}
	if err != nil {
		return w, new(unread(p.String(), err))
	}
	return w, nil
}

// unread returns the finding for a device that tells nothing.
func unread(of string, err error) report.Finding {
	return cannotTell(of, err.Error(), "a driver that gives a context to a program without its library")
}

// quiet is how long no event must come until all are taken to have come.
const quiet = 500 * time.Millisecond

// told returns the events that the program gets of what do does, by kind, and how many entries
// came or went.
func (w watch) told(do func() error) (events map[uint32]int, entries int, err error) {
	before, err := w.Table(w.port)
	if err != nil {
		return nil, 0, err
	}
	if err := do(); err != nil {
		return nil, 0, err
	}
	events, err = w.rest()
	if err != nil {
		return nil, 0, err
	}
	after, err := w.Table(w.port)
	return events, max(len(after)-len(before), len(before)-len(after)), err
}

// rest returns the events that come until there is none for a while, by kind.
func (w watch) rest() (map[uint32]int, error) {
	events := map[uint32]int{}
	for {
		kind, came, err := w.Next(quiet)
		if err != nil || !came {
			return events, err
		}
		events[kind]++
	}
}

// several is how many addresses the step gid-events sets one by one, as ADD sets fillers.
const several = 8

// events counts what a program is told while pods come and go.
func (s *scene) events(ctx context.Context) []report.Finding {
	of := s.port.String()
	w, why := s.v.open(s.port)
	if why != nil {
		return []report.Finding{*why}
	}
	defer w.Close()
	var set, unset []step
	for i := range several {
		a := []netip.Addr{netip.AddrFrom4([4]byte{198, 18, 253, byte(1 + i)})}
		set, unset = append(set, step{rtnl.AddAddress, alone(a[0]), a, nil}), append(unset, step{rtnl.DeleteAddress, alone(a[0]), nil, a})
	}
	do := func(steps []step) func() error {
		return func() error { _, err := s.pods[0].steps(ctx, steps); return err }
	}
	add := func() error { _, err := s.add(ctx, nil); return err }
	number := func() error {
		index, err := s.above()
		if err == nil {
			_, err = s.add(ctx, map[string]any{"gidIndex": index})
		}
		return err
	}
	var out []report.Finding
	for _, c := range []struct {
		what  string
		exact bool // each entry has an event
		do    func() error
	}{
		{"ADD of a pod", true, add},
		{fmt.Sprintf("%d addresses set one by one, as fillers are", several), true, do(set)},
		{"their end", true, do(unset)},
		{"ADD of a second pod with a number as rdma.gidIndex, which sets fillers for a moment", false, number},
		{"DEL of the second pod", false, func() error { return s.pods[1].del(ctx) }},
		{"DEL of the first pod", false, func() error { return s.pods[0].del(ctx) }},
	} {
		events, entries, err := w.told(c.do)
		if err != nil {
			return append(out, cannotTell(of, c.what+": "+err.Error(), "free places in the GID table, and pods: see pod-add"))
		}
		changes := events[uverbs.GIDChange]
		found := fmt.Sprintf("%s: %d entries came or went, with %d events GID_CHANGE", c.what, entries, changes)
		var faults []fault
		if delete(events, uverbs.GIDChange); len(events) > 0 {
			faults = append(faults, fault{fmt.Sprintf("%s, and others, by their number: %v", found, events), aKnownFault})
		} else if c.exact && changes != entries {
			faults = append(faults, fault{found, aKnownFault})
		}
		out = append(out, judge(of, found, faults)...)
	}
	return out
}

// query compares the GID table that programs get with that of sysfs, also when an address has
// come and gone.
func (p *pod) query(ctx context.Context, v view) []report.Finding {
	of := p.ports[0].String()
	w, why := v.open(p.ports[0])
	if why != nil {
		return []report.Finding{*why}
	}
	defer w.Close()
	a := []netip.Addr{netip.AddrFrom4([4]byte{198, 18, 254, 2})}
	var out []report.Finding
	for _, c := range []struct {
		when string
		step step
	}{
		{"with the addresses of ADD", step{}},
		{"with one more address", step{rtnl.AddAddress, alone(a[0]), a, nil}},
		{"after its end", step{rtnl.DeleteAddress, alone(a[0]), nil, a}},
	} {
		var err error
		if c.step.how != nil {
			_, err = p.steps(ctx, []step{c.step})
		}
		var found string
		var faults []fault
		if err == nil {
			found, faults, err = p.compare(ctx, w)
		}
		if err != nil {
			return append(out, cannotTell(of, c.when+": "+err.Error(), "a kernel with this method, 5.10 or newer"))
		}
		for i := range faults {
			faults[i].found = c.when + ": " + faults[i].found
		}
		out = append(out, judge(of, c.when+": "+found, faults)...)
	}
	return out
}

// compare reads the table in three ways.
func (p *pod) compare(ctx context.Context, w watch) (found string, faults []fault, err error) {
	s, end, err := p.subsystem()
	if err != nil {
		return "", nil, err
	}
	defer end()
	sys, size, hidden, err := entries(s, p.rail().Device)
	if err != nil {
		return "", nil, err
	}
	table, err := w.Table(w.port)
	if err != nil {
		return "", nil, err
	}
	var link int32
	if err := p.onLink(ctx, func(_ *rtnl.Conn, l int32) error { link = l; return nil }); err != nil {
		return "", nil, err
	}
	line := func(index int, gid netip.Addr, kind string) string {
		return fmt.Sprintf("%s (%s) at %d", gid, kind, index)
	}
	var all, one, files []string
	own := p.indexes()
	for _, e := range table {
		all = append(all, line(e.Index, e.GID, e.Type))
		if at, is := own[e.GID]; is && at == e.Index && e.Netdev != link {
			faults = append(faults, fault{fmt.Sprintf("%s has the interface %d, want %d", line(e.Index, e.GID, e.Type), e.Netdev, link), aKnownFault})
		}
	}
	for i := range size {
		e, err := w.Entry(w.port, i)
		if errors.Is(err, unix.ENODATA) { // it is unused
			continue
		}
		if err != nil {
			return "", nil, fmt.Errorf("index %d: %w", i, err)
		}
		one = append(one, line(e.Index, e.GID, e.Type))
	}
	for _, e := range sys {
		files = append(files, line(e.Index, e.GID, e.Type))
	}
	visible := all
	if hidden { // NVIDIA's driver does not show those of other pods in sysfs
		visible = slices.DeleteFunc(slices.Clone(all), func(l string) bool { return !slices.Contains(files, l) })
	}
	if !slices.Equal(all, one) {
		faults = append(faults, fault{fmt.Sprintf("in one call: %q; index by index: %q", all, one), aKnownFault})
	}
	if !slices.Equal(visible, files) {
		faults = append(faults, fault{fmt.Sprintf("in one call: %q; in sysfs: %q", all, files), aKnownFault})
	}
	return fmt.Sprintf("%d of %d entries, the same in one call, index by index and in sysfs", len(all), size), faults, nil
}

// addresses is how many addresses the step gid-time sets.
const addresses = 100

// times measures how long entries take to come and to go.
func (p *pod) times(ctx context.Context, v view) report.Finding {
	of := p.ports[0].String()
	w, why := v.open(p.ports[0])
	if why != nil {
		return *why
	}
	defer w.Close()
	table, err := w.Table(w.port)
	if err != nil {
		return unread(of, err)
	}
	each := 1 // event for an address
	if slices.ContainsFunc(table, func(e uverbs.Entry) bool { return e.Type == gidtable.RoCEv1 }) {
		each = 2
	}
	if _, err := w.rest(); err != nil { // of what came before
		return unread(of, err)
	}
	var took [2][]time.Duration // of its entry, and of its end
	err = p.onLink(ctx, func(c *rtnl.Conn, link int32) error {
		for i := range addresses {
			a := alone(netip.AddrFrom4([4]byte{198, 18, 255, byte(10 + i)}))
			for j, how := range []func(int32, netip.Prefix) rtnl.Change{rtnl.AddAddress, rtnl.DeleteAddress} {
				start := time.Now()
				if err := c.Do(ctx, how(link, a)); err != nil {
					return err
				}
				for range each {
					if kind, came, err := w.Next(wait); err != nil || kind != uverbs.GIDChange {
						return fmt.Errorf("no event GID_CHANGE for %s within %s: %t, %d (%w)", a.Addr(), wait, came, kind, err)
					}
				}
				took[j] = append(took[j], time.Since(start))
			}
		}
		return nil
	})
	if err != nil {
		return problem(of, err.Error(), aKnownFault)
	}
	return ok(of, "%d addresses: an entry comes after %s; it is gone after %s", addresses, spread(took[0]), spread(took[1]))
}

// spread says how times are distributed.
func spread(took []time.Duration) string {
	slices.Sort(took)
	at := func(percent int) int64 { return took[(len(took)*percent+99)/100-1].Microseconds() }
	return fmt.Sprintf("%d µs (median), %d µs (p99), %d µs (most)", at(50), at(99), at(100))
}
