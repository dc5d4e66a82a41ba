// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/roce-cni/roce-cni/pkg/cluster/counts"
)

// podGauges are what each pod has on the RDMA devices. They are read at each scrape, from the
// file of rocectl heal. There are none without a file, and none of an old one.
type podGauges struct {
	file                                              counts.File
	date                                              func() time.Time
	queuePairs, contexts, regions, bytes, connections *prometheus.Desc
}

func newPodGauges(file counts.File, date func() time.Time) podGauges {
	return podGauges{
		file: file, date: date,
		queuePairs:  desc("rdma_queue_pairs", "Queue pairs of a user of an RDMA device, by type. Kind is pod, host, kernel, unknown for programs in a namespace without a record, or others for the pods beyond the limit.", "kind", "namespace", "pod", "device", "type"),
		contexts:    desc("rdma_contexts", "How often the programs of a user have opened an RDMA device.", "kind", "namespace", "pod", "device"),
		regions:     desc("rdma_regions", "Memory regions of a user on an RDMA device.", "kind", "namespace", "pod", "device"),
		bytes:       desc("rdma_region_bytes", "Bytes of the memory regions of a user on an RDMA device.", "kind", "namespace", "pod", "device"),
		connections: desc("rdma_connections", "Connections of rdma_cm of a user on an RDMA device.", "kind", "namespace", "pod", "device"),
	}
}

// Describe is prometheus.Collector's.
func (g podGauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.queuePairs, g.contexts, g.regions, g.bytes, g.connections} {
		out <- d
	}
}

// Collect is prometheus.Collector's.
func (g podGauges) Collect(out chan<- prometheus.Metric) {
	c, err := g.file.Read()
	if err != nil || g.date().After(c.Until) { // the healer logs why it does not write
		return
	}
	for _, r := range c.Rows {
		set := func(d *prometheus.Desc, value float64, more ...string) {
			labels := append([]string{r.Kind, r.Namespace, r.Pod, r.Device}, more...)
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
		}
		for name, n := range r.QueuePairs {
			set(g.queuePairs, float64(n), name)
		}
		set(g.contexts, float64(r.Contexts))
		set(g.regions, float64(r.Regions))
		set(g.bytes, float64(r.RegionBytes))
		set(g.connections, float64(r.Connections))
	}
}
