// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// cluster has nodes with eight equal rails. Sixteen nodes share eight switches.
func cluster(count int) []Node {
	var out []Node
	for i := range count {
		n := Node{Name: fmt.Sprintf("gpu-%03d", i)}
		for r := range 8 {
			n.Rails = append(n.Rails, Rail{
				Rail: r, Netdev: fmt.Sprintf("ens%d", r), PCI: fmt.Sprintf("0000:%02x:00.0", 16*r+1), Device: fmt.Sprintf("mlx5_%d", r), Port: 1, State: "ACTIVE",
				Speed: 400000, MTU: 9000, Vendor: "15b3", DeviceID: "1021", Driver: "mlx5_core 6.8.0", Firmware: "28.39.1002", GIDs: 256, QoS: "PFC for priority 3",
				Switch: fmt.Sprintf("leaf-%d-%d", i/16, r), SwitchPort: fmt.Sprintf("swp%d", i%16),
			})
		}
		out = append(out, n)
	}
	return out
}

// lines returns differences as lines.
func lines(all []Difference) []string {
	out := []string{}
	for _, d := range all {
		out = append(out, fmt.Sprintf("%s %v %s: %s; %s", d.Node, d.Rails, d.What, d.Is, d.Most))
	}
	return out
}

func TestWhatDiffersIsNamed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func([]Node) []Node
		want   []string
	}{
		"equal nodes": {func(n []Node) []Node { return n }, []string{}},
		"one rail has another MTU": {func(n []Node) []Node { n[7].Rails[3].MTU = 1500; return n }, []string{
			"gpu-007 [3] MTU: 1500; 9000 on 47 of 48 nodes",
		}},
		"rails differ alike from different numbers of nodes": {func(n []Node) []Node {
			n[7].Rails[3].MTU, n[7].Rails[4].MTU, n[9].Rails[4].MTU = 1500, 1500, 1500
			return n
		}, []string{
			"gpu-007 [3] MTU: 1500; 9000 on 47 of 48 nodes", "gpu-007 [4] MTU: 1500; 9000 on 46 of 48 nodes", "gpu-009 [4] MTU: 1500; 9000 on 46 of 48 nodes",
		}},
		"a node has another firmware": {func(n []Node) []Node {
			for r := range n[7].Rails {
				n[7].Rails[r].Firmware = "28.38.1900"
			}
			return n
		}, []string{"gpu-007 [0 1 2 3 4 5 6 7] firmware: 28.38.1900; 28.39.1002 on 47 of 48 nodes"}},
		"one rail has no PFC": {func(n []Node) []Node { n[7].Rails[3].QoS = "PFC off, ECN off"; return n }, []string{
			"gpu-007 [3] QoS: PFC off, ECN off; PFC for priority 3 on 47 of 48 nodes",
		}},
		"a driver does not tell PFC": {func(n []Node) []Node { n[7].Rails[3].QoS = ""; return n }, []string{
			"gpu-007 [3] QoS: ; PFC for priority 3 on 47 of 48 nodes",
		}},
		"a port is down and slow": {func(n []Node) []Node { n[7].Rails[3].State, n[7].Rails[3].Speed = "DOWN", 0; return n }, []string{
			"gpu-007 [3] speed: 0 Mb/s; 400000 Mb/s on 47 of 48 nodes", "gpu-007 [3] state: DOWN; ACTIVE on 47 of 48 nodes",
		}},
		"two cables are swapped": {func(n []Node) []Node {
			n[7].Rails[3].Switch, n[7].Rails[4].Switch = n[7].Rails[4].Switch, n[7].Rails[3].Switch
			return n
		}, []string{
			"gpu-007 [3] switch: leaf-0-4; leaf-0-3 on 15 of 16 nodes that share its other switches",
			"gpu-007 [4] switch: leaf-0-3; leaf-0-4 on 15 of 16 nodes that share its other switches",
		}},
		"a switch is not heard": {func(n []Node) []Node { n[7].Rails[3].Switch = ""; return n }, []string{
			"gpu-007 [3] switch: ; leaf-0-3 on 15 of 16 nodes that share its other switches",
		}},
		// The rails behind it have other numbers, and are the same NICs.
		"a NIC is missing": {func(n []Node) []Node {
			n[7].Rails = append(n[7].Rails[:3:3], n[7].Rails[4:]...)
			for r := range n[7].Rails {
				n[7].Rails[r].Rail = r
			}
			n[7].Rails[5].MTU = 1500
			return n
		}, []string{
			"gpu-007 [] number of rails: 7; 8 on 47 of 48 nodes", "gpu-007 [3] NIC: missing; 0000:31:00.0", "gpu-007 [6] MTU: 1500; 9000 on 47 of 48 nodes",
		}},
		// One NIC of it is at an address that no other node has, and so are those of another node.
		"nodes have more NICs": {func(n []Node) []Node {
			for i, pci := range map[int]string{7: "0000:f1:00.0", 9: "0000:f2:00.0"} {
				n[i].Rails = append([]Rail{{PCI: pci, MTU: i}}, n[i].Rails...)
				for r := range n[i].Rails {
					n[i].Rails[r].Rail = r
				}
			}
			n[7].Rails[4].PCI = "0000:f3:00.0"
			return n
		}, []string{"gpu-007 [] number of rails: 9; 8 on 46 of 48 nodes", "gpu-009 [] number of rails: 9; 8 on 46 of 48 nodes"}},
		"a NIC is named twice": {func(n []Node) []Node {
			n[7].Rails = append(n[7].Rails, n[7].Rails[3])
			n[7].Rails[8].MTU = 1500
			n[9].Rails[3].MTU = 1500
			return n
		}, []string{"gpu-007 [] number of rails: 9; 8 on 47 of 48 nodes", "gpu-009 [3] MTU: 1500; 9000 on 47 of 48 nodes"}},
		"another NIC differs in its type alone": {func(n []Node) []Node {
			n[7].Rails[3].DeviceID, n[7].Rails[3].Firmware, n[7].Rails[3].Speed = "101b", "20.1", 200000
			n[9].Rails[3].MTU = 1500 // of those of its type
			return n
		}, []string{"gpu-007 [3] type of NIC: 15b3:101b; 15b3:1021 on 47 of 48 nodes", "gpu-009 [3] MTU: 1500; 9000 on 46 of 47 nodes"}},
		"no value has a majority": {func(n []Node) []Node {
			for i := range n {
				n[i].Rails[0].MTU = []int{9000, 1500, 4200, 4200}[i%4]
				n[i].Rails[1].MTU = []int{9000, 1500, 4200, 4200}[i%4]
			}
			return n
		}, []string{" [0 1] MTU: 4200 on 24, 1500 on 12, 9000 on 12; "}},
		"of many values the most frequent ones are shown": {func(n []Node) []Node {
			for i := range n {
				n[i].Rails[0].MTU = []int{9000, 1500, 4200, 1000, 2000, 3000, 3000, 3000}[i%8]
			}
			return n
		}, []string{" [0] MTU: 3000 on 18, 1000 on 6, 1500 on 6, 2000 on 6, 2 other values; "}},
		"another driver and table": {func(n []Node) []Node {
			n[7].Rails[3].Driver, n[9].Rails[3].GIDs = "mlx5_core 24.10", 128
			return n
		}, []string{"gpu-007 [3] driver: mlx5_core 24.10; mlx5_core 6.8.0 on 47 of 48 nodes", "gpu-009 [3] GID table: 128 entries; 256 entries on 47 of 48 nodes"}},
		"nodes without rails do not count": {func(n []Node) []Node {
			for i := range 100 {
				n = append(n, Node{Name: fmt.Sprintf("cpu-%03d", i)})
			}
			return n
		}, []string{}},
		"no switch is heard": {func(n []Node) []Node {
			for i := range n {
				for r := range n[i].Rails {
					n[i].Rails[r].Switch = ""
				}
			}
			return n
		}, []string{}},
		"one node": {func(n []Node) []Node { return n[:1] }, []string{}},
		"no node":  {func([]Node) []Node { return nil }, []string{}},
		"two nodes, of which the cables of one are swapped": {func(n []Node) []Node {
			n[0].Rails[3].Switch, n[0].Rails[4].Switch = n[0].Rails[4].Switch, n[0].Rails[3].Switch
			n[0].Rails[5].MTU = 1500
			return n[:2]
		}, []string{" [5] MTU: 1500 on 1, 9000 on 1; "}},
		// Its own line, and no other.
		"a node that lies": {func(n []Node) []Node {
			n[7].Rails = []Rail{{Rail: 31, PCI: n[3].Rails[3].PCI, MTU: -1, Switch: "leaf-0-3"}, {Rail: 30, PCI: n[3].Rails[3].PCI, Switch: "leaf-0-3"}}
			return n
		}, nil},
	} {
		nodes := tt.change(cluster(48))
		slices.Reverse(nodes) // a cached list of the API server has no order
		got := lines(Compare(nodes))
		if tt.want == nil {
			for _, line := range got {
				if !strings.HasPrefix(line, "gpu-007 ") {
					t.Errorf("%s: it says of another node: %s", name, line)
				}
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
