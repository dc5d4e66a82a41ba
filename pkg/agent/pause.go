// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import "time"

// The waits after something that waiting alone may not mend: the first, and the
// longest. That a server does not answer is waited for below, by the Claimer.
const (
	firstWait = 5 * time.Second
	longWait  = 5 * time.Minute
)

// pause is when something is due next. The zero value: now.
type pause struct{ until, wait time.Duration }

func (p *pause) over(now time.Duration) bool { return now >= p.until }

// ok makes it due again after around d.
func (p *pause) ok(a *Agent, d time.Duration) { *p = pause{until: a.Now() + a.spread(d)} }

// fail makes it due again after a while, and after a longer one when that fails too.
func (p *pause) fail(a *Agent) {
	p.wait = min(max(2*p.wait, firstWait), longWait)
	p.until = a.Now() + a.spread(p.wait)
}
