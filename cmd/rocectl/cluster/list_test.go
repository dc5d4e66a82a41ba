// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// aState has a valid pool and a faulty one. One node with blocks exists, another does not.
func aState() state {
	var s state
	compute := kube.RailPool{ObjectMeta: metav1.ObjectMeta{Name: "compute"}}
	compute.Spec.Template = &block.Template{Count: 2, Subnets: []block.Subnet{{Subnet: "10.{rail+1}.0.0/16", Ranges: []string{"10.{rail+1}.64.0/18"}}}}
	compute.Status = kube.PoolStatus{Blocks: 1024, Claimed: 2, Used: 3, Free: 16381, Conditions: []metav1.Condition{{Type: kube.ValidCondition, Status: metav1.ConditionTrue}}}
	wrong := kube.RailPool{ObjectMeta: metav1.ObjectMeta{Name: "wrong"}}
	wrong.Status.Conditions = []metav1.Condition{{Type: kube.ValidCondition, Status: metav1.ConditionFalse, Message: "subnet\x1b[2J overlaps"}}
	s.pools = []kube.RailPool{compute, wrong, {ObjectMeta: metav1.ObjectMeta{Name: "young"}}}
	for i, node := range []string{"gpu-07", "old"} {
		b := kube.RailBlock{ObjectMeta: metav1.ObjectMeta{Name: []string{"compute-1027", "compute-1033"}[i]}}
		b.Spec = block.Spec{Pool: "compute", Index: []int{1027, 1033}[i], Size: 16, Owner: block.Owner{NodeName: node}}
		b.Status.Size, b.Status.Used, b.Status.Free = 16, 1+i, 15-i
		s.blocks = append(s.blocks, b)
	}
	s.nodes = []kube.Node{{Name: "gpu-07", Ready: true}, {Name: "gpu-08"}}
	return s
}

func TestWhatAnOperatorSeesOfTheCluster(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		write func(io.Writer, state) error
		want  string
	}{
		"pools": {writePools, `
POOL     BLOCKS  CLAIMED  USED  FREE   STATE
compute  1024    2        3     16381  ok
wrong    0       0        0     0      subnet?[2J overlaps
young    0       0        0     0      not seen by the reaper yet: kubectl -n roce-cni get pods
`},
		"blocks": {writeBlocks, `
BLOCK         NODE    FIRST RAIL               SIZE  USED  FREE  CONFIRMED
compute-1027  gpu-07  10.1.64.48-10.1.64.63    16    1     15    never
compute-1033  old     10.1.64.144-10.1.64.159  16    2     14    never
`},
		"nodes": {writeNodes, `
NODE    IT IS      POOL     BLOCKS  SIZE  USED  FREE
gpu-07  Ready      compute  1       16    1     15
gpu-08  not Ready  -        0       0     0     0
old     gone       compute  1       16    2     14
`},
	} {
		var got bytes.Buffer
		if err := tt.write(&got, aState()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), got.String()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
