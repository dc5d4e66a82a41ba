// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package grant

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

const (
	// firstTry is the wait between two tries for a pod. While the server does not
	// answer at all, the waits grow.
	firstTry, longTry = time.Second, 8 * time.Second
	// tryTime is how long a try may take, because other requests wait.
	tryTime = 5 * time.Second
)

// request is a request without answer yet.
type request struct {
	since time.Duration
	next  pace.Pause
	why   error         // why there is no answer yet
	seen  time.Duration // the last look that found it
}

// serve answers requests. It does not answer a request that is gone, but remembers
// it. Runtimes call DEL after each failed ADD, and call ADD again 15 seconds later.
// Because serve remembers the first request, no pod waits for ever.
func (c *Controller) serve(ctx context.Context) {
	keys, err := c.Ranges.Wanted(c.Pool)
	c.Trouble("requests", err)
	c.polled = c.Clock.Now()
	for _, k := range keys {
		if c.requests[k] == nil {
			c.requests[k] = &request{since: c.polled}
		}
		c.requests[k].seen = c.polled
	}
	maps.DeleteFunc(c.requests, func(_ nodefile.Key, r *request) bool { return c.polled-r.seen >= unused })
	for _, k := range keys {
		if r := c.requests[k]; r.next.Over(c.Clock.Now()) && ctx.Err() == nil {
			c.answer(ctx, k, r)
		}
	}
}

// answer answers a request, or says when to try again. A pod does not wait for ever
// for addresses that another node holds, or for an API server that does not answer.
func (c *Controller) answer(ctx context.Context, k nodefile.Key, r *request) {
	if _, there, err := c.Ranges.Answer(c.Pool, k); there && err == nil { // a request of just before
		c.known[k] = &known{since: c.Clock.Now()}
		c.Trouble("requests", c.Ranges.Unwant(c.Pool, k))
		delete(c.requests, k)
		return
	}
	a, err := c.take(ctx, k)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && !errors.As(err, new(*sticky.NoneError)) && c.Clock.Now()-r.since < c.Patience:
		r.put(c, err)
		return
	case err != nil:
		a = nodefile.Answer{Key: k, None: block.Explain(err).Error()}
		c.settling = pace.Pause{} // a request without answer may have been done
	}
	if err := c.publish(a); err != nil {
		r.put(c, err)
	}
}

// take gets the addresses that are reserved for a pod.
func (c *Controller) take(ctx context.Context, k nodefile.Key) (nodefile.Answer, error) {
	slots, err := c.Terms()
	if err == nil && slots.Pool == "" {
		err = &sticky.NoneError{Why: "RailPool " + c.Pool + " is not sticky any more"}
	}
	if err != nil {
		return nodefile.Answer{}, err
	}
	if c.hushed() {
		return nodefile.Answer{}, &block.BusyError{After: c.quiet - c.Clock.Now()}
	}
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	l, err := c.Claimer.Take(ctx, slots, k)
	if err != nil {
		return nodefile.Answer{}, c.noteBusy(err)
	}
	return nodefile.Answer{Key: k, Rails: slots.Rails(l.Spec.Slot)}, nil
}

// asked says whether there was a request at the last look.
func (c *Controller) asked(k nodefile.Key) bool {
	r := c.requests[k]
	return r != nil && r.seen == c.polled
}

// put schedules another try of a request.
func (r *request) put(c *Controller, err error) {
	first, wait := r.why == nil, firstTry
	if held := new(sticky.HeldError); !first && !errors.As(err, &held) {
		wait = min(2*r.next.Wait, longTry)
	}
	r.why, r.next = err, pace.Pause{Wait: wait, Until: max(c.Clock.Now(), c.quiet) + c.Clock.Spread(wait)}
	if end := r.since + c.Patience; end > c.Clock.Now() {
		r.next.Until = min(r.next.Until, end)
	}
}

// publish writes an answer and removes the request.
func (c *Controller) publish(a nodefile.Answer) error {
	err := c.Ranges.WriteAnswer(c.Pool, a)
	if err == nil {
		err = c.Ranges.Unwant(c.Pool, a.Key)
	}
	c.Trouble("answers", err)
	if err != nil {
		return err
	}
	c.known[a.Key] = &known{since: c.Clock.Now()}
	delete(c.requests, a.Key)
	about := []any{"pool", c.Pool, "namespace", a.Key.Namespace, "pod", a.Key.Pod, "interface", a.Key.Interface}
	if a.Granted() {
		c.Granted()
		c.Log.Info("a pod gets its sticky addresses", append(about, "address", a.Rails[0][0].Ranges[0].First)...)
		return nil
	}
	c.None()
	c.Log.Warn("a pod gets other addresses than its sticky ones", append(about, "why", a.None)...)
	return nil
}
