// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

// The players of the contests over eight rails, beside those over one.
const (
	roceRails     = "roce with eight rails"
	upstreamRails = "upstream with eight networks"
)

// railsIPv4 is the contest over all rails: one attachment of ours against
// a network for each.
func railsIPv4(w *world, runs int) (contest, error) {
	return w.overRails("eight rails, IPv4", "rails", false, runs, 0, []row{
		{"ADD, default checks", add, roceRails, upstreamRails, 0.25, ""},
		{"  against our own ADD of one rail", add, roceRails, roce, 2, ""},
		{"DEL", del, roceRails, upstreamRails, 0.25, ""},
		{"  against our own DEL of one rail", del, roceRails, roce, 0, ""},
	})
}

// railsDualStack is the contest over all rails with an address of each family.
// Upstream waits for each IPv6 address in turn, some 15 s for the eight.
func railsDualStack(w *world, runs int) (contest, error) {
	return w.overRails("eight rails, dual stack", "rails6", true, runs, 6, []row{
		{"ADD, default checks", add, roceRails, upstreamRails, 0.02, ""},
		{"  against our own ADD of one rail", add, roceRails, roce, 0, ""},
		{"DEL", del, roceRails, upstreamRails, 0, ""},
		{"  against our own DEL of one rail", del, roceRails, roce, 0, ""},
	})
}

// overRails returns a contest over all rails, in which upstream has a turn in
// every such runs.
func (w *world) overRails(title, name string, dual bool, runs, every int, rows []row) (contest, error) {
	all, err := w.roceRails(name, dual, nil)
	if err != nil {
		return contest{}, err
	}
	one, err := w.roce(name+"-one", dual, nil)
	if err != nil {
		return contest{}, err
	}
	theirs, err := w.chainedRails(name+"-theirs", dual)
	if err != nil {
		return contest{}, err
	}
	return contest{
		name: title, runs: runs, rows: rows,
		players: []player{
			{name: roceRails, add: all.add, del: all.del},
			{name: roce, add: one.add, del: one.del},
			{name: upstreamRails, add: theirs.add, del: theirs.del, every: every},
		},
	}, nil
}
