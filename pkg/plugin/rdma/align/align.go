// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package align makes the GID indexes of an attachment what its configuration promises.
//
// It drives the kernel and the GID tables of one pod in turn, and knows no verb. It looks
// where the kernel put each GID, and computes only how many fillers to set at once. So it
// is right when the driver hides the entries of other pods, when an address takes two
// entries (RoCE v1 and v2), and when others use the table at the same time. Everything is
// in this file.
package align

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
)

// Tables are the GID tables of the devices of a pod's rails, which are in the host's
// namespace. *rdma.Subsystem has them.
type Tables interface {
	// Place waits for the entries of addresses that were set, and for the end of those
	// that were removed. It returns GID indexes.
	Place(ctx context.Context, r plan.AlignRail, set, unset []netip.Addr) (map[netip.Addr]int, error)
	// Has says whether an entry is that of an interface of the pod.
	Has(link conf.LinkName, e rdma.Entry) bool
	// Before returns the entries with an index below limit that a namespace sees, and
	// how long that part of the table is.
	Before(reader rdma.Side, d plan.RDMADevice, limit int) ([]rdma.Entry, int, error)
}

// Aligner executes plan.Align.
type Aligner struct {
	Kernel plan.Executor // of the pod
	Tables Tables
	// Owner returns the pod that has an address on this node, "" if it is unknown.
	Owner func(netip.Addr) string
}

// Do implements plan.Single.
func (a Aligner) Do(ctx context.Context, op plan.Op) error {
	want, ok := op.Kind.(plan.Align)
	if !ok {
		return cnierr.New(cnierr.Bug, "align", fmt.Sprintf("%T", op.Kind), "", "it is no alignment")
	}
	if want.Rails[0].At != nil {
		return a.restore(ctx, want.Rails)
	}
	var rails []*filling
	most := 0
	for _, r := range want.Rails {
		f := &filling{AlignRail: r, at: make([]int, len(r.Addresses))}
		if err := a.locate(ctx, f, 0, nil); err != nil {
			return err
		}
		rails, most = append(rails, f), max(most, len(r.Addresses))
	}
	to := max(0, int(want.Index))
	for i := range most {
		if err := a.level(ctx, rails, i, to); err != nil {
			return err
		}
		to = 0
	}
	return a.empty(ctx, rails)
}

// Undo implements plan.Single. The kernel removes fillers with their link.
func (Aligner) Undo(context.Context, plan.Op) error { return nil }

// Check implements plan.Single. Each GID is checked by its own operation, at the
// index that ADD found.
func (Aligner) Check(context.Context, plan.Op) error { return nil }

// filling is a rail while its table is filled.
type filling struct {
	plan.AlignRail
	at      []int               // GID indexes of the addresses
	fillers plan.Ops            // on the link now
	used    map[netip.Addr]bool // not to be used as fillers: set before, or in the table already
	room    int                 // how many fillers are still to be set
}

func (f *filling) String() string {
	return fmt.Sprintf("%s (%s/%d)", f.Link, f.Device.Name, f.Device.Port)
}

// set returns the operations that set the addresses from i on.
func (f *filling) set(i int) plan.Ops {
	var out plan.Ops
	for _, p := range slices.Concat(f.Addresses[i:], f.Others) {
		out = append(out, plan.InPod(plan.Address{Link: f.Link, Prefix: p})...)
	}
	return out
}

const (
	// Action is the operation in errors.
	Action = "align GID index of"
	// maxRounds is how often rails are made level. Each round has a higher index.
	maxRounds = 32
	// maxFillers is how many fillers are set at once. If the driver hides entries,
	// some of them may get an index that is too high.
	maxFillers = 16
)

