// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package pace computes when a repeated task is due next. It spreads the tasks of many
// nodes over time, and repeats failed tasks less and less often.
//
// It has neither clock nor randomness of its own. Everything is in this file.
package pace

import (
	"context"
	"time"
)

// The waits after an error that waiting alone may not correct: the first, and the
// longest. A block.Claimer has its own waits for a server that does not answer.
const (
	firstWait = 5 * time.Second
	longWait  = 5 * time.Minute
)

// Clock is the time and the chance of a process. Any number of goroutines may use it.
type Clock struct {
	// Wait returns after d, or with the context's error when that ends.
	Wait func(ctx context.Context, d time.Duration) error
	// Now returns CLOCK_BOOTTIME.
	Now func() time.Duration
	// Rand returns a number from 0 to below 1.
	Rand func() float64
}

// Spread returns a random time around d, so that many nodes do not do the same thing
// at once.
func (c Clock) Spread(d time.Duration) time.Duration {
	return time.Duration((0.75 + c.Rand()/2) * float64(d))
}

// Pause is the time when a task is due next, and the last wait after a failure. The
// zero value: due now.
type Pause struct{ Until, Wait time.Duration }

// Over says whether the task is due.
func (p *Pause) Over(now time.Duration) bool { return now >= p.Until }

// OK makes the task due again after about d.
func (p *Pause) OK(c Clock, d time.Duration) { *p = Pause{Until: c.Now() + c.Spread(d)} }

// Fail makes the task due again after a wait. After each further failure the wait is
// longer.
func (p *Pause) Fail(c Clock) {
	p.Wait = min(max(2*p.Wait, firstWait), longWait)
	p.Until = c.Now() + c.Spread(p.Wait)
}
