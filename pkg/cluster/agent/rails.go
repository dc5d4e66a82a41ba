// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Rail is a rail of the node as its metrics have it.
type Rail struct {
	Number         int
	Netdev, Device string
	Up             bool // its RDMA port is active
	GIDs, GIDTable int  // entries in use, and all
	Ready          bool // nothing is wrong with it for new pods
}

// railGauges are computed at each scrape.
type railGauges struct {
	rails                 func() []Rail
	up, ready, used, size *prometheus.Desc
}

func newRailGauges(rails func() []Rail) railGauges {
	return railGauges{
		rails: rails,
		up:    desc("rail_up", "Whether the RDMA port of a rail is active. 1 while a pod has the device.", "rail", "netdev", "device"),
		ready: desc("rail_ready", "Whether new pods can have a rail: 0 while its RDMA port is not active, its GID table is full or its switch is not heard any more.", "rail", "netdev", "device"),
		used:  desc("rail_gids_used", "Entries of the GID table of a rail that are in use. NVIDIA's own driver hides those of pods.", "rail", "netdev", "device"),
		size:  desc("rail_gids_size", "Entries that the GID table of a rail has.", "rail", "netdev", "device"),
	}
}

// Describe is prometheus.Collector's.
func (g railGauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.up, g.ready, g.used, g.size} {
		out <- d
	}
}

// Collect is prometheus.Collector's.
func (g railGauges) Collect(out chan<- prometheus.Metric) {
	for _, r := range g.rails() {
		is := map[bool]float64{true: 1}
		for d, value := range map[*prometheus.Desc]float64{g.up: is[r.Up], g.ready: is[r.Ready], g.used: float64(r.GIDs), g.size: float64(r.GIDTable)} {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, strconv.Itoa(r.Number), r.Netdev, r.Device)
		}
	}
}
