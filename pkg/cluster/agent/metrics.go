// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/counts"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
)

// metrics counts what the agent does. Gauges of the current state are computed at
// each scrape.
type metrics struct {
	registry                                *prometheus.Registry
	claims, conflicts, lists, asserts, lost *prometheus.CounterVec // by pool
	stickyLost                              *prometheus.CounterVec // by pool
	stickyAnswers                           *prometheus.CounterVec // by pool and answer
}

func newMetrics(a *Agent) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	m.claims = counter("block_claims_total", "Blocks that were claimed.", "pool")
	m.conflicts = counter("block_claim_conflicts_total", "Blocks that already had another owner when this node tried to claim them.", "pool")
	m.lists = counter("block_claim_lists_total", "Lists of blocks that claims needed.", "pool")
	m.asserts = counter("block_asserts_total", "Confirmations of blocks.", "pool")
	m.lost = counter("blocks_lost_total", "Blocks of this node that another node has claimed.", "pool")
	m.stickyAnswers = counter("sticky_answers_total", "Answers to requests for sticky addresses: granted, or none.", "pool", "answer")
	m.stickyLost = counter("sticky_lost_total", "Sticky host indexes of pods of this node that another node has now.", "pool")
	m.registry.MustRegister(m.claims, m.conflicts, m.lists, m.asserts, m.lost, m.stickyAnswers, m.stickyLost, a.Requests, newGauges(a),
		newCallCounter(calls.File{Dir: a.Ranges.Dir}, a.Log), newRailGauges(a.Rails), newPodGauges(counts.File{Dir: a.Ranges.Dir}, a.Date))
	return m
}

// counter returns a counter, which is not registered yet.
func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "roce_cni_" + name, Help: help}, labels)
}

// desc returns the description of a gauge.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("roce_cni_"+name, help, labels, nil)
}

// begins starts the counters of alerts at zero. An alert does not see a counter grow
// if its first value is 1.
func begins(c *prometheus.CounterVec, pool string) { c.WithLabelValues(pool).Add(0) }

func (m *metrics) claimed(pool string, c block.Claim) {
	m.claims.WithLabelValues(pool).Inc()
	m.conflicts.WithLabelValues(pool).Add(float64(c.Conflicts))
	m.lists.WithLabelValues(pool).Add(float64(c.Lists))
}

// gauges are computed at each scrape.
type gauges struct {
	agent                                                        *Agent
	size, used, quarantined, free, file, asserted, orphans, seen *prometheus.Desc
}

func newGauges(a *Agent) *gauges {
	return &gauges{
		agent:       a,
		size:        desc("block_size", "Host indexes of a block of this node that pods may have.", "pool", "block"),
		used:        desc("block_used", "Host indexes of a block that are leased.", "pool", "block"),
		quarantined: desc("block_quarantined", "Host indexes of a block in quarantine.", "pool", "block"),
		free:        desc("block_free", "Host indexes of a block that are neither leased nor in quarantine.", "pool", "block"),
		file:        desc("pool_ready", "Whether pods get addresses of a pool that selects the node: there is a file of this boot, and the leases can be read.", "pool"),
		asserted:    desc("block_assert_age_seconds", "Time since the API server last confirmed the node's blocks of a pool.", "pool"),
		seen:        desc("cluster_seen", "Whether the RailPools and the Node object were read since the agent started. Before that, the agent does not know which pools the node needs."),
		orphans:     desc("pool_orphan_slots", "Orphans: host indexes that pods of this node use and that are in none of its blocks.", "pool"),
	}
}

// Describe is prometheus.Collector's.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.size, g.used, g.quarantined, g.free, g.file, g.asserted, g.orphans, g.seen} {
		out <- d
	}
}

// Collect is prometheus.Collector's.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	g.agent.mu.Lock()
	view, controllers, readable := maps.Clone(g.agent.view), maps.Clone(g.agent.controllers), g.agent.unreadable == ""
	seen := view != nil && g.agent.unseen == ""
	g.agent.mu.Unlock()
	set := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	set(g.seen, map[bool]float64{true: 1}[seen])
	for name, j := range view {
		if !j.selected || j.deleted {
			continue
		}
		ready := 0.0
		if _, err := g.agent.Ranges.Read(name); err == nil && readable {
			ready = 1
		}
		set(g.file, ready, name)
	}
	for name, k := range controllers {
		k.mu.Lock()
		space, owned, joined, asserted, orphans := k.space, slices.Clone(k.owned), k.joined, k.asserted, k.orphans
		k.mu.Unlock()
		if !joined {
			continue
		}
		set(g.asserted, (k.Now() - asserted).Seconds(), name)
		set(g.orphans, float64(orphans), name)
		for _, b := range owned {
			u, known := g.agent.meter.usage(name, *space, []block.Block{b})
			if !known {
				continue
			}
			for d, n := range map[*prometheus.Desc]int{g.size: u.Size, g.used: u.Used, g.quarantined: u.Quarantined, g.free: u.Free} {
				set(d, float64(n), name, b.Name)
			}
		}
	}
}
