// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/cluster/reconcile"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// aState has a valid pool, a faulty one, and one without nodes. One node with a block exists. Another
// one, which has two, does not.
func aState() state {
	var s state
	compute := kube.RailPool{ObjectMeta: metav1.ObjectMeta{Name: "compute"}}
	compute.Spec.Template = &block.Template{Count: 2, Subnets: []block.Subnet{{Subnet: "10.{rail+1}.0.0/16", Ranges: []string{"10.{rail+1}.64.0/18"}}}}
	compute.Status = kube.PoolStatus{Blocks: 1024, Claimed: 2, Usage: block.Usage{Used: 3, Free: 16381}, Conditions: []metav1.Condition{{Type: kube.ValidCondition, Status: metav1.ConditionTrue}}}
	wrong := kube.RailPool{ObjectMeta: metav1.ObjectMeta{Name: "wrong"}}
	wrong.Status.Conditions = []metav1.Condition{{Type: kube.ValidCondition, Status: metav1.ConditionFalse, Message: "subnet\x1b[2J overlaps"}}
	racks := kube.RailPool{ObjectMeta: metav1.ObjectMeta{Name: "racks"}, Spec: block.PoolSpec{RackLabel: "example.org/rack"}}
	racks.Status.Conditions = compute.Status.Conditions
	full := kube.RailPool{ObjectMeta: metav1.ObjectMeta{Name: "full"}, Status: kube.PoolStatus{Blocks: 1, Claimed: 1, Usage: block.Usage{Size: 16, Used: 14, Quarantined: 2}, Reserved: 3}}
	full.Status.Conditions = []metav1.Condition{compute.Status.Conditions[0], {Type: kube.AttentionCondition, Status: metav1.ConditionFalse, Message: "no block and no lease looks wrong"}}
	odd := kube.RailPool{ObjectMeta: metav1.ObjectMeta{Name: "odd"}, Status: full.Status}
	odd.Status.Conditions = append(odd.Status.Conditions[:1:1], metav1.Condition{Type: kube.AttentionCondition, Status: metav1.ConditionTrue, Message: "a clone"})
	s.pools = []kube.RailPool{compute, wrong, {ObjectMeta: metav1.ObjectMeta{Name: "young"}}, racks, full, odd}
	for i, node := range []string{"gpu-07", "old", "old"} {
		index := []int{1027, 1033, 1040}[i]
		b := kube.RailBlock{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("compute-%d", index)}}
		b.Spec = block.Spec{Pool: "compute", Index: index, Size: 16, Owner: block.Owner{NodeName: node}}
		b.Status.Size, b.Status.Used, b.Status.Free = 16, 1+i, 15-i
		s.blocks = append(s.blocks, b)
	}
	resized := kube.RailBlock{ObjectMeta: metav1.ObjectMeta{Name: "compute-8"}} // its pool had blocks of another size
	resized.Spec = block.Spec{Pool: "compute", Index: 8, Size: 8, Owner: block.Owner{NodeName: "gpu-07"}}
	s.blocks = append(s.blocks, resized)
	lost := kube.RailBlock{ObjectMeta: metav1.ObjectMeta{Name: "gone.7-1"}} // its pool is gone
	lost.Spec = block.Spec{Pool: "gone", Rack: "7", Index: 1, Size: 16, Owner: block.Owner{NodeName: "gpu-07"}}
	s.blocks = append(s.blocks, lost)
	s.nodes = []kube.Node{{Name: "gpu-07", Ready: true}, {Name: "gpu-08"}}
	return s
}

