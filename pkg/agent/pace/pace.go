// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package pace computes when a repeated task is due next. It spreads the tasks of many
// nodes over time, and repeats failed tasks less and less often.
//
// It never waits, and has neither clock nor randomness of its own. It stands below
// agent and grant. Everything is in this file.
package pace

import "time"

// The waits after something that waiting alone may not mend: the first, and the
// longest. That a server does not answer is waited for elsewhere, by a block.Claimer.
const (
	firstWait = 5 * time.Second
	longWait  = 5 * time.Minute
)

// Clock is what pauses are measured by.
type Clock struct {
	// Now returns CLOCK_BOOTTIME.
	Now func() time.Duration
	// Rand returns a number from 0 to below 1.
	Rand func() float64
}

// Spread returns a time around d: what many nodes do, they should not do at once.
func (c Clock) Spread(d time.Duration) time.Duration {
	return time.Duration((0.75 + c.Rand()/2) * float64(d))
}

// Pause is when something is due next, and how long it last had to wait because it has
// failed. The zero value: now.
type Pause struct{ Until, Wait time.Duration }

// Over says whether it is due.
func (p *Pause) Over(now time.Duration) bool { return now >= p.Until }

// OK makes it due again after around d.
func (p *Pause) OK(c Clock, d time.Duration) { *p = Pause{Until: c.Now() + c.Spread(d)} }

// Fail makes it due again after a while, and after a longer one when that fails too.
func (p *Pause) Fail(c Clock) {
	p.Wait = min(max(2*p.Wait, firstWait), longWait)
	p.Until = c.Now() + c.Spread(p.Wait)
}
