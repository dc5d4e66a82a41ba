// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/ranges"
	"github.com/roce-cni/roce-cni/pkg/block/sticky"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

// DefaultPatience is for how long the node that had a pod last may go on holding its
// addresses: it has to see that the pod is gone, which takes it some two seconds.
const DefaultPatience = 30 * time.Second

const (
	// glance is how often the requests are looked at: ADDs wait.
	glance = 100 * time.Millisecond
	// firstTry is how long after a try for a pod the next one is; while there is no
	// answer at all the waits grow.
	firstTry, longTry = time.Second, 8 * time.Second
	// tryTime is how long a try may take: others wait.
	tryTime = 5 * time.Second
	// unused is how long an answer stays that no pod has used: the runtime may try
	// again later. Of one that was used the pod is gone. And an answer that has no
	// addresses is never older.
	unused = time.Minute
)

// clerk answers the ADDs that ask for addresses which are kept for pods, and gives
// back what no pod uses. One works for a pool that is sticky, in a goroutine of its
// own, and nobody else writes its answers.
//
// It remembers nothing that matters: what it holds is what the API server says, what
// it has promised is what the files say, and what pods use is what the leases say.
// An answer is removed before the leases are looked at for the last time (settle.go),
// and an ADD looks for the answer again when it has leased: one of the two sees what
// the other has done. So it may be killed between any two steps.
type clerk struct {
	*keeper
	desk     sticky.Desk
	requests map[ranges.Key]*request
	known    map[ranges.Key]*known
	glanced  time.Duration // when requests were looked for last

	looking, settling, affirming pause
	missing                      map[string]bool // leases that are another node's, by name
}

// request is one that is not answered yet.
type request struct {
	since time.Duration
	next  pause
	why   error         // it is not
	seen  time.Duration // the last look at which it was there
}

// known is since when there is an answer, whether a pod has used it, as far as this
// process knows, and at how many looks in a row none did.
type known struct {
	since time.Duration
	used  bool
	idle  int
}

// employ has the pool's requests answered until the clerk is dismissed, or the
// context ends.
func (k *keeper) employ(ctx context.Context) {
	begins(k.agent.metrics.keptLost, k.pool)
	ctx, cancel := context.WithCancel(ctx)
	c := &clerk{
		keeper: k, desk: sticky.Desk{Store: k.Kept, Node: k.Node, Now: k.Date},
		requests: map[ranges.Key]*request{}, known: map[ranges.Key]*known{}, missing: map[string]bool{},
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.run(ctx)
	}()
	k.dismiss = func() { cancel(); <-ended }
}

// noClerk ends the clerk, if there is one.
func (k *keeper) noClerk() {
	if k.dismiss != nil {
		k.dismiss()
		k.dismiss = nil
	}
}

func (c *clerk) run(ctx context.Context) {
	for ctx.Err() == nil {
		c.work(ctx)
		_ = c.Wait(ctx, glance) // the context's error
	}
}

// work does what is due.
func (c *clerk) work(ctx context.Context) {
	c.serve(ctx)
	if c.looking.over(c.Now()) {
		c.looking.until = c.Now() + tick
		c.review()
	}
	if c.settling.over(c.Now()) && ctx.Err() == nil {
		c.settle(ctx)
	}
}

// note is trouble for who has not the lock.
func (c *clerk) note(what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trouble(what, err)
}

// serve answers requests. One that is gone is not answered, but remembered: runtimes
// call DEL after each ADD that has failed, and ADD again a quarter of a minute later,
// and no pod waits for ever.
func (c *clerk) serve(ctx context.Context) {
	keys, err := c.Ranges.Wanted(c.pool)
	c.note("requests", err)
	c.glanced = c.Now()
	for _, k := range keys {
		if c.requests[k] == nil {
			c.requests[k] = &request{since: c.glanced}
		}
		c.requests[k].seen = c.glanced
	}
	maps.DeleteFunc(c.requests, func(_ ranges.Key, r *request) bool { return c.glanced-r.seen >= unused })
	for _, k := range keys {
		if r := c.requests[k]; r.next.over(c.Now()) && ctx.Err() == nil {
			c.answer(ctx, k, r)
		}
	}
}

// answer answers a request, or says when to try again. A pod does not wait for ever
// for what another node holds, or an API server that is away.
func (c *clerk) answer(ctx context.Context, k ranges.Key, r *request) {
	if _, there, err := c.Ranges.Answer(c.pool, k); there && err == nil { // of just before
		c.known[k] = &known{since: c.Now()}
		c.note("requests", c.Ranges.Unwant(c.pool, k))
		delete(c.requests, k)
		return
	}
	a, err := c.take(ctx, k)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && !errors.As(err, new(*sticky.NoneError)) && c.Now()-r.since < c.Patience:
		r.put(c, err)
		return
	case err != nil:
		a = ranges.Answer{Key: k, None: Explain(err).Error()}
		c.settling = pause{} // what got no answer may have been done
	}
	if err := c.publish(a); err != nil {
		r.put(c, err)
	}
}

