// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package align

import (
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

// maxHidden is how many fillers are set at once if the driver hides entries: then some of
// them may get an index that is too high.
const maxHidden = 16

// rail is one interface of a pod, and what was done for it so far.
type rail struct {
	plan.AlignRail
	own     bool                // its fillers are on the pod's link
	at      []int               // GID indexes of the addresses
	highest int                 // of all that they had
	fresh   plan.Ops            // fillers that were set now
	high    plan.Ops            // those that have got too high an index
	tried   map[netip.Addr]bool // addresses of these
}

func (f *rail) String() string {
	return fmt.Sprintf("%s (%s/%d)", f.Link, f.Device.Name, f.Device.Port)
}

// set returns the operations that set the addresses from i on.
func (f *rail) set(i int) plan.Ops {
	var out plan.Ops
	for _, p := range slices.Concat(f.Addresses[i:], f.Others) {
		out = append(out, plan.InPod(plan.Address{Link: f.Link, Prefix: p})...)
	}
	return out
}

// filled returns the rail with the link that has its fillers.
func (f *rail) filled() plan.AlignRail {
	out := f.AlignRail
	if !f.own {
		out.Link = f.Fillers.Name
	}
	return out
}

// side returns the namespace with the fillers of a rail. If there is none, it makes it, or
// returns the pod's, which has none of them.
func (a Aligner) side(f *rail, make bool) (Side, error) {
	if f.own {
		return a.Pod, nil
	}
	node, err := a.Node(make)
	if err != nil || node == nil {
		return a.Pod, err
	}
	return *node, nil
}

// entries returns the visible entries of the table of a rail with an index below limit, and
// how long that part is. hidden says that there can be others: those at the first index,
// which the NIC itself has, are not visible.
func (a Aligner) entries(f *rail, limit int) (all []gidtable.Entry, size int, hidden bool, err error) {
	node, err := a.side(f, false)
	if err != nil {
		return nil, 0, false, err
	}
	all, size, err = node.Tables.Before(plan.Pod, f.Device, limit)
	if err != nil || len(all) > 0 && all[0].Index == 0 {
		return all, size, false, err
	}
	for _, reader := range []plan.Place{plan.Pod, plan.Host} {
		more, _, err := a.Pod.Tables.Before(reader, f.Device, limit)
		if err != nil {
			return nil, 0, false, err
		}
		all, _ = gidtable.Merge(all, more)
	}
	return all, size, true, nil
}

// filler returns the operation that sets the filler of an entry, false if the entry is no
// filler of the rail. Those of the node may be on the link of a NIC that had another name.
func (f *rail) filler(e gidtable.Entry) (plan.Op, bool) {
	ours := plan.IsFiller(e.GID, e.Netdev)
	if f.own {
		ours = e.Netdev == string(f.Link) && plan.FillerRange.Contains(e.GID)
	}
	if !ours {
		return plan.Op{}, false
	}
	return plan.InPod(plan.Address{Link: conf.LinkName(e.Netdev), Prefix: netip.PrefixFrom(e.GID, e.GID.BitLen())})[0], true
}

// fillerAt returns the filler of a rail with the RoCE v2 entry at an index, none if there is
// none. A pod can give its link the name of that with the fillers.
func (a Aligner) fillerAt(ctx context.Context, f *rail, index int) (plan.Ops, error) {
	node, err := a.side(f, false)
	if err != nil {
		return nil, err
	}
	entries, _, err := node.Tables.Before(plan.Pod, f.Device, index+1)
	for _, e := range entries {
		if op, is := f.filler(e); is && e.Index == index && e.Type == gidtable.RoCEv2 && node.Kernel.Check(ctx, op) == nil {
			return plan.Ops{op}, err
		}
	}
	return nil, err
}

// fill sets fillers on a rail until no index below to is free. Those that get a higher index
// are added to f.high. Address i of the rail, and those behind it, are off.
func (a Aligner) fill(ctx context.Context, f *rail, i, to int) error {
	room, step, err := a.measure(f, i, to)
	if err != nil || room <= 0 {
		return err
	}
	node, err := a.side(f, true)
	if err != nil {
		return err
	}
	if !f.own {
		if err := node.Kernel.Do(ctx, plan.InPod(f.Fillers)...); err != nil {
			return err
		}
	}
	for room > 0 {
		ops := f.next(min(room, step))
		if len(ops) == 0 {
			return nil
		}
		f.fresh, room = append(f.fresh, ops...), room-len(ops)
		err := node.Kernel.Do(ctx, ops...)
		if cnierr.CodeOf(err) == cnierr.AddressTaken { // an ipvlan of a pod has one of them
			if err := a.remove(ctx, f, ops); err != nil {
				return err
			}
			room += len(ops)
			continue
		}
		if err != nil {
			return err
		}
		at, err := node.Tables.Place(ctx, f.filled(), addresses(ops), nil)
		if err != nil {
			return fmt.Errorf("want index %d on %s: %w", to, f, err)
		}
		for _, op := range ops {
			if at[addresses(plan.Ops{op})[0]] >= to {
				f.high, room = append(f.high, op), 0
			}
		}
	}
	return nil
}

// measure computes how many fillers a rail needs below an index, as far as the table is
// visible, and how many of them may be set at once.
func (a Aligner) measure(f *rail, i, to int) (room, step int, err error) {
	entries, size, hidden, err := a.entries(f, to+1)
	if err != nil {
		return 0, 0, err
	}
	if size <= to {
		return 0, 0, cnierr.New(cnierr.NoGID, Action, f.String(), "delete pods on the NIC that has the higher index, or set rdma.gidIndex to any",
			"want index %d, and the table has %d entries", to, size)
	}
	if f.tried == nil {
		f.tried = map[netip.Addr]bool{}
	}
	width, from, step := gidtable.Width(entries), 0, math.MaxInt
	if hidden { // the address had the lowest free index
		from, step = f.at[i]-width+1, maxHidden
	}
	free := to - from
	for _, e := range entries {
		if _, is := f.filler(e); is {
			f.tried[e.GID] = true
		}
		if from <= e.Index && e.Index < to {
			free--
		}
	}
	return free / width, step, nil
}

// next returns the operations that set n more fillers.
func (f *rail) next(n int) plan.Ops {
	var out plan.Ops
	for addr := plan.FillerRange.Addr(); plan.FillerRange.Contains(addr) && len(out) < n; addr = addr.Next() {
		if !f.tried[addr] {
			f.tried[addr] = true
			out = append(out, plan.InPod(plan.Address{Link: f.filled().Link, Prefix: netip.PrefixFrom(addr, addr.BitLen())})...)
		}
	}
	return out
}

// remove removes fillers of a rail.
func (a Aligner) remove(ctx context.Context, f *rail, fillers plan.Ops) error {
	if len(fillers) == 0 {
		return nil
	}
	node, err := a.side(f, false)
	if err != nil {
		return err
	}
	return node.Kernel.Undo(ctx, fillers...)
}

// unset removes the fillers that were set now. Some may be gone already.
func (a Aligner) unset(ctx context.Context, rails []*rail) error {
	var errs []error
	for _, f := range rails {
		errs = append(errs, a.remove(ctx, f, f.fresh))
	}
	return errors.Join(errs...)
}

// giveBack removes the fillers on links of the pod, and those that are of no use to the
// rails, from an index to the highest that the pod had for a moment: at their indexes each
// rail has a filler, or nothing.
func (a Aligner) giveBack(ctx context.Context, rails []*rail, from int) error {
	to := 0
	for _, f := range rails {
		to = max(to, f.highest)
	}
	needed := map[int]bool{}
	fillers := make([]map[plan.Kind][]int, len(rails)) // of each rail, with their indexes
	for i, f := range rails {
		entries, _, hidden, err := a.entries(f, to+1)
		if err != nil {
			return err
		}
		fillers[i] = map[plan.Kind][]int{}
		ours := map[int]bool{}
		for _, e := range entries {
			filler, is := f.filler(e)
			if ours[e.Index] = is; is {
				fillers[i][filler.Kind] = append(fillers[i][filler.Kind], e.Index)
			} else {
				needed[e.Index] = true
			}
		}
		for index := range to + 1 {
			needed[index] = needed[index] || hidden && !ours[index]
		}
	}
	var errs []error
	for i, f := range rails {
		var back plan.Ops
		for filler, at := range fillers[i] {
			if f.own || slices.Max(at) >= from && !slices.ContainsFunc(at, func(index int) bool { return needed[index] }) {
				back = append(back, plan.InPod(filler)...)
			}
		}
		errs = append(errs, a.remove(ctx, f, back))
	}
	return errors.Join(errs...)
}

// addresses returns the addresses that operations set.
func addresses(ops plan.Ops) []netip.Addr {
	var out []netip.Addr
	for a := range plan.All[plan.Address](ops) {
		out = append(out, a.Prefix.Addr())
	}
	return out
}
