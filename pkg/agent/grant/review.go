// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package grant

import (
	"time"

	"github.com/roce-cni/roce-cni/pkg/agent/pace"
	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/nodefile"
)

// unused is how long an answer stays that no pod has used: the runtime may try
// again later. Of one that was used the pod is gone. And an answer that has no
// addresses is never older.
const unused = time.Minute

// known is since when there is an answer, whether a pod has used it, as far as this
// process knows, and at how many looks in a row none did.
type known struct {
	since time.Duration
	used  bool
	idle  int
}

// review removes the answers that are of no use any more: those that no pod has used
// for a while, and those of pods that are gone. Whether one is just about to use it
// is seen when what was promised is given back.
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
		if n == nil { // of before this process: the pod that it was granted to may be gone
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

// over says whether an answer is of no use any more. One that has no addresses stays
// until somebody has heard it: kubelet, which waits a quarter of a minute after an ADD
// that has failed, would otherwise ask anew, and again in vain.
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

// slotOf returns the slot of an answer, -1 if it is none of these.
func slotOf(slots block.Slots, a nodefile.Answer) int {
	if a.Granted() {
		if slot, ok := slots.Find(a.Rails[0][0].Ranges[0].First); ok {
			return slot
		}
	}
	return -1
}
