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
	s.pools = []kube.RailPool{compute, wrong, {ObjectMeta: metav1.ObjectMeta{Name: "young"}}, racks}
	for i, node := range []string{"gpu-07", "old", "old"} {
		index := []int{1027, 1033, 1040}[i]
		b := kube.RailBlock{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("compute-%d", index)}}
		b.Spec = block.Spec{Pool: "compute", Index: index, Size: 16, Owner: block.Owner{NodeName: node}}
		b.Status.Size, b.Status.Used, b.Status.Free = 16, 1+i, 15-i
		s.blocks = append(s.blocks, b)
	}
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
`},
		"blocks": {printBlocks, `
BLOCK         NODE    FIRST RAIL               SIZE  USED  FREE  CONFIRMED
compute-1027  gpu-07  10.1.64.48-10.1.64.63    16    1     15    never
compute-1033  old     10.1.64.144-10.1.64.159  16    2     14    never
compute-1040  old     10.1.65.0-10.1.65.15     16    3     13    never
`},
		"nodes": {printNodes, `
NODE    STATE      POOL     BLOCKS  SIZE  USED  FREE
gpu-07  Ready      compute  1       16    1     15
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

// TestTheListsHaveADocument: its words are those of the objects.
func TestTheListsHaveADocument(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		print func(cli.Format, io.Writer, state) error
		want  string
	}{
		"pools":  {printPools, `{"blocks":1024,"claimed":2,"conditions":[{"lastTransitionTime":null,"message":"","reason":"","status":"True","type":"Valid"}],"free":16381,"pool":"compute","quarantined":0,"reserved":0,"size":0,"state":"ok","used":3}`},
		"blocks": {printBlocks, `{"block":"compute-1027","firstRail":"10.1.64.48-10.1.64.63","free":15,"node":"gpu-07","pool":"compute","quarantined":0,"size":16,"used":1}`},
		"nodes":  {printNodes, `{"blocks":1,"free":15,"node":"gpu-07","pool":"compute","size":16,"state":"Ready","used":1}`},
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
