// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"cmp"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
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
			must(t, file.Append(c))
		}
		add(calls.Call{Verb: "ADD", Took: time.Second})
		n.run()
		n.counts(`roce_cni_alarms_total{what="foreign-gid"} 0`, `roce_cni_alarms_total{what="lost"} 0`, `roce_cni_heals_total{result="failed",what=""} 0`,
			`roce_cni_calls_total{code="106",verb="ADD"} 0`)
		add(calls.Call{Verb: "ADD", Took: 20 * time.Millisecond})
		add(calls.Call{Verb: "ADD", Code: 106, Took: 300 * time.Millisecond})
		n.counts(`roce_cni_calls_total{code="0",verb="ADD"} 1`, `roce_cni_calls_total{code="106",verb="ADD"} 1`,
			`roce_cni_call_seconds_bucket{verb="ADD",le="0.01"} 0`, `roce_cni_call_seconds_bucket{verb="ADD",le="0.025"} 1`, `roce_cni_call_seconds_count{verb="ADD"} 1`)
		add(calls.Call{Verb: calls.Heal, Steps: []calls.Step{{Name: "route"}, {Name: "route"}, {Name: "rule"}}})
		add(calls.Call{Verb: calls.Heal, Code: 102})
		n.counts(`roce_cni_heals_total{result="made",what="route"} 2`, `roce_cni_heals_total{result="made",what="rule"} 1`, `roce_cni_heals_total{result="failed",what=""} 1`)
		add(calls.Call{Verb: calls.Alarm, Steps: []calls.Step{{Name: calls.ForeignGID}}, Error: "process 5 uses index 3"})
		n.counts(`roce_cni_alarms_total{what="foreign-gid"} 1`)
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

// TestWhatWasHealedIsTold has a repair before the agent starts, which was told, and one of a pod
// and one of a NIC after it. More than the healer does are not all told: alarms are, and the log
// has how many are not.
func TestWhatWasHealedIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		add := func(c calls.Call) {
			t.Helper()
			c.Verb = cmp.Or(c.Verb, calls.Heal)
			must(t, (calls.File{Dir: n.files().Dir}).Append(c))
		}
		route := []calls.Step{{Name: "route"}, {Name: "route"}, {Name: "rule"}}
		add(calls.Call{Pod: "ml/early", Steps: route})
		n.run()
		want := []calls.Call{
			{Verb: calls.Heal, Attachment: conf.Attachment{IfName: "net1"}, Pod: "ml/job", UID: "u", Steps: route},
			{Verb: calls.Heal, Code: 102, Error: "r0 is gone"},
		}
		add(want[0])
		add(want[1])
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if diff := gocmp.Diff(want, n.healed); diff != "" {
			t.Errorf("told (-want +got)\n%s", diff)
		}
		for range 100 {
			add(calls.Call{Pod: "ml/job", Steps: route})
		}
		add(calls.Call{Verb: calls.Alarm, Attachment: conf.Attachment{IfName: "net1"}, Pod: "ml/job", UID: "u", Error: "process 5 uses index 3"})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		got := n.healed[len(want):]
		if len(got) != 20 || got[0].Verb != calls.Alarm {
			t.Errorf("%d of 101 are told, want 20, and first the alarm: %+v", len(got), got)
		}
		n.logs("without=81")
	})
}
