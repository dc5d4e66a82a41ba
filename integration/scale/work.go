// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// outcome is what came of a scenario.
type outcome struct {
	scenario
	Measured bool          `json:"measured"`
	Done     int           `json:"done"`    // nodes that got what they wanted
	Elapsed  time.Duration `json:"elapsed"` // until all had, or until time was up
	P50      time.Duration `json:"p50"`     // of those that got it: what one took
	P99      time.Duration `json:"p99"`
	// Late is how many had nothing after patience: kubelet gives a pod no longer.
	Late     int             `json:"late"`
	Requests map[request]int `json:"requests"`
	Load     string          `json:"load,omitempty"` // of the machine, before
	// Least and Most are of all runs of it what they took; the rest is of the one
	// in the middle.
	Least time.Duration `json:"least,omitempty"`
	Most  time.Duration `json:"most,omitempty"`
}

// patience is how long kubelet waits for a sandbox (4 minutes).
const patience = 240 * time.Second

// work is a scenario while nodes are at it. It is for any number of goroutines.
type work struct {
	scenario
	tally *tally

	mu     sync.Mutex
	begun  int
	took   []time.Duration
	late   int
	last   time.Duration
	names  map[string]bool
	faults []error
}

func newWork(s scenario) *work {
	return &work{scenario: s, tally: newTally(), names: map[string]bool{}}
}

// workers is how many nodes are at work at one time.
func (s scenario) workers() int {
	if s.Parallel == 0 {
		return s.Nodes
	}
	return min(s.Parallel, s.Nodes)
}

// next returns the number of a node that has not begun.
func (w *work) next() (number int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun++
	return w.begun - 1, w.begun <= w.Nodes
}

// done notes that a node, which came at a time, has got these names, or why not.
func (w *work) done(names []string, came, now time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range names {
		if name != "" && w.names[name] {
			w.faults = append(w.faults, fmt.Errorf("%s was given out twice", name))
		}
		w.names[name] = true
	}
	if err != nil {
		w.faults = append(w.faults, err)
		return
	}
	w.took = append(w.took, now-came)
	w.last = max(w.last, now)
	if now-came > patience {
		w.late++
	}
}

// failure returns what went wrong, unless it is that time was up.
func (w *work) failure(timeUp ...error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, err := range w.faults {
		if !slices.ContainsFunc(timeUp, func(end error) bool { return errors.Is(err, end) }) {
			return err
		}
	}
	return nil
}

// outcome returns the numbers, after all nodes have ended their work.
func (w *work) outcome(limit time.Duration) outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.took)
	out := outcome{
		scenario: w.scenario, Done: len(w.took), Elapsed: w.last,
		P50: quantile(w.took, 50), P99: quantile(w.took, 99),
		Late: w.late, Requests: w.tally.count,
	}
	if out.Done < w.Nodes {
		out.Elapsed = limit
		if limit >= patience {
			out.Late += w.Nodes - out.Done
		}
	}
	return out
}

// quantile returns the smallest duration that percent of them do not exceed.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max((len(sorted)*percent+99)/100-1, 0)]
}

// sum returns how many requests of a sort there were for each node that is done.
func (o outcome) sum(of func(request) bool) float64 {
	n := 0
	for r, count := range o.Requests {
		if of(r) {
			n += count
		}
	}
	return float64(n) / float64(max(1, o.Done))
}

// rate is nodes in a second.
func (o outcome) rate() float64 {
	if o.Elapsed == 0 {
		return 0
	}
	return float64(o.Done) / o.Elapsed.Seconds()
}
