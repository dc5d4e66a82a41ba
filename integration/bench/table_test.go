// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"strings"
	"testing"
	"time"
)

func TestQuantilesAreOfWhatWasMeasured(t *testing.T) {
	t.Parallel()
	for n, want := range map[int][2]time.Duration{1: {1, 1}, 2: {1, 2}, 3: {2, 3}, 10: {5, 9}, 60: {30, 54}} {
		var sorted []time.Duration
		for i := range n {
			sorted = append(sorted, time.Duration(i+1))
		}
		if got := [2]time.Duration{median(sorted), p90(sorted)}; got != want {
			t.Errorf("of 1 to %d: got median and p90 %v, want %v", n, got, want)
		}
	}
}

func TestOnlyRatiosAboveTheirTargetsAreMissed(t *testing.T) {
	t.Parallel()
	s := samples{"fast": {add: {40}}, "slow": {add: {100}}, "floor": {add: {20}}}
	for _, c := range []struct {
		target float64
		less   string
		missed int
		says   string
	}{
		{0.41, "", 0, "0.41x  ok"},
		{0.40, "", 0, "0.40x  ok"},
		{0.39, "", 1, "0.39x  MISSED"},
		{0, "", 0, "0.400x"},
		{0.25, "floor", 0, "0.250x"},
	} {
		var out strings.Builder
		missed := contest{rows: []row{{"ADD", add, "fast", "slow", c.target, c.less}}}.compare(s, options{}, &out)
		if missed != c.missed || !strings.Contains(out.String(), c.says) {
			t.Errorf("target %v: got %d missed and\n%s\nwant %d and %q", c.target, missed, out.String(), c.missed, c.says)
		}
	}
}

func TestSlowPlayersHaveFewerRuns(t *testing.T) {
	t.Parallel()
	c := contest{runs: 12, players: []player{{name: "fast"}, {name: "slow", every: 6}}}
	counted, all := map[string]int{}, map[string]int{}
	for _, turn := range c.order() {
		all[turn.name]++
		if turn.counts {
			counted[turn.name]++
		}
	}
	if counted["fast"] != 12 || counted["slow"] != 2 || all["fast"] != 12+warmUp || all["slow"] != 2+warmUp {
		t.Errorf("got %v counted of %v", counted, all)
	}
	s := samples{"fast": {add: make([]time.Duration, 12)}, "slow": {add: make([]time.Duration, 2)}}
	if got, want := c.counted(s), "12 runs of each, 2 of slow"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOnlyOurMemoryIsMeasured(t *testing.T) {
	t.Parallel()
	for peak, want := range map[int64]int{maxMemory: 0, maxMemory + 1: 1} {
		s := scales{peak: map[string]int64{"roce": peak, "roce with eight rails": 1, "macvlan": 10 * maxMemory}}
		var out strings.Builder
		if missed := s.compare(&out); missed != want {
			t.Errorf("%d bytes: got %d missed, want %d\n%s", peak, missed, want, out.String())
		}
	}
}
