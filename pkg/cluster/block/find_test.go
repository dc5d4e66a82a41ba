// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

func TestAnAddressIsFoundInItsBlock(t *testing.T) {
	t.Parallel()
	s := space(t, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]}, {"subnets": [{"subnet": "10.1.0.0/24"}]}]}`, "")
	for addr, want := range map[string][2]int{
		"10.0.0.0": {0, 0}, "10.0.0.37": {2, 37}, "10.1.0.37": {2, 37}, "fd00::25": {2, 37}, "10.1.0.255": {15, 255},
		"10.2.0.1": {-1, -1}, "fd00::1:0:0": {-1, -1},
		"fd00::ff:ffff": {block.MaxBlocks - 1, block.MaxBlocks*16 - 1}, "fd00::100:0": {-1, -1},
	} {
		index, number, ok := s.Find(netip.MustParseAddr(addr))
		if !ok {
			index, number = -1, -1
		}
		if got := [2]int{index, number}; got != want {
			t.Errorf("%s: block and slot %v, want %v", addr, got, want)
		}
	}
}

func TestTheAgentsOwnFileHasTheBlocks(t *testing.T) {
	t.Parallel()
	s := space(t, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "exclude": ["10.0.0.40"]}]}, {"subnets": [{"subnet": "10.1.0.0/24"}]}]}`, "")
	node := block.Node{Name: "n", MachineID: "m"}
	var want []block.Block
	for _, i := range []int{2, 3, 7} {
		want = append(want, block.Block{Name: s.Name(i), Spec: block.Spec{Pool: "gpu", Index: i, Size: 16, Owner: block.Owner{NodeName: "n", MachineID: "m"}}})
	}
	rails, err := s.Rails(want)
	must(t, err)
	if diff := cmp.Diff(want, s.Recorded(node, rails)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	other := space(t, `{"rails": [{"subnets": [{"subnet": "10.7.0.0/24"}]}]}`, "")
	if got := other.Recorded(node, rails); len(got) != 0 {
		t.Errorf("a pool with other subnets had %v", got)
	}
}

func TestTheTotalIsTheSumOverAllBlocks(t *testing.T) {
	t.Parallel()
	s := space(t, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "exclude": ["10.0.0.40", "10.0.0.64-10.0.0.95"]}]}, {"subnets": [{"subnet": "10.1.0.0/23", "gateway": "10.1.0.1"}]}]}`, "")
	sum := 0
	for i := range s.Blocks() {
		sum += s.Slots(s.Index(i))
	}
	if got := s.Total(); got != sum || got != 256-1-1-32-1-1 { // 0, the gateway's, the excluded ones, 255
		t.Errorf("%d slots in all, %d in the blocks", got, sum)
	}
}