// level gives address i of all rails the same index: to, or the highest that a rail
// has if to is 0.
func (a Aligner) level(ctx context.Context, rails []*filling, i, to int) error {
	rails = slices.DeleteFunc(slices.Clone(rails), func(f *filling) bool { return len(f.Addresses) <= i })
	for range maxRounds {
		high := slices.MaxFunc(rails, func(x, y *filling) int { return cmp.Compare(x.at[i], y.at[i]) })
		if to > 0 && high.at[i] > to {
			return a.taken(high, i, to)
		}
		target := max(to, high.at[i])
		low := slices.DeleteFunc(slices.Clone(rails), func(f *filling) bool { return f.at[i] == target })
		if len(low) == 0 {
			return nil
		}
		if err := a.raise(ctx, low, i, target); err != nil {
			return err
		}
	}
	return cnierr.New(cnierr.NoGID, Action, rails[0].String(), "delete pods on these NICs, or set rdma.gidIndex to any",
		"after %d attempts no index is free on all rails", maxRounds)
}

// raise moves address i of rails, and those behind it, to the lowest free index from
// to on.
func (a Aligner) raise(ctx context.Context, low []*filling, i, to int) (err error) {
	over := map[*filling]plan.Ops{}
	defer func() {
		if err != nil {
			for f, ops := range over {
				f.fillers = append(f.fillers, ops...)
			}
		}
	}()
	var off plan.Ops
	for _, f := range low {
		if err := a.measure(f, i, to); err != nil {
			return err
		}
		off = append(off, f.set(i)...)
	}
	if err := a.Kernel.Undo(ctx, off...); err != nil {
		return err
	}
	for {
		more, err := a.fill(ctx, low, i, to, over)
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	var all plan.Ops
	for _, f := range low {
		all = append(all, over[f]...)
	}
	if len(all) > 0 {
		if err := a.Kernel.Undo(ctx, all...); err != nil {
			return err
		}
	}
	if err := a.Kernel.Do(ctx, off...); err != nil {
		return err
	}
	for _, f := range low {
		if err := a.locate(ctx, f, i, addresses(over[f])); err != nil {
			return err
		}
	}
	return nil
}

// measure computes how many fillers a rail needs below an index, as far as the pod
// sees the table.
func (a Aligner) measure(f *filling, i, to int) error {
	entries, size, err := a.Tables.Before(rdma.Pod, f.Device, to+1)
	if err != nil {
		return err
	}
	if size <= to {
		return cnierr.New(cnierr.NoGID, Action, f.String(), "delete pods on the NIC that has the higher index, or set rdma.gidIndex to any",
			"want index %d, and the table has %d entries", to, size)
	}
	if f.used == nil {
		f.used = map[netip.Addr]bool{}
	}
	free, width := to, 0
	moving := addresses(f.set(i))
	for _, e := range entries {
		f.used[e.GID] = true // a filler of an ADD that was killed
		own := a.Tables.Has(f.Link, e)
		if own && e.GID == f.Addresses[i].Addr() {
			width++
		}
		if e.Index < to && !(own && slices.Contains(moving, e.GID)) {
			free--
		}
	}
	f.room = free / max(width, 1)
	return nil
}

// fill sets some fillers on each rail that has room for them, and returns whether it
// set any. It removes those from fillers that are too high, and adds them to over.
func (a Aligner) fill(ctx context.Context, low []*filling, i, to int, over map[*filling]plan.Ops) (more bool, err error) {
	var all plan.Ops
	of := map[*filling]plan.Ops{}
	for _, f := range low {
		of[f] = f.next(min(f.room, maxFillers))
		f.room -= len(of[f])
		f.fillers, all = append(f.fillers, of[f]...), append(all, of[f]...)
	}
	if len(all) == 0 {
		return false, nil
	}
	if err := a.Kernel.Do(ctx, all...); err != nil {
		return false, err
	}
	for _, f := range low {
		at, err := a.Tables.Place(ctx, f.AlignRail, addresses(of[f]), addresses(f.set(i)))
		if err != nil {
			return false, fmt.Errorf("want index %d on %s: %w", to, f, err)
		}
		high := func(op plan.Op) bool { place, ok := at[addresses(plan.Ops{op})[0]]; return ok && place >= to }
		for _, op := range f.fillers {
			if high(op) {
				over[f], f.room = append(over[f], op), 0
			}
		}
		f.fillers = slices.DeleteFunc(f.fillers, high)
	}
	return true, nil
}

// next returns the operations that set n more fillers.
func (f *filling) next(n int) plan.Ops {
	var out plan.Ops
	for addr := plan.Fillers.Addr(); plan.Fillers.Contains(addr) && len(out) < n; addr = addr.Next() {
		if !f.used[addr] {
			f.used[addr] = true
			out = append(out, plan.InPod(plan.Address{Link: f.Link, Prefix: netip.PrefixFrom(addr, 32)})...)
		}
	}
	return out
}

// locate looks where the addresses from i on are. gone are those that must have no
// entry any more.
func (a Aligner) locate(ctx context.Context, f *filling, i int, gone []netip.Addr) error {
	var want []netip.Addr
	for _, p := range f.Addresses[i:] {
		want = append(want, p.Addr())
	}
	at, err := a.Tables.Place(ctx, f.AlignRail, want, gone)
	if err != nil {
		return err
	}
	for j, addr := range want {
		f.at[i+j] = at[addr]
	}
	return nil
}

// restore gives each address its former index, as far as that is free. The check that
// ends a repair reports the other ones, so an index that is not free is no error here.
// The addresses are set in any case.
func (a Aligner) restore(ctx context.Context, rails []plan.AlignRail) error {
	var errs []error
	for _, r := range rails {
		f := &filling{AlignRail: r, at: make([]int, len(r.Addresses))}
		err := a.locate(ctx, f, 0, nil)
		for i := 0; err == nil && i < len(r.At); i++ {
			if f.at[i] < r.At[i] {
				err = a.raise(ctx, []*filling{f}, i, r.At[i])
			}
		}
		if code := cnierr.CodeOf(err); code == cnierr.NoGID || code == cnierr.NoRDMA {
			err = nil
		}
		errs = append(errs, err, a.empty(ctx, []*filling{f}), a.Kernel.Do(ctx, f.set(0)...))
	}
	return errors.Join(errs...)
}

// empty removes the fillers.
func (a Aligner) empty(ctx context.Context, rails []*filling) error {
	var all plan.Ops
	for _, f := range rails {
		all = append(all, f.fillers...)
	}
	if len(all) == 0 {
		return nil
	}
	return a.Kernel.Undo(ctx, all...)
}

// taken returns the error for a promised index that is not free. It names the owner
// as far as the host and the pod see it.
func (a Aligner) taken(f *filling, i, want int) error {
	var views [2][]rdma.Entry
	for _, reader := range []rdma.Side{rdma.Host, rdma.Pod} {
		var err error
		if views[reader], _, err = a.Tables.Before(reader, f.Device, want+1); err != nil {
			return err
		}
	}
	entries, _ := rdma.Merge(views[rdma.Host], views[rdma.Pod])
	who := "an entry that only another pod sees, or that a running program still uses"
	for _, e := range entries {
		switch {
		case e.Index == want && e.GID == f.Addresses[i].Addr() && a.Tables.Has(f.Link, e):
			return cnierr.New(cnierr.NoGID, Action, f.String(), fmt.Sprintf("set rdma.gidIndex to %d", f.at[i]),
				"want index %d, and the NIC has RoCE v1, which takes the index before each RoCE v2 entry", want)
		case e.Index == want:
			who = fmt.Sprintf("%s of %s", e.GID, cmp.Or(a.Owner(e.GID), "interface "+cmp.Or(e.Netdev, "?")))
		}
	}
	return cnierr.New(cnierr.NoGID, Action, f.String(),
		"look at the table with rocectl gids; set rdma.gidIndex to a number that is free on all rails, or to equal",
		"want index %d, but the lowest free index is %d: at %d is %s", want, f.at[i], want, who)
}

// addresses returns the addresses that operations set.
func addresses(ops plan.Ops) []netip.Addr {
	var out []netip.Addr
	for a := range plan.All[plan.Address](ops) {
		out = append(out, a.Prefix.Addr())
	}
	return out
}
