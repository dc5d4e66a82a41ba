// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/agent"
	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/netrange"
)

// Summary is what is said of a pool, summed over the racks that have nodes of it,
// or blocks, or a place in its table.
type Summary struct {
	Blocks, Claimed int
	agent.Usage     // in slots, of all blocks, claimed or not
	Reserved        int
	// Fault is what is wrong with the pool itself.
	Fault error
}

// summarize returns the summary of each pool.
func summarize(w world) map[string]Summary {
	out := map[string]Summary{}
	older := []agent.Pool{}
	byAge := slices.SortedFunc(slices.Values(w.pools), func(x, y agent.Pool) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Name, y.Name))
	})
	for _, p := range byAge {
		s := Summary{Fault: p.Validate()}
		for _, rack := range w.racks(p) {
			if space, err := p.Space(rack); err == nil {
				s.Blocks += space.Blocks()
				s.Size += space.Total()
				s.Reserved += reserved(p.Spec.Reservations, space)
			} // else it is the fault of the pool, or of the node that has this label, whose agent says so
		}
		for _, b := range w.blocks {
			if b.Spec.Pool == p.Name {
				s.Claimed++
				s.Used += b.Used
				s.Resting += b.Resting
			}
		}
		s.Free = max(0, s.Size-s.Used-s.Resting)
		for _, o := range older {
			s.Fault = errors.Join(s.Fault, w.apart(p, o))
		}
		older = append(older, p)
		out[p.Name] = s
	}
	return out
}

// racks returns those that a pool has blocks for, as far as they are known; "" for
// a pool that does not ask.
func (w world) racks(p agent.Pool) []string {
	if p.Spec.RackLabel == "" {
		return []string{""}
	}
	var out []string
	for _, r := range p.Spec.Racks {
		out = append(out, r.Name)
	}
	for _, n := range w.nodes {
		if rack, labelled := n.Labels[p.Spec.RackLabel]; labelled && p.Spec.Selects(n.Labels) {
			out = append(out, rack)
		}
	}
	for _, b := range w.blocks {
		if b.Spec.Pool == p.Name {
			out = append(out, b.Spec.Rack)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// apart returns an error if a node could get the same address of two pools that
// both select it. Nodes that only one of them selects may be on wires of their own.
func (w world) apart(p, older agent.Pool) error {
	type racks struct{ ours, theirs string }
	seen := map[racks]bool{}
	for _, n := range w.nodes {
		at := racks{n.Labels[p.Spec.RackLabel], n.Labels[older.Spec.RackLabel]}
		if seen[at] || !p.Spec.Selects(n.Labels) || !older.Spec.Selects(n.Labels) {
			continue
		}
		seen[at] = true
		ours, err := p.Space(at.ours)
		theirs, too := older.Space(at.theirs)
		if err != nil || too != nil { // that is said elsewhere
			continue
		}
		if err := ours.Apart(theirs); err != nil {
			return err
		}
	}
	return nil
}

// reserved counts the addresses of a pool's subnets that reservations keep.
func reserved(reservations []block.Reservation, s block.Space) int {
	var all, kept []netrange.Range
	for _, r := range reservations {
		for _, text := range r.Ranges {
			if one, err := netrange.Parse(text); err == nil { // Validate reports others
				all = append(all, one)
			}
		}
	}
	rails, err := s.Rails(nil)
	if err != nil {
		return 0
	}
	for _, subnets := range rails {
		for _, subnet := range subnets {
			kept = append(kept, netrange.Clip(all, netrange.Of(subnet.Prefix))...)
		}
	}
	n := netrange.Count(netrange.Minus(kept, nil))
	if !n.IsInt64() {
		return math.MaxInt
	}
	return int(n.Int64())
}
