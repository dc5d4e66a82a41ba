// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"os"
	"strconv"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// railsCrowdSize returns how many pods there are in the crowd with all rails:
// few, for it takes its time, unless ROCE_CROWD says how many.
func railsCrowdSize(t *testing.T) int {
	t.Helper()
	text := os.Getenv("ROCE_CROWD")
	if text == "" {
		return 40
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 || n > 250 {
		t.Fatalf("ROCE_CROWD=%s is not a number of pods from 2 to 250", text)
	}
	return n
}

// Many pods get all rails each, as those of the other crowd get one interface,
// and each has one host part on all.
func TestPodsWithAllRailsSixteenAtATime(t *testing.T) {
	w := newWorld(t, rails)
	all := w.matched(cnitest.Subnet4).With("ipam.subnets.0.ranges", []any{"172.16.{rail+10}.2-172.16.{rail+10}.252"})
	c := newCrowd(t, w, railsCrowdSize(t), func(int) network { return all })
	testCrowd(t, c, rails)
	parts := map[string]map[byte]bool{}
	for addr, id := range c.owner {
		if parts[id] == nil {
			parts[id] = map[byte]bool{}
		}
		parts[id][addr.As4()[3]] = true
	}
	for id, own := range parts {
		if len(own) != 1 {
			t.Errorf("%s has the host parts %v, want one for all rails", id, own)
		}
	}
}