func TestWhatAnOperatorSeesOfTheCluster(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		print func(cli.Format, io.Writer, state) error
		want  string
	}{
		"pools": {printPools, `
POOL     BLOCKS  CLAIMED  USED  FREE   STATE
compute  1024    2        3     16381  ok
wrong    0       0        0     0      subnet?[2J overlaps
young    0       0        0     0      not seen by the reaper yet: kubectl -n roce-cni get pods
racks    0       0        0     0      no node that it selects has a rack in its label example.org/rack
full     1       1        14    0      full
odd      1       1        14    0      look at it: a clone
`},
		"blocks": {printBlocks, `
BLOCK         NODE    FIRST RAIL               SIZE  USED  FREE  CONFIRMED
compute-1027  gpu-07  10.1.64.48-10.1.64.63    16    1     15    never
compute-1033  old     10.1.64.144-10.1.64.159  16    2     14    never
compute-1040  old     10.1.65.0-10.1.65.15     16    3     13    never
compute-8     gpu-07  ?                        0     0     0     never
gone.7-1      gpu-07  ?                        0     0     0     never
`},
		"nodes": {printNodes, `
NODE    STATE      POOL     BLOCKS  SIZE  USED  FREE
gpu-07  Ready      compute  2       16    1     15
gpu-07  Ready      gone     1       0     0     0
gpu-08  not Ready  -        0       0     0     0
old     gone       compute  2       32    5     27
`},
	} {
		var got bytes.Buffer
		if err := tt.print(cli.Format{}, &got, aState()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), got.String()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// TestTheOverviewIsInTheOrderOfNames: a cached list of the API server has no order.
func TestTheOverviewIsInTheOrderOfNames(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	var blocks []reconcile.Orphan
	var leases []reconcile.Idle
	for _, name := range []string{"b", "c", "a"} {
		blocks = append(blocks, reconcile.Orphan{Block: reconcile.Block{Block: block.Block{Name: name}}})
		leases = append(leases, reconcile.Idle{Lease: sticky.Lease{Name: name}})
	}
	if err := errors.Join(writeOrphans(&got, blocks, time.Now()), writeIdle(&got, leases, time.Now())); err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(got.String()) {
		if name, _, row := strings.Cut(line, " "); row && len(name) == 1 {
			names = append(names, name)
		}
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "a", "b", "c"}, names); diff != "" {
		t.Errorf("(-want +got)\n%s\n%s", diff, got.String())
	}
}