// take gets the addresses that are kept for a pod.
func (c *clerk) take(ctx context.Context, k ranges.Key) (ranges.Answer, error) {
	slots, err := c.terms()
	if err != nil {
		return ranges.Answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	l, err := c.desk.Take(ctx, slots, k)
	if err != nil {
		return ranges.Answer{}, err
	}
	return ranges.Answer{Key: k, Rails: slots.Rails(l.Spec.Slot)}, nil
}

// terms returns the slots of the pool, and why none may be taken.
func (c *clerk) terms() (block.Slots, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.fault
	if text := c.troubles["file"]; err == nil && text != "" { // such as that the node is in another rack now
		err = errors.New(text)
	}
	if err == nil && c.slots.Pool == "" {
		err = &sticky.NoneError{Why: "RailPool " + c.pool + " is not sticky any more"}
	}
	return c.slots, err
}

// asked says whether there was a request at the last look.
func (c *clerk) asked(k ranges.Key) bool {
	r := c.requests[k]
	return r != nil && r.seen == c.glanced
}

// put has a request tried again later.
func (r *request) put(c *clerk, err error) {
	first, wait := r.why == nil, firstTry
	if held := new(sticky.HeldError); !first && !errors.As(err, &held) {
		wait = min(2*r.next.wait, longTry)
	}
	r.why, r.next = err, pause{wait: wait}
	if busy := new(block.BusyError); errors.As(err, &busy) {
		wait += busy.After
	}
	r.next.until = c.Now() + c.agent.spread(wait)
	if end := r.since + c.Patience; end > c.Now() {
		r.next.until = min(r.next.until, end)
	}
}

// publish writes an answer and removes the request.
func (c *clerk) publish(a ranges.Answer) error {
	err := c.Ranges.WriteAnswer(c.pool, a)
	if err == nil {
		err = c.Ranges.Unwant(c.pool, a.Key)
	}
	c.note("answers", err)
	if err != nil {
		return err
	}
	c.known[a.Key] = &known{since: c.Now()}
	delete(c.requests, a.Key)
	about := []any{"pool", c.pool, "namespace", a.Key.Namespace, "pod", a.Key.Pod, "interface", a.Key.Interface}
	if a.Granted() {
		c.agent.metrics.kept.WithLabelValues(c.pool, "granted").Inc()
		c.Log.Info("a pod gets the addresses that are kept for it", append(about, "address", a.Rails[0][0].Ranges[0].First)...)
		return nil
	}
	c.agent.metrics.kept.WithLabelValues(c.pool, "none").Inc()
	c.Log.Warn("a pod gets other addresses than those that are kept for it", append(about, "why", a.None)...)
	return nil
}

// review removes the answers that are of no use any more: those that no pod has used
// for a while, and those of pods that are gone. Whether one is just about to use it
// is seen when what was promised is given back.
func (c *clerk) review() {
	answers, err := c.Ranges.Answers(c.pool)
	c.note("answers", err)
	slots, _ := c.terms()
	seen, fresh := c.traces(slots)
	if !fresh {
		return
	}
	before := c.known
	c.known = map[ranges.Key]*known{}
	for _, a := range answers {
		n := before[a.Key]
		if n == nil { // of before this process: the pod that it was granted to may be gone
			n = &known{since: c.Now(), used: a.Granted()}
		}
		c.known[a.Key] = n
		if !n.over(c, a, seen.of(slots, a)) {
			continue
		}
		c.note("answers", c.Ranges.RemoveAnswer(c.pool, a.Key))
		if a.Granted() {
			c.settling = pause{}
		}
	}
}

// over says whether an answer is of no use any more. One that has no addresses stays
// until somebody has heard it: kubelet, which waits a quarter of a minute after an ADD
// that has failed, would otherwise ask anew, and again in vain.
func (n *known) over(c *clerk, a ranges.Answer, t trace) bool {
	n.idle++
	n.used = n.used || t.leased || t.freed >= n.since
	if t.leased || c.asked(a.Key) {
		n.idle = 0
	}
	long := c.Now()-n.since >= unused
	if !a.Granted() {
		return long || n.used && n.idle >= 2
	}
	return n.idle >= 2 && (n.used || long)
}

// slotOf returns the slot of an answer, -1 if it is none of these.
func slotOf(slots block.Slots, a ranges.Answer) int {
	if a.Granted() {
		if slot, ok := slots.Find(a.Rails[0][0].Ranges[0].First); ok {
			return slot
		}
	}
	return -1
}

// taken says that pods have what another node holds.
func taken(names []string) error {
	if len(names) == 0 {
		return nil
	}
	return cnierr.New(cnierr.Limited, "keep", fmt.Sprint(names), "delete the pods of this node that have these addresses: kubectl get railleases", "another node has got them since")
}
