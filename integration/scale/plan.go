// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import "time"

// plan is what is measured: all nodes of a cluster want addresses of one pool, so
// many at one time, and in the end all at once.
func (o options) plan() []scenario {
	if o.crowds {
		return o.crowd()
	}
	return append(o.bounded(), o.atOnce()...)
}

// bounded is what is measured with a part of the nodes at work.
func (o options) bounded() (out []scenario) {
	for _, nodes := range o.nodes {
		for _, fill := range []int{50, 90} {
			for _, hints := range []bool{false, true} {
				out = append(out, scenario{Design: blocks, Nodes: nodes, Fill: fill, Hints: hints})
			}
		}
		out = append(out,
			scenario{Design: blocks, Nodes: nodes, Fill: 90, Hints: true, Starting: true},
			scenario{Design: blocks, Rule: blind, Nodes: nodes, Fill: 90},
			scenario{Design: blocks, Rule: sharding, Nodes: nodes, Fill: 90},
			scenario{Design: shared, Nodes: nodes},
			scenario{Design: locked, Nodes: nodes},
		)
	}
	for i := range out {
		out[i].Parallel, out[i].Rails = o.parallel, 1
	}
	return out
}

// atOnce is what is measured without a bound.
func (o options) atOnce() (out []scenario) {
	for _, nodes := range o.nodes {
		for _, hints := range []bool{false, true} {
			if nodes > o.parallel && o.parallel > 0 {
				out = append(out, scenario{Design: blocks, Nodes: nodes, Fill: 90, Hints: hints, Rails: 1})
			}
		}
	}
	return out
}

// crowd has each run without a bound after the same run with one, so that load beside
// them changes both.
func (o options) crowd() (out []scenario) {
	for _, all := range o.atOnce() {
		part := all
		part.Parallel = o.parallel
		out = append(out, part, all)
	}
	return out
}

// horizon is how long that is looked at: kubelet gives up long before.
const horizon = 10 * time.Minute

// large is what is only modelled: pods with eight rails start on all nodes within
// five seconds, and at last within a minute.
func large() (out []scenario) {
	const nodes, rails, spread = 10_000, 8, 5 * time.Second
	for _, fill := range []int{50, 90} {
		for _, hints := range []bool{false, true} {
			out = append(out, scenario{Design: blocks, Nodes: nodes, Fill: fill, Hints: hints})
		}
	}
	out = append(out, scenario{Design: blocks, Nodes: nodes, Fill: 90, Hints: true, Starting: true})
	for _, r := range []rule{blind, sharding} {
		out = append(out, scenario{Design: blocks, Rule: r, Nodes: nodes, Fill: 90})
	}
	// Nodes that join a pool that others have filled.
	for _, r := range []rule{asIs, blind, sharding} {
		out = append(out, scenario{Design: blocks, Rule: r, Nodes: nodes / 10, Joined: 80, Fill: 90})
	}
	out = append(out, scenario{Design: shared, Nodes: nodes}, scenario{Design: locked, Nodes: nodes})
	for i := range out {
		out[i].Rails, out[i].Spread = rails, spread
	}
	return append(out, scenario{Design: blocks, Nodes: nodes, Fill: 90, Hints: true, Rails: rails, Spread: time.Minute})
}