// TestWhatABlockOrALeaseWaitsForIsSaid, by the state of its node, and then of its pool.
func TestWhatABlockOrALeaseWaitsForIsSaid(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	of := func(name string, keep bool, created, written time.Duration) sticky.Lease {
		l := sticky.Lease{Name: name, Created: now.Add(-created), Spec: sticky.Spec{Namespace: "ml", Pod: "db", Keep: keep, Holder: block.Owner{NodeName: "gpu-07"}}}
		if written > 0 {
			l.Spec.Written = now.Add(-written)
		}
		return l
	}
	idle := []reconcile.Idle{
		{Lease: of("a", false, time.Hour, time.Minute), Owner: block.Replaced, TTL: time.Hour},
		{Lease: of("b", false, time.Hour, time.Minute), Owner: block.Gone, Bound: true, TTL: time.Hour},
		{Lease: of("c", false, time.Hour, time.Minute), Owner: block.Gone, TTL: time.Hour},
		{Lease: of("d", false, time.Hour, time.Minute), Owner: block.Here, Absent: true, TTL: time.Hour},
		{Lease: of("e", true, time.Hour, 0), TTL: time.Hour, Useless: "no pool"},
		{Lease: of("f", true, time.Hour, 0)},
		{Lease: of("g", false, time.Hour, 0)},
		{Lease: of("h", false, 2*time.Hour, time.Hour), TTL: time.Hour},
		{Lease: of("i", false, 2*time.Hour, 1500*time.Millisecond), TTL: time.Hour},
		{Lease: of("j", false, time.Minute, 0), TTL: time.Hour},
	}
	orphans := []reconcile.Orphan{
		{Block: reconcile.Block{Block: block.Block{Name: "p-1", Spec: block.Spec{Owner: block.Owner{NodeName: "old"}}}, Asserted: now.Add(-time.Hour)}, Owner: block.Gone},
		{Block: reconcile.Block{Block: block.Block{Name: "p-2", Spec: block.Spec{Owner: block.Owner{NodeName: "busy"}}}}, Owner: block.Gone, Bound: true},
		{Block: reconcile.Block{Block: block.Block{Name: "p-3", Spec: block.Spec{Owner: block.Owner{NodeName: "new"}}}}, Owner: block.Replaced},
	}
	var holdings []reconcile.Holding
	for i := range mostHoldings + 2 {
		holdings = append(holdings, reconcile.Holding{Node: fmt.Sprintf("n%02d", i), Pool: "p", Blocks: 1, Used: 2, Size: 16, Leases: 3, Absent: 4})
	}
	var out bytes.Buffer
	if err := errors.Join(writeOrphans(&out, orphans, now), writeIdle(&out, idle, now), writeHoldings(&out, holdings),
		writeCrowds(&out, []reconcile.Crowd{{Kind: "RailBlock", Node: "foe", Count: 3000}}), writeOrphans(&out, nil, now), writeIdle(&out, nil, now), writeHoldings(&out, nil), writeHoldings(&out, holdings[:1])); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		if line = strings.Join(strings.Fields(line), " "); !strings.HasPrefix(line, "n0") || line[2] == '0' {
			got = append(got, line)
		}
	}
	want := []string{
		"BLOCK NODE ITS NODE IS WRITTEN FREED WHEN",
		"p-1 old gone 1h0m0s ago the node has been gone for an hour",
		"p-2 busy gone never no pod is bound to the node, for an hour: kubectl get pods -A --field-selector spec.nodeName=busy",
		"p-3 new replaced never the Node object has reported another machine for an hour",
		"",
		"LEASE POD NODE ITS NODE IS WRITTEN NEXT",
		"a ml/db gpu-07 replaced 1m0s ago another node may have it when the Node object has reported another machine for an hour",
		"b ml/db gpu-07 gone 1m0s ago another node may have it when no pod is bound to the node, for an hour",
		"c ml/db gpu-07 gone 1m0s ago another node may have it when the node has been gone for an hour",
		"d ml/db gpu-07 here 1m0s ago another node may have it when the pod has not been bound to the node for an hour",
		"e ml/db - - never it stays, but has no effect: no pool",
		"f ml/db - - never it stays: spec.keep",
		"g ml/db - - never it is deleted: its RailPool is gone, or not sticky",
		"h ml/db - - 1h0m0s ago it is deleted when its quarantine is over",
		"i ml/db - - 2s ago it is deleted in 59m59s",
		"j ml/db - - never it is deleted in 59m0s",
		"",
		"NODE POOL BLOCKS HOST INDEXES IN USE LEASES FOR PODS OF OTHER NODES",
		"n00 p 1 2 of 16 3 4",
	}
	for i := 10; i < mostHoldings; i++ {
		want = append(want, fmt.Sprintf("n%d p 1 2 of 16 3 4", i))
	}
	want = append(want, "and 2 more with fewer", "",
		"node foe has 3000 objects of kind RailBlock, more than its pods can need, and most are not shown: look what its agent does", "every block has a node",
		"", "NODE POOL BLOCKS HOST INDEXES IN USE LEASES FOR PODS OF OTHER NODES", "n00 p 1 2 of 16 3 4")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestTheListsHaveADocument: its words are those of the objects.
func TestTheListsHaveADocument(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		print func(cli.Format, io.Writer, state) error
		want  string
	}{
		"pools":  {printPools, `{"blocks":1024,"claimed":2,"conditions":[{"lastTransitionTime":null,"message":"","reason":"","status":"True","type":"Valid"}],"free":16381,"pool":"compute","quarantined":0,"reserved":0,"size":0,"state":"ok","used":3}`},
		"blocks": {printBlocks, `{"block":"compute-1027","firstRail":"10.1.64.48-10.1.64.63","free":15,"node":"gpu-07","pool":"compute","quarantined":0,"size":16,"used":1}`},
		"nodes":  {printNodes, `{"blocks":2,"free":15,"node":"gpu-07","pool":"compute","size":16,"state":"Ready","used":1}`},
	} {
		f := cli.Format{Name: "json"}
		var got bytes.Buffer
		if err := tt.print(f, &got, aState()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var rows []map[string]any
		if err := json.Unmarshal(got.Bytes(), &rows); err != nil || len(rows) == 0 {
			t.Errorf("%s: %v: %s", name, err, got.String())
			continue
		}
		if first, err := json.Marshal(rows[0]); err != nil || string(first) != tt.want {
			t.Errorf("%s: %s, %v", name, first, err)
		}
		got.Reset()
		if err := tt.print(f, &got, state{}); err != nil || got.String() != "[]\n" {
			t.Errorf("%s of an empty cluster: %q, %v", name, got.String(), err)
		}
	}
}
