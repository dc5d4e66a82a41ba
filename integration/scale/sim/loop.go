// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package sim is a clock that jumps from one event to the next, for code that waits. A
// process is ordinary Go code that asks for the time at which it continues.
//
// It never reads the clock of the machine and draws no random numbers. Only one
// process runs at a time, so every run is the same. It stands below integration/scale,
// which runs the claimer of pkg/cluster/block in it. Read this file first, then station.go for
// the resources that processes wait for.
package sim

import (
	"container/heap"
	"errors"
	"iter"
	"time"
)

// ErrEnded is what a process gets that would go on after the end of the run.
var ErrEnded = errors.New("the run has ended")

// Loop is a run: what is to happen, in order. Its zero value is ready.
type Loop struct {
	now   time.Duration
	queue events
	asked int
}

// Process is what runs in a loop.
type Process struct {
	loop  *Loop
	next  func() (time.Duration, bool)
	stop  func()
	yield func(time.Duration) bool
	ended bool
}

// Go makes a process that begins at a time. All that do waits for must be
// Until: the loop stands still for everything else.
func (l *Loop) Go(at time.Duration, do func(*Process)) {
	p := &Process{loop: l}
	p.next, p.stop = iter.Pull(func(yield func(time.Duration) bool) {
		p.yield = yield
		do(p)
	})
	l.push(at, p)
}

// Run runs until nothing is left to do, or until the clock would pass end. Then
// what still waits gets ErrEnded.
func (l *Loop) Run(end time.Duration) {
	for len(l.queue) > 0 && l.queue[0].at <= end {
		e := heap.Pop(&l.queue).(event)
		l.now = max(l.now, e.at)
		if at, more := e.process.next(); more {
			l.push(at, e.process)
		}
	}
	for _, e := range l.queue {
		e.process.stop()
	}
	l.queue = nil
}

// Now returns the time since the run began.
func (p *Process) Now() time.Duration { return p.loop.now }

// Until returns at a time, or at once if that has passed.
func (p *Process) Until(at time.Duration) error {
	if p.ended || !p.yield(at) {
		p.ended = true
		return ErrEnded
	}
	return nil
}

// Sleep returns after d.
func (p *Process) Sleep(d time.Duration) error { return p.Until(p.Now() + d) }

func (l *Loop) push(at time.Duration, p *Process) {
	l.asked++
	heap.Push(&l.queue, event{at, l.asked, p})
}

// event is that a process goes on. At the same time, the process that asked first
// goes first.
type event struct {
	at      time.Duration
	asked   int
	process *Process
}

// events is a heap.Interface.
type events []event

func (e events) Len() int      { return len(e) }
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }

func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].asked < e[j].asked
}

func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = event{}
	*e = (*e)[:last]
	return x
}
