// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package grant

import (
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// unused is how long an answer stays that no pod has used, because the runtime may
// try again later. If an answer was used, its pod is gone. An answer without
// addresses never gets older than this.
const unused = time.Minute

// known is what this process knows of an answer: since when it exists, whether a pod
// has used it, and at how many looks in a row no pod used it.
type known struct {
	since time.Duration
	used  bool
	idle  int
}

// review removes answers that are not needed any more: those that no pod has used for
// a while, and those of pods that are gone. A pod may be about to use such an answer.
// settle sees this before it releases the addresses.
func (c *Controller) review() {
	answers, err := c.Ranges.Answers(c.Pool)
	c.Trouble("answers", err)
	slots, _ := c.Terms()
	seen, fresh := c.usages(slots)
	if !fresh {
		return
	}
	before := c.known
	c.known = map[nodefile.Key]*known{}
	for _, a := range answers {
		n := before[a.Key]
		if n == nil { // an answer of an earlier process: its pod may be gone
			n = &known{since: c.Clock.Now(), used: a.Granted()}
		}
		c.known[a.Key] = n
		if !n.over(c, a, seen.of(slots, a)) {
			continue
		}
		c.Trouble("answers", c.Ranges.RemoveAnswer(c.Pool, a.Key))
		if a.Granted() {
			c.settling = pace.Pause{}
		}
	}
}

// over says whether an answer is not needed any more. An answer without addresses
// stays until an ADD has read it. kubelet waits 15 seconds after a failed ADD.
// Without the answer, its next ADD would ask again and fail again.
func (n *known) over(c *Controller, a nodefile.Answer, t usage) bool {
	n.idle++
	n.used = n.used || t.leased || t.freed >= n.since
	if t.leased || c.asked(a.Key) {
		n.idle = 0
	}
	long := c.Clock.Now()-n.since >= unused
	if !a.Granted() {
		return long || n.used && n.idle >= 2
	}
	return n.idle >= 2 && (n.used || long)
}

// slotOf returns the slot of an answer, -1 if these slots do not have it.
func slotOf(slots block.Slots, a nodefile.Answer) int {
	if a.Granted() {
		if slot, ok := slots.Find(a.Rails[0][0].Ranges[0].First); ok {
			return slot
		}
	}
	return -1
}
