// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package align makes the GID indexes of an attachment what its configuration promises.
//
// It drives the kernel and the GID tables of one pod and of the node's fillers in turn. It
// looks where the kernel put each GID, and computes only how many fillers to set at once. So
// it is right when the driver hides the entries of other pods, when an address takes two
// entries, and when others use the table at the same time. This file has the order of the
// steps, fill.go the fillers.
package align

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// Tables are the GID tables of the devices of a pod's rails, which are in the host's
// namespace, as one namespace sees them. *rdma.Subsystem has them.
type Tables interface {
	// Place waits for the entries of addresses that were set, and for the end of those
	// that were removed. It returns GID indexes.
	Place(ctx context.Context, r plan.AlignRail, set, unset []netip.Addr) (map[netip.Addr]int, error)
	// Look notes which entries there are, up to an index at least, for addresses that the
	// interface of a rail does not have now.
	Look(r plan.AlignRail, addrs []netip.Addr, from int) error
	// Has says whether an entry is that of an interface of the namespace.
	Has(link conf.LinkName, e gidtable.Entry) bool
	// Before returns the entries with an index below limit that a namespace sees, and
	// how long that part of the table is.
	Before(reader plan.Place, d plan.RDMADevice, limit int) ([]gidtable.Entry, int, error)
}

// Side is a namespace: its links, and the tables as it sees them.
type Side struct {
	Kernel plan.Executor
	Tables Tables
}

// Aligner executes plan.Align.
type Aligner struct {
	Pod Side
	// Node opens the namespace of the node's fillers. If there is none, it makes it, or
	// returns nil.
	Node func(make bool) (*Side, error)
	// Owner returns the pod that has an address on this node, "" if it is unknown.
	Owner func(netip.Addr) string
}

// Do implements plan.Single. It changes nothing if the indexes are right. After an error,
// the fillers that it has set are gone.
func (a Aligner) Do(ctx context.Context, op plan.Op) error {
	want, ok := op.Kind.(plan.Align)
	if !ok {
		return cnierr.New(cnierr.Bug, "align", fmt.Sprintf("%T", op.Kind), "", "it is no alignment")
	}
	var rails []*rail
	for _, r := range want.Rails {
		rails = append(rails, &rail{AlignRail: r, own: r.Fillers.Name == "", at: make([]int, len(r.Addresses))})
	}
	if want.Rails[0].At != nil {
		return a.restore(ctx, rails)
	}
	err := a.align(ctx, rails, max(0, int(want.Index)))
	if err != nil {
		return errors.Join(err, a.unset(context.WithoutCancel(ctx), rails))
	}
	return nil
}

// align gives the first address of each rail the index to, equal ones if to is 0, and the
// others equal ones. It ends with the fillers that are of use.
func (a Aligner) align(ctx context.Context, rails []*rail, to int) error {
	from, most, moved := math.MaxInt, 0, false
	if err := a.locate(ctx, rails, 0); err != nil {
		return err
	}
	for _, f := range rails {
		from, most = min(from, f.at[0]), max(most, len(f.Addresses))
	}
	for i := range most {
		has := slices.DeleteFunc(slices.Clone(rails), func(f *rail) bool { return len(f.Addresses) <= i })
		m, err := a.level(ctx, has, i, to)
		if err != nil {
			return err
		}
		moved, to = moved || m, 0
	}
	if !moved {
		return nil
	}
	return a.giveBack(ctx, rails, from)
}

// Undo implements plan.Single. Fillers stay, or the kernel removes them with their link.
func (Aligner) Undo(context.Context, plan.Op) error { return nil }

// Check implements plan.Single. Each GID is checked by its own operation, at the
// index that ADD found.
func (Aligner) Check(context.Context, plan.Op) error { return nil }

const (
	// Action is the operation in errors.
	Action = "align GID index of"
	// maxRounds is how often rails are made level. Each round has another index.
	maxRounds = 32
)

// level gives address i of all rails the same index: to, or one that the kernel gave a rail
// if to is 0. It returns whether it had to move any.
func (a Aligner) level(ctx context.Context, rails []*rail, i, to int) (moved bool, err error) {
	for range maxRounds {
		target, err := a.target(ctx, rails, i, to)
		if err != nil {
			return moved, err
		}
		off := slices.DeleteFunc(slices.Clone(rails), func(f *rail) bool { return f.at[i] == target })
		if len(off) == 0 {
			return moved, nil
		}
		moved = true
		if err := a.move(ctx, off, i, target); err != nil {
			return moved, err
		}
	}
	return moved, cnierr.New(cnierr.NoGID, Action, rails[0].String(), "delete pods on these NICs, or set rdma.gidIndex to any",
		"after %d attempts no index is free on all rails", maxRounds)
}

