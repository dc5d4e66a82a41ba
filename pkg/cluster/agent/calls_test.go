// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
)

// TestCallsOfTheNodeAreCounted has calls before the agent starts, between two scrapes, and
// more than the file keeps.
func TestCallsOfTheNodeAreCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		file := calls.File{Dir: n.files().Dir}
		add := func(c calls.Call) {
			t.Helper()
			c.At = time.Now().UTC()
			time.Sleep(time.Millisecond)
			if err := file.Append(c); err != nil {
				t.Fatal(err)
			}
		}
		add(calls.Call{Verb: "ADD", Took: time.Second})
		n.run()
		n.counts()
		add(calls.Call{Verb: "ADD", Took: 20 * time.Millisecond})
		add(calls.Call{Verb: "ADD", Code: 106, Took: 300 * time.Millisecond})
		n.counts(`roce_cni_calls_total{code="0",verb="ADD"} 1`, `roce_cni_calls_total{code="106",verb="ADD"} 1`,
			`roce_cni_call_seconds_bucket{verb="ADD",le="0.01"} 0`, `roce_cni_call_seconds_bucket{verb="ADD",le="0.025"} 1`, `roce_cni_call_seconds_count{verb="ADD"} 1`)
		add(calls.Call{Verb: "DEL"})
		n.counts(`roce_cni_calls_total{code="0",verb="ADD"} 1`, `roce_cni_calls_total{code="0",verb="DEL"} 1`)
		for range 12_000 { // two parts of the file
			add(calls.Call{Verb: "DEL"})
		}
		n.counts(`roce_cni_calls_total{code="0",verb="ADD"} 1`)
		add(calls.Call{Verb: "ADD"})
		n.counts(`roce_cni_calls_total{code="0",verb="ADD"} 2`)
	})
}
