// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package grant

import (
	"context"
	"errors"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

const (
	// heldEvery is the wait between two tries for addresses that another node holds.
	heldEvery = 250 * time.Millisecond
	// forgotten is how long after the last request of a pod its first one counts: kubelet
	// calls ADD again 15 seconds after one that failed.
	forgotten = time.Minute
)

// request is what is known of the requests of a pod that has no addresses yet.
type request struct{ first, last time.Duration }

// Ask answers an ADD, and waits until ctx ends for addresses that another node is about to
// release. After Patience, also if the API server does not answer, the pod gets others.
func (c *Controller) Ask(ctx context.Context, k nodefile.Key) nodefile.Answer {
	for {
		a, held := c.try(ctx, k)
		if !held || c.Wait(ctx, heldEvery) != nil {
			return a
		}
	}
}

// try answers with what can be said now, and says whether another node holds the slot.
func (c *Controller) try(ctx context.Context, k nodefile.Key) (a nodefile.Answer, held bool) {
	if c.lock(ctx) != nil {
		return nodefile.Answer{Wait: "rocectl agent has not got through the requests before this one"}, false
	}
	defer c.unlock()
	first := c.note(k)
	slots, slot, err := c.take(ctx, k)
	late := c.Now()-first >= Patience
	switch {
	case err == nil:
		return c.grant(k, slots, slot), false
	case late || errors.As(err, new(*sticky.NoneError)):
		return c.refuse(k, err), false
	}
	return nodefile.Answer{Wait: block.Explain(err).Error()}, errors.As(err, new(*block.HeldError))
}

// note remembers a request, and returns when the pod's first one came, perhaps of an earlier ADD.
func (c *Controller) note(k nodefile.Key) (first time.Duration) {
	now := c.Now()
	if c.requests[k] == nil {
		c.requests[k] = &request{first: now}
	}
	c.requests[k].last = now
	return c.requests[k].first
}

// take gets the slot that is reserved for a pod. It asks no server for one that this process has
// taken and not released: no request is on its way that could release it.
func (c *Controller) take(ctx context.Context, k nodefile.Key) (block.Slots, int, error) {
	slots, err := c.Terms()
	if slot, there := c.mine[k]; there && slots.Has(slot) {
		return slots, slot, nil
	}
	if err == nil && slots.Pool == "" {
		err = &sticky.NoneError{Why: "RailPool " + c.Pool + " is not sticky any more"}
	}
	if err == nil && c.hushed() {
		err = &block.BusyError{After: c.quiet - c.Now()}
	}
	if err != nil {
		return slots, 0, err
	}
	l, err := c.Claimer.Take(ctx, slots, k)
	if err != nil {
		if unanswered(err) && c.settling.Wait == 0 { // it may have been done
			c.settling.Until = c.Now()
		}
		return slots, 0, c.noteBusy(err)
	}
	c.mine[k] = l.Spec.Slot
	return slots, l.Spec.Slot, nil
}

// grant lets an ADD lease a slot.
func (c *Controller) grant(k nodefile.Key, slots block.Slots, slot int) nodefile.Answer {
	until := c.Now() + Time
	c.grants[slot] = grant{k, until}
	delete(c.requests, k)
	a := nodefile.Answer{Rails: slots.Rails(slot), Until: until}
	c.Granted()
	c.Log.Info("a pod gets its sticky addresses", c.about(k, "address", a.Rails[0][0].Ranges[0].First)...)
	return a
}

// refuse lets an ADD lease ordinary addresses. The request stays known, so that another ADD need
// not wait again.
func (c *Controller) refuse(k nodefile.Key, why error) nodefile.Answer {
	a := nodefile.Answer{None: block.Explain(why).Error()}
	c.None()
	c.Log.Warn("a pod gets other addresses than its sticky ones", c.about(k, "why", a.None)...)
	return a
}

func (c *Controller) about(k nodefile.Key, more ...any) []any {
	return append([]any{"pool", c.Pool, "namespace", k.Namespace, "pod", k.Pod, "interface", k.Interface}, more...)
}
