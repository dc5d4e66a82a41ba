// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"maps"
	"slices"
	"strconv"
	"time"

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
	m.registry.MustRegister(m.claims, m.conflicts, m.lists, m.asserts, m.lost, m.stickyAnswers, m.stickyLost, a.Requests)
	calls := newCallCounter(calls.File{Dir: a.Ranges.Dir}, a.Log)
	for _, collect := range []prometheus.CollectorFunc{a.collectPools, a.collectRails, a.collectPods, calls.collect} {
		m.registry.MustRegister(collect)
	}
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

// gauge sends the value of a gauge at a scrape.
func gauge(out chan<- prometheus.Metric, d *prometheus.Desc, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// number is 1 for true.
func number(is bool) float64 { return map[bool]float64{true: 1}[is] }

// collectPools sends the gauges of the pools.
func (a *Agent) collectPools(out chan<- prometheus.Metric) {
	a.mu.Lock()
	view, controllers, readable := maps.Clone(a.view), maps.Clone(a.controllers), a.unreadable == ""
	seen := view != nil && a.unseen == ""
	a.mu.Unlock()
	gauge(out, desc("cluster_seen", "Whether the RailPools and the Node object were read since the agent started. Before that, the agent does not know which pools the node needs."), number(seen))
	ready := desc("pool_ready", "Whether pods get addresses of a pool that selects the node: there is a file of this boot, and the leases can be read.", "pool")
	for name, j := range view {
		if j.selected && !j.deleted {
			_, err := a.Ranges.Read(name)
			gauge(out, ready, number(err == nil && readable), name)
		}
	}
	asserted := desc("block_assert_age_seconds", "Time since the API server last confirmed the node's blocks of a pool.", "pool")
	orphans := desc("pool_orphan_slots", "Orphans: host indexes that pods of this node use and that are in none of its blocks.", "pool")
	size := desc("block_size", "Host indexes of a block of this node that pods may have.", "pool", "block")
	used := desc("block_used", "Host indexes of a block that are leased.", "pool", "block")
	quarantined := desc("block_quarantined", "Host indexes of a block in quarantine.", "pool", "block")
	free := desc("block_free", "Host indexes of a block that are neither leased nor in quarantine.", "pool", "block")
	for name, k := range controllers {
		k.mu.Lock()
		space, owned, joined, confirmed, lost := k.space, slices.Clone(k.owned), k.joined, k.asserted, k.orphans
		k.mu.Unlock()
		if !joined {
			continue
		}
		gauge(out, asserted, (k.Now() - confirmed).Seconds(), name)
		gauge(out, orphans, float64(lost), name)
		for _, b := range owned {
			if u, known := a.meter.usage(name, *space, []block.Block{b}); known {
				gauge(out, size, float64(u.Size), name, b.Name)
				gauge(out, used, float64(u.Used), name, b.Name)
				gauge(out, quarantined, float64(u.Quarantined), name, b.Name)
				gauge(out, free, float64(u.Free), name, b.Name)
			}
		}
	}
}

// Rail is a rail of the node as its metrics have it.
type Rail struct {
	Number         int
	Netdev, Device string
	Up             bool // its RDMA port is active
	GIDs, GIDTable int  // entries in use, and all
	Ready          bool // nothing is wrong with it for new pods
	Sent, Received uint64
	Unit           string // of Sent and Received, "bytes" or "packets"; "": not known
}

// collectRails sends the gauges of the rails.
func (a *Agent) collectRails(out chan<- prometheus.Metric) {
	up := desc("rail_up", "Whether the RDMA port of a rail is active. 1 while a pod has the device.", "rail", "netdev", "device")
	ready := desc("rail_ready", "Whether new pods can have a rail: 0 while its RDMA port is not active, its GID table is full or its switch is not heard any more.", "rail", "netdev", "device")
	used := desc("rail_gids_used", "Entries of the GID table of a rail that are in use. NVIDIA's own driver hides those of pods.", "rail", "netdev", "device")
	size := desc("rail_gids_size", "Entries that the GID table of a rail has.", "rail", "netdev", "device")
	traffic := desc("rail_traffic_total", "RDMA traffic of the RDMA port of a rail since its device was made: bytes if the driver counts them, else packets.", "rail", "netdev", "device", "direction", "unit")
	for _, r := range a.Rails() {
		labels := []string{strconv.Itoa(r.Number), r.Netdev, r.Device}
		gauge(out, up, number(r.Up), labels...)
		gauge(out, ready, number(r.Ready), labels...)
		gauge(out, used, float64(r.GIDs), labels...)
		gauge(out, size, float64(r.GIDTable), labels...)
		if r.Unit != "" {
			out <- prometheus.MustNewConstMetric(traffic, prometheus.CounterValue, float64(r.Sent), append(labels, "sent", r.Unit)...)
			out <- prometheus.MustNewConstMetric(traffic, prometheus.CounterValue, float64(r.Received), append(labels, "received", r.Unit)...)
		}
	}
}

// collectPods sends what each pod has on the RDMA devices, from the file of rocectl heal: nothing
// without a file, or of an old one.
func (a *Agent) collectPods(out chan<- prometheus.Metric) {
	c, err := counts.File{Dir: a.Ranges.Dir}.Read()
	if err != nil || time.Now().After(c.Until) { // the healer logs why it does not write
		return
	}
	queuePairs := desc("rdma_queue_pairs", "Queue pairs of a user of an RDMA device, by type. Kind is pod, gone for programs of a pod that has no attachment any more, host, kernel, unknown for those in another namespace without a record, or others for the pods beyond the limit.", "kind", "namespace", "pod", "device", "type")
	contexts := desc("rdma_contexts", "How often the programs of a user have opened an RDMA device.", "kind", "namespace", "pod", "device")
	regions := desc("rdma_regions", "Memory regions of a user on an RDMA device.", "kind", "namespace", "pod", "device")
	bytes := desc("rdma_region_bytes", "Bytes of the memory regions of a user on an RDMA device.", "kind", "namespace", "pod", "device")
	connections := desc("rdma_connections", "Connections of rdma_cm of a user on an RDMA device.", "kind", "namespace", "pod", "device")
	held := desc("rdma_held_gids", "GID indexes that were those of a user and have no address. They read as free, but programs with queue pairs may hold them until they end.", "kind", "namespace", "pod", "device")
	for _, r := range c.Rows {
		labels := []string{r.Kind, r.Namespace, r.Pod, r.Device}
		for name, n := range r.QueuePairs {
			gauge(out, queuePairs, float64(n), append(labels, name)...)
		}
		gauge(out, contexts, float64(r.Contexts), labels...)
		gauge(out, regions, float64(r.Regions), labels...)
		gauge(out, bytes, float64(r.RegionBytes), labels...)
		gauge(out, connections, float64(r.Connections), labels...)
		gauge(out, held, float64(r.HeldGIDs), labels...)
	}
}
