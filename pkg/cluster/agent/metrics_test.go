// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"flag"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/counts"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

var update = flag.Bool("update", false, "rewrite the expected outputs in testdata")

// TestMetricsOfANodeAtWork has all that a scrape of one node can have, each number another one.
func TestMetricsOfANodeAtWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		kept := `{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/22"}]}, "sticky": {"ttl": "1h", "slots": "512-527"}}`
		n := newCluster(poolOf(t, "compute", 1, kept), poolOf(t, "no-nodes", 2, `{"rails": [{"subnets": [{"subnet": "10.9.0.0/33"}]}]}`)).node(t, "n1")
		n.hint = netip.MustParseAddr("10.1.0.37")
		n.run()
		n.mustLease("compute", 1, 5)
		n.ends(1, 2)
		answer := n.Ask(t.Context(), "compute", nodefile.Key{Namespace: "ml", Pod: "db-0", Interface: "net1"})
		if !answer.Granted() {
			t.Errorf("the answer is %+v", answer)
		}
		row := counts.Row{
			Device: "mlx5_0", User: counts.User{Kind: "pod", Namespace: "ml", Pod: "p1"},
			QueuePairs: map[string]int{"RC": 2, "UD": 1}, Contexts: 3, Regions: 4, RegionBytes: 5, Connections: 6, HeldGIDs: 7,
		}
		must(t, counts.File{Dir: n.dir}.Write(counts.Counts{Until: time.Now().Add(time.Minute), Rows: []counts.Row{row}}))
		for _, c := range []calls.Call{
			{Verb: "ADD", Took: 300 * time.Millisecond},
			{Verb: "ADD", Took: 200 * time.Millisecond, Code: 106},
			{Verb: calls.Heal, Steps: []calls.Step{{Name: "route"}}},
			{Verb: calls.Heal, Code: 102},
			{Verb: calls.Alarm, Steps: []calls.Step{{Name: calls.LostUses}}},
		} {
			must(t, (calls.File{Dir: n.dir}).Append(c))
		}
		pass(10 * time.Second)
		_, got := n.get("/metrics")
		const file = "testdata/metrics.txt"
		if *update {
			must(t, os.WriteFile(file, []byte(got), 0o644))
		}
		want, err := os.ReadFile(file)
		must(t, err)
		if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("/metrics (-want +got); make golden rewrites %s\n%s", file, diff)
		}
	})
}
