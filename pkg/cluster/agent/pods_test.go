// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/counts"
)

// TestWhatPodsHaveIsShownWhileItIsNew has no file, then one, which grows old.
func TestWhatPodsHaveIsShownWhileItIsNew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		shown := func() bool {
			_, body := n.get("/metrics")
			return strings.Contains(body, "roce_cni_rdma_")
		}
		if shown() {
			t.Error("without a file there are counts")
		}
		row := counts.Row{
			Device: "mlx5_0", User: counts.User{Kind: "pod", Namespace: "ml", Pod: "p1"},
			QueuePairs: map[string]int{"RC": 2, "UD": 1}, Contexts: 3, Regions: 4, RegionBytes: 5, Connections: 6,
		}
		others := counts.Row{Device: "mlx5_0", User: counts.User{Kind: counts.Others}, QueuePairs: map[string]int{"RC": 7}}
		file := counts.File{Dir: n.files().Dir}
		must(t, file.Write(counts.Counts{Until: time.Now().Add(time.Minute), Rows: []counts.Row{row, others}}))
		const p1 = `{device="mlx5_0",kind="pod",namespace="ml",pod="p1"`
		n.counts(`roce_cni_rdma_queue_pairs`+p1+`,type="RC"} 2`, `roce_cni_rdma_queue_pairs`+p1+`,type="UD"} 1`, `roce_cni_rdma_contexts`+p1+`} 3`,
			`roce_cni_rdma_regions`+p1+`} 4`, `roce_cni_rdma_region_bytes`+p1+`} 5`, `roce_cni_rdma_connections`+p1+`} 6`,
			`roce_cni_rdma_queue_pairs{device="mlx5_0",kind="others",namespace="",pod="",type="RC"} 7`)
		time.Sleep(2 * time.Minute)
		if shown() {
			t.Error("old counts are shown")
		}
	})
}