// target returns the index that address i of all rails is to have: to if that is not 0; the
// lowest that a rail has if fillers hold it on the rails that are higher; else the highest.
func (a Aligner) target(ctx context.Context, rails []*rail, i, to int) (int, error) {
	compare := func(x, y *rail) int { return cmp.Compare(x.at[i], y.at[i]) }
	low, high := slices.MinFunc(rails, compare).at[i], slices.MaxFunc(rails, compare).at[i]
	if to > 0 {
		low = to
	}
	for _, f := range rails {
		if f.at[i] <= low {
			continue
		}
		held, err := a.fillerAt(ctx, f, low)
		switch {
		case err != nil:
			return 0, err
		case len(held) > 0:
		case to > 0:
			return 0, a.taken(f, i, to)
		default:
			return high, nil
		}
	}
	return low, nil
}

// move gives address i of rails, and those behind it, the index to, or the lowest free one
// behind it. It removes a filler that holds the index.
func (a Aligner) move(ctx context.Context, rails []*rail, i, to int) error {
	var off plan.Ops
	for _, f := range rails {
		off = append(off, f.set(i)...)
	}
	if err := a.Pod.Kernel.Undo(ctx, off...); err != nil {
		return err
	}
	for _, f := range rails {
		gone := addresses(f.set(i))
		if _, err := a.Pod.Tables.Place(ctx, f.AlignRail, nil, gone); err != nil {
			return err
		}
		if err := a.Pod.Tables.Look(f.AlignRail, gone, to); err != nil {
			return err
		}
	}
	for _, f := range rails {
		if err := a.fill(ctx, f, i, to); err != nil {
			return err
		}
		held, err := a.fillerAt(ctx, f, to)
		if err != nil {
			return err
		}
		if err := a.remove(ctx, f, append(f.high, held...)); err != nil {
			return err
		}
		f.high = nil
	}
	if err := a.Pod.Kernel.Do(ctx, off...); err != nil {
		return err
	}
	return a.locate(ctx, rails, i)
}

// locate looks where the addresses of rails from i on are, those that were set last first:
// the kernel makes the entries of all NICs one after another (gid_cache_wq).
func (a Aligner) locate(ctx context.Context, rails []*rail, i int) error {
	for _, f := range slices.Backward(rails) {
		var want []netip.Addr
		for _, p := range f.Addresses[i:] {
			want = append(want, p.Addr())
		}
		at, err := a.Pod.Tables.Place(ctx, f.AlignRail, want, nil)
		if err != nil {
			return err
		}
		for j, addr := range want {
			f.at[i+j] = at[addr]
			f.highest = max(f.highest, at[addr])
		}
	}
	return nil
}

// restore gives each address its former index, as far as that is free or has a filler: the
// check that ends a repair reports the others. The addresses are set in any case. No other
// rail needs the fillers that it sets meanwhile, so they are on the pod's link.
func (a Aligner) restore(ctx context.Context, rails []*rail) error {
	var errs []error
	for _, f := range rails {
		node := &rail{AlignRail: f.AlignRail, own: f.own}
		f.own = true
		err := a.locate(ctx, []*rail{f}, 0)
		for i := 0; err == nil && i < len(f.At); i++ {
			err = a.again(ctx, f, node, i)
		}
		if code := cnierr.CodeOf(err); code == cnierr.NoGID || code == cnierr.NoRDMA {
			err = nil
		}
		ctx := context.WithoutCancel(ctx)
		errs = append(errs, err, a.unset(ctx, []*rail{f}), a.Pod.Kernel.Do(ctx, f.set(0)...))
	}
	return errors.Join(errs...)
}

// again gives address i of a rail its former index if that is free, or has a filler of the
// node.
func (a Aligner) again(ctx context.Context, f, node *rail, i int) error {
	if f.at[i] == f.At[i] {
		return nil
	}
	held, err := a.fillerAt(ctx, node, f.At[i])
	if err != nil || f.at[i] > f.At[i] && len(held) == 0 {
		return err
	}
	if err := a.remove(ctx, node, held); err != nil {
		return err
	}
	return a.move(ctx, []*rail{f}, i, f.At[i])
}

// taken returns the error for a promised index that is not free. It names the owner
// as far as the host and the pod see it.
func (a Aligner) taken(f *rail, i, want int) error {
	var views [2][]gidtable.Entry
	for _, reader := range []plan.Place{plan.Host, plan.Pod} {
		var err error
		if views[reader], _, err = a.Pod.Tables.Before(reader, f.Device, want+1); err != nil {
			return err
		}
	}
	entries, _ := gidtable.Merge(views[plan.Host], views[plan.Pod])
	who := "an entry that only another pod sees, or that a running program still uses"
	for _, e := range entries {
		switch {
		case e.Index == want && e.GID == f.Addresses[i].Addr() && a.Pod.Tables.Has(f.Link, e):
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
