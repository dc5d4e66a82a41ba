// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pace_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/pace"
)

// at is a clock that stands; half a random number is no spread.
func at(now time.Duration) pace.Clock {
	return pace.Clock{Now: func() time.Duration { return now }, Rand: func() float64 { return 0.5 }}
}

func TestWhatFailsIsTriedLessAndLessOften(t *testing.T) {
	t.Parallel()
	var p pace.Pause
	if !p.Over(0) {
		t.Error("the first time is not due")
	}
	var got []time.Duration
	for range 8 {
		p.Fail(at(time.Hour))
		got = append(got, p.Until-time.Hour)
	}
	want := []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	p.OK(at(time.Hour), time.Minute)
	if due := time.Hour + time.Minute; p.Over(due-1) || !p.Over(due) {
		t.Errorf("due at %v", p.Until)
	}
	p.Fail(at(0))
	if p.Until != 5*time.Second {
		t.Errorf("after it went well the first wait is %v", p.Until)
	}
}

func TestManyNodesAreSpreadOverHalfTheTime(t *testing.T) {
	t.Parallel()
	for random, want := range map[float64]time.Duration{0: 45 * time.Second, 0.5: time.Minute, 0.999999: 75 * time.Second} {
		c := pace.Clock{Rand: func() float64 { return random }}
		if got := c.Spread(time.Minute).Round(time.Second); got != want {
			t.Errorf("%v: %v, want %v", random, got, want)
		}
	}
}
