// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
)

// callCounter counts the ADDs and DELs of the node, and what rocectl heal has healed or seen,
// since the agent started. It reads them at each scrape.
type callCounter struct {
	file calls.File
	log  *slog.Logger

	mu     sync.Mutex
	last   calls.Mark // of the last one that is counted
	total  *prometheus.CounterVec
	took   *prometheus.HistogramVec
	heals  *prometheus.CounterVec
	alarms *prometheus.CounterVec
}

func newCallCounter(file calls.File, log *slog.Logger) *callCounter {
	c := &callCounter{
		file: file, log: log,
		total:  counter("calls_total", "Calls of roce that ended, with the code of their error: 0 for success.", "verb", "code"),
		took:   histogram("call_seconds", "How long the calls of roce took that succeeded.", "verb"),
		heals:  counter("heals_total", "What rocectl heal has made again, by kind. Result failed, without kind: it could not make something again.", "what", "result"),
		alarms: counter("alarms_total", "Alarms of rocectl heal: foreign-gid if a pod uses the GID of another pod, lost if there were too many uses to look at, or nothing is watched any more.", "what"),
	}
	// Alerts and the dashboard see what grows from 0.
	for _, e := range cnierr.Table() {
		c.total.WithLabelValues("ADD", strconv.Itoa(int(e.Code)))
	}
	c.heals.WithLabelValues("", "failed")
	for _, what := range []string{calls.ForeignGID, calls.LostUses} {
		c.alarms.WithLabelValues(what)
	}
	_ = c.read() // those before the start
	return c
}

// histogram returns a histogram of seconds, from 5 ms to the longest time of a call.
func histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "roce_cni_" + name, Help: help, Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, labels)
}

// read returns the calls since it was called before.
func (c *callCounter) read() []calls.Call {
	found, last, err := c.file.After(c.last)
	if err != nil {
		c.log.Warn("the calls of the node cannot be counted", "error", err)
	}
	c.last = last
	return found
}

// collect counts what has ended, and sends all sums.
func (c *callCounter) collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.read() {
		switch call.Verb {
		case calls.Heal:
			for _, s := range call.Steps {
				c.heals.WithLabelValues(s.Name, "made").Inc()
			}
			if call.Code != 0 {
				c.heals.WithLabelValues("", "failed").Inc()
			}
			continue
		case calls.Alarm:
			for _, s := range call.Steps {
				c.alarms.WithLabelValues(s.Name).Inc()
			}
			continue
		}
		c.total.WithLabelValues(call.Verb, strconv.Itoa(int(call.Code))).Inc()
		if call.Code == 0 {
			c.took.WithLabelValues(call.Verb).Observe(call.Took.Seconds())
		}
	}
	c.total.Collect(out)
	c.took.Collect(out)
	c.heals.Collect(out)
	c.alarms.Collect(out)
}

// healsEvery is how often the agent looks for what was healed. healsAtOnce is how many Events
// it writes then, at most.
const (
	healsEvery  = 5 * time.Second
	healsAtOnce = 20
)

// tellHeals tells what was healed since the agent started, until the context ends, alarms first.
// An Event that cannot be written is lost: it is in the calls of the node all the same.
func (a *Agent) tellHeals(ctx context.Context) {
	file := calls.File{Dir: a.Ranges.Dir}
	_, mark, _ := file.After("") // those before the start
	for a.Wait(ctx, healsEvery) == nil {
		ended, last, err := file.After(mark)
		if mark = last; err != nil {
			continue // the metrics say so
		}
		ended = slices.DeleteFunc(ended, func(c calls.Call) bool { return !c.ByHealer() })
		slices.SortStableFunc(ended, func(a, b calls.Call) int { return cmp.Compare(a.Verb, b.Verb) }) // ALARM, HEAL
		if more := len(ended) - healsAtOnce; more > 0 {
			a.Log.Warn("too much was healed for an Event of each: rocectl trace on the node lists all", "without", more)
			ended = ended[:healsAtOnce]
		}
		for _, c := range ended {
			if err := a.Tell(ctx, a.Node.Name, c); err != nil {
				a.Log.Warn("an Event of a pod cannot be written", append(About(err), "pod", c.Pod)...)
			}
		}
	}
}
