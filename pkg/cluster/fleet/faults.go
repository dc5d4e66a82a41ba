// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Fault is why new pods should not get a rail.
type Fault string

// The faults of rails.
const (
	Down          Fault = "Down"          // its port is not active
	GIDTableFull  Fault = "GIDTableFull"  // no address more fits
	NeighbourLost Fault = "NeighbourLost" // its switch was heard by LLDP, and is not any more
)

// Flaps remembers faults of rails, so that a port that flaps changes little: a fault is
// confirmed when it was seen at two looks within Calm, and until it was not seen for Calm.
type Flaps struct {
	Calm time.Duration
	seen map[flap]sighting
}

type flap struct {
	netdev string
	fault  Fault
}

type sighting struct {
	last      time.Duration
	confirmed bool
}

// Look notes the faults that a look has found, by interface, and returns those that are
// confirmed.
func (f *Flaps) Look(now time.Duration, found map[string][]Fault) map[string][]Fault {
	next, confirmed := map[flap]sighting{}, map[string][]Fault{}
	for k, s := range f.seen {
		if now-s.last < f.Calm {
			next[k] = s
		}
	}
	for netdev, faults := range found {
		for _, fault := range faults {
			_, again := next[flap{netdev, fault}]
			next[flap{netdev, fault}] = sighting{now, again}
		}
	}
	for k, s := range next {
		if s.confirmed {
			confirmed[k.netdev] = append(confirmed[k.netdev], k.fault)
		}
	}
	for _, faults := range confirmed {
		slices.Sort(faults)
	}
	f.seen = next
	return confirmed
}

// With returns the report with these faults, by interface, and no others.
func (r Report) With(faults map[string][]Fault) Report {
	out := Report{Rails: slices.Clone(r.Rails)}
	for i := range out.Rails {
		out.Rails[i].Faults = faults[out.Rails[i].Netdev]
	}
	return out
}

// Condition is what a Node says of its rails. The zero value: nothing.
type Condition struct{ Status, Reason, Message string }

// Condition returns the condition that the report makes.
func (r Report) Condition() Condition {
	var faults []string
	for _, one := range r.Rails {
		var words []string
		for _, f := range one.Faults {
			words = append(words, string(f))
		}
		if len(words) > 0 {
			faults = append(faults, fmt.Sprintf("rail %d (%s): %s", one.Rail, one.Netdev, strings.Join(words, ", ")))
		}
	}
	switch {
	case len(r.Rails) == 0:
		return Condition{"Unknown", "NoRails", "the agent of the node reports no rails"}
	case len(faults) == 0:
		return Condition{"True", "RailsReady", "each rail can serve new pods"}
	}
	return Condition{"False", "RailsNotReady", strings.Join(faults, "; ")}
}
