// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package elect lets one of several processes work: the one that holds a Lease of the
// coordination API.
//
// It keeps the rules of client-go's leaderelection, without the clientset of all of
// Kubernetes that comes with that package (ADR 40). It never compares the clocks of two
// machines: the times in a Lease are for people. It is for rocectl gc --cluster; package
// kube stores the Lease. Everything is in this file.
package elect

import (
	"context"
	"errors"
	"log/slog"
	"time"

	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// The times of the controllers of Kubernetes.
const (
	// Term is how long a Lease must stay as it is before another process takes it.
	Term = 15 * time.Second
	// Limit is how long a leader works after it began to write the Lease for the last time
	// that succeeded. It is less than Term, which others count from a later moment.
	Limit = 10 * time.Second
	// Pause is the time between two looks at the Lease.
	Pause = 2 * time.Second
)

// ErrLost says that the leader could not renew the Lease in time, or that another process has it.
var ErrLost = errors.New("the Lease could not be renewed in time")

// Lease is the Lease that elects. The errors are those of a block.Store.
type Lease interface {
	// Get returns the Lease as it was at some time after the call. ErrNotFound.
	Get(ctx context.Context) (*coordination.Lease, error)
	// Put writes the Lease if it still has this ResourceVersion. Without one, Put creates it.
	Put(ctx context.Context, l *coordination.Lease) error
}

// Candidate is a process that can be elected. All fields are needed.
type Candidate struct {
	Lease Lease
	// Name is a name that no other process ever has.
	Name       string
	pace.Clock // without Rand
	// Date is the wall clock, for people.
	Date func() time.Time
	Log  *slog.Logger
}

// Lead waits until the process is elected, and works until the context ends. Then it gives
// the Lease up, so that the next process need not wait. If the process does not keep the
// Lease, Lead ends the context of work, and returns ErrLost when work has returned. The error
// of work is that of its context.
func (c Candidate) Lead(ctx context.Context, work func(context.Context) error) error {
	e := &election{Candidate: c}
	for e.try(ctx, Limit); !e.leads(); e.try(ctx, Limit) {
		if err := c.Wait(ctx, Pause); err != nil {
			return err
		}
	}
	c.Log.Info("this process is elected and starts", "identity", c.Name)
	working, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = work(working) }()
	for e.leads() && c.Wait(ctx, min(Pause, e.until-c.Now())) == nil {
		e.try(ctx, e.until-c.Now())
	}
	stop()
	<-ended
	if ctx.Err() == nil {
		return ErrLost
	}
	e.giveUp(context.WithoutCancel(ctx))
	return ctx.Err()
}

type election struct {
	Candidate
	until   time.Duration // until when this process is the leader
	version string        // of the Lease, as it was seen
	since   time.Duration // since when it was seen so
	holder  string        // that was logged
	failed  bool          // the last look, which was logged
}

func (e *election) leads() bool { return e.Now() < e.until }

// try takes or renews the Lease, if no other process has it. It logs what has changed.
func (e *election) try(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := e.request(ctx)
	if err != nil && !e.failed && !errors.Is(err, context.Canceled) {
		e.Log.Warn("the Lease cannot be read or written: this process tries again", "error", err)
	}
	e.failed = err != nil
}

func (e *election) request(ctx context.Context) error {
	l, err := e.Lease.Get(ctx)
	if errors.Is(err, block.ErrNotFound) {
		l, err = &coordination.Lease{}, nil
	}
	if err != nil {
		return err
	}
	if l.ResourceVersion != e.version { // after the answer: its holder counts from an earlier moment
		e.version, e.since = l.ResourceVersion, e.Now()
	}
	if holder := value(l.Spec.HolderIdentity); holder != e.Name {
		if holder != e.holder && holder != "" {
			e.Log.Info("another process is the leader", "identity", holder)
		}
		e.holder, e.until = holder, 0
		if holder != "" && e.Now()-e.since < time.Duration(value(l.Spec.LeaseDurationSeconds))*time.Second {
			return nil
		}
		l.Spec.AcquireTime, l.Spec.LeaseTransitions = new(metav1.NewMicroTime(e.Date())), new(value(l.Spec.LeaseTransitions)+1)
	}
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = &e.Name, new(int32(Term/time.Second))
	return e.write(ctx, l)
}

// write writes the Lease. Limit counts from before the request: the answer does not say when it was done.
func (e *election) write(ctx context.Context, l *coordination.Lease) error {
	l.Spec.RenewTime = new(metav1.NewMicroTime(e.Date()))
	began := e.Now()
	err := e.Lease.Put(ctx, l)
	if err == nil {
		e.until = began + Limit
	}
	return err
}

// giveUp removes this process as the holder. Without an answer, the Lease ends by itself.
func (e *election) giveUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	if l, err := e.Lease.Get(ctx); err == nil && value(l.Spec.HolderIdentity) == e.Name {
		l.Spec.HolderIdentity = nil
		_ = e.write(ctx, l)
	}
}

// value returns what a pointer points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
