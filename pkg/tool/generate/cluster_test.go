// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
)

// reports returns nodes with two equal rails each.
func reports(count int) []fleet.Node {
	var out []fleet.Node
	for i := range count {
		n := fleet.Node{Name: fmt.Sprintf("gpu-%d", i)}
		for r := range 2 {
			n.Rails = append(n.Rails, fleet.Rail{
				Rail: r, Netdev: fmt.Sprintf("ens%d", r), PCI: fmt.Sprintf("0000:0%d:00.0", r+1), Device: fmt.Sprintf("mlx5_%d", r), Port: 1, State: "ACTIVE",
				Speed: 400000, MTU: 9000, Vendor: "15b3", DeviceID: "1021", Driver: "mlx5_core 6.8.0", Firmware: "28.39", GIDs: 256,
			})
		}
		out = append(out, n)
	}
	return out
}

func routed() Choice {
	return Choice{Name: "rails", Image: "registry.example.org/roce-cni:devel-tools", Subnet: "172.{rail+16}.0.0/16", Gateway: "172.{rail+16}.0.1"}
}

// storage is a NIC of another type.
func storage(rail int) fleet.Rail {
	return fleet.Rail{Rail: rail, Netdev: "eth9", PCI: "0000:00:09.0", Vendor: "15b3", DeviceID: "101d", Driver: "mlx5_core 6.8.0", MTU: 1500, GIDs: 256}
}

func TestObjectsOfEqualNodes(t *testing.T) {
	t.Parallel()
	docs, err := Cluster(reports(3), nil, nil, routed())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/cluster.yaml", docs)

	// One node gives the same objects.
	one, err := Node(server(), routed())
	if err != nil {
		t.Fatal(err)
	}
	for i := range one {
		if i == 2 {
			continue // the reports do not have the free entries of a GID table
		}
		if diff := cmp.Diff(one[i].Object, docs[i].Object); diff != "" {
			t.Errorf("object %d (-node +cluster)\n%s", i, diff)
		}
	}
}

// TestATableOfRoCEv2AloneOnAllNodes: E810 has 32 entries, and an address takes one.
func TestATableOfRoCEv2AloneOnAllNodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ gids, width, pods int }{{32, 0, 14}, {32, 1, 30}, {32, 2, 14}, {2, 2, 0}} { // width 0: the report does not tell
		nodes := reports(2)
		for _, n := range nodes {
			for i := range n.Rails {
				n.Rails[i].GIDs, n.Rails[i].GIDWidth = c.gids, c.width
			}
		}
		docs, err := Cluster(nodes, nil, nil, routed())
		if err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprint(docs); !strings.Contains(text, fmt.Sprintf(`"rdmaHcaMax": %d,`, c.pods)) {
			t.Errorf("%+v:\n%s", c, text)
		}
	}
}

// TestObjectsOfNodesThatDiffer has a node with other names, MTU and GID table, one with a NIC
// more, two without NICs, and some without a report. The order changes nothing.
func TestObjectsOfNodesThatDiffer(t *testing.T) {
	t.Parallel()
	nodes := append(reports(3), fleet.Node{Name: "cpu-1"}, fleet.Node{Name: "cpu-0"})
	nodes[2].Rails[1].Netdev, nodes[2].Rails[1].MTU, nodes[2].Rails[1].GIDs = "enp2s0", 1500, 128
	nodes[1].Rails = append([]fleet.Rail{storage(0)}, nodes[1].Rails...)
	nodes[1].Rails[1].Rail, nodes[1].Rails[2].Rail = 1, 2
	choice := routed()
	choice.Subnet, choice.Gateway, choice.Namespace = "172.{rail+16}.0.0/27", "", "ml"
	docs, err := Cluster(nodes, []string{"new-1", "new-0"}, nil, choice)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/cluster-differs.yaml", docs)
	slices.Reverse(nodes)
	for _, n := range nodes {
		slices.Reverse(n.Rails)
	}
	again, err := Cluster(nodes, []string{"new-0", "new-1"}, nil, choice)
	if diff := cmp.Diff(docs, again, cmp.AllowUnexported(member{})); diff != "" || err != nil {
		t.Errorf("another order gives other objects: %v\n%s", err, diff)
	}
}

// TestANICOfAnotherVendorIsLeftOut has one with the number of the type that all nodes have.
func TestANICOfAnotherVendorIsLeftOut(t *testing.T) {
	t.Parallel()
	nodes, another := reports(2), storage(2)
	another.Vendor, another.DeviceID = "14e4", "1021"
	nodes[1].Rails = append(nodes[1].Rails, another)
	docs, err := Cluster(nodes, nil, nil, routed())
	if got := fmt.Sprint(docs); err != nil || !strings.Contains(got, "Left out on node gpu-1: eth9 14e4:1021.") {
		t.Errorf("got %s, %v", got, err)
	}
}

// TestAsManyNICsOfOtherTypes has a node with one NIC of each type: all of them match.
func TestAsManyNICsOfOtherTypes(t *testing.T) {
	t.Parallel()
	nodes := reports(2)
	nodes[1].Rails[1].DeviceID = "101d"
	docs, err := Cluster(nodes, nil, nil, routed())
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(strings.Fields(fmt.Sprint(docs[1].Object)), ""); !strings.Contains(text, `"deviceIDs":["101d","1021"],"linkTypes":["ether"]},"count":2,`) {
		t.Errorf("got the network %s", text)
	}
}

func TestChosenNodesAndNICsWithoutPCI(t *testing.T) {
	t.Parallel()
	nodes := reports(3)
	nodes[0].Rails = nodes[0].Rails[:1]
	for i := range nodes {
		for j := range nodes[i].Rails {
			r := &nodes[i].Rails[j]
			r.Vendor, r.DeviceID, r.PCI, r.GIDs = "", "", "", 0
		}
	}
	choice := routed()
	choice.Subnet = "172.{rail+16}.{rack}.0/24"
	docs, err := Cluster(nodes, nil, []string{"gpu-1", "gpu-2"}, choice)
	if err != nil {
		t.Fatal(err)
	}
	text, err := Text(docs)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"all rails of 2 nodes: gpu-1, gpu-2", `"ifNames": [`, `"count": 2`, "for these nodes alone", "rdmaHcaMax: cannot tell", "Add rackLabel",
	} {
		if !strings.Contains(strings.ReplaceAll(text, "\n#   ", " "), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// TestANICWithoutPCIOnOneNodeIsSelectedByItsName, and so all others are.
func TestANICWithoutPCIOnOneNodeIsSelectedByItsName(t *testing.T) {
	t.Parallel()
	nodes := reports(2)
	nodes[1].Rails[1].Vendor, nodes[1].Rails[1].DeviceID = "", ""
	docs, err := Cluster(nodes, nil, nil, routed())
	if got := strings.Join(strings.Fields(fmt.Sprint(docs)), ""); err != nil || !strings.Contains(got, `"match":{"ifNames":["ens0","ens1"]},"count":2`) {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestNodesForWhichNothingCanBeGenerated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func([]fleet.Node, *Choice)
		names  []string
		want   string
	}{
		"a NIC is missing": {
			func(n []fleet.Node, _ *Choice) { n[1].Rails = n[1].Rails[:1] }, nil,
			"no match fits the NICs of all nodes: 1 x 15b3:1021 on --nodes gpu-1; 2 x 15b3:1021 on --nodes gpu-0,gpu-2",
		},
		"only the storage is the same": {func(n []fleet.Node, _ *Choice) {
			n[0].Rails = []fleet.Rail{storage(0)}
			n[1].Rails, n[2].Rails = append(n[1].Rails, storage(2)), append(n[2].Rails, storage(2))
		}, nil, "1 x 15b3:101d + 2 x 15b3:1021 on --nodes gpu-1,gpu-2"},
		"as many of another type": {
			func(n []fleet.Node, _ *Choice) { n[1].Rails = append(n[1].Rails, storage(2), storage(3)) }, nil,
			"2 x 15b3:101d + 2 x 15b3:1021 on --nodes gpu-1",
		},
		"other names without PCI": {
			func(n []fleet.Node, _ *Choice) {
				n[1].Rails[0].Vendor, n[1].Rails[0].DeviceID = "", ""
				n[1].Rails[0].Netdev = "x"
			}, nil,
			"1 x 15b3:1021 + 1 x x on --nodes gpu-1",
		},
		"a NIC of the second type is missing": {
			func(n []fleet.Node, _ *Choice) {
				for i := range n {
					n[i].Rails = append(n[i].Rails, reports(1)[0].Rails[0], storage(3), storage(4))
					n[i].Rails[2].Rail = 2
				}
				n[1].Rails = n[1].Rails[:4]
			}, nil,
			"1 x 15b3:101d + 3 x 15b3:1021 on --nodes gpu-1; 2 x 15b3:101d + 3 x 15b3:1021 on --nodes gpu-0,gpu-2",
		},
		"the match of two vendors fits a third type": {
			func(n []fleet.Node, _ *Choice) {
				for i := range n {
					n[i].Rails = append(n[i].Rails, storage(2))
					n[i].Rails[2].Vendor = "14e4"
				}
				n[1].Rails = append(n[1].Rails, storage(3))
			}, nil,
			"1 x 14e4:101d + 1 x 15b3:101d + 2 x 15b3:1021 on --nodes gpu-1",
		},
		"a name twice without PCI": {
			func(n []fleet.Node, _ *Choice) {
				for i := range n {
					for j := range n[i].Rails {
						n[i].Rails[j].Vendor, n[i].Rails[j].DeviceID = "", ""
					}
				}
				n[1].Rails = append(n[1].Rails, fleet.Rail{Rail: 2, Netdev: "ens0"})
			}, nil,
			"2 x ens0 + 1 x ens1 on --nodes gpu-1",
		},
		"as many of other names without PCI": {
			func(n []fleet.Node, _ *Choice) {
				for i := range n {
					n[i].Rails = []fleet.Rail{{Rail: 0, Netdev: "ens0"}, {Rail: 1, Netdev: "ens1"}, {Rail: 2, Netdev: "ens2"}}
				}
				n[1].Rails[2].Netdev = "ens0"
			}, nil,
			"2 x ens0 + 1 x ens1 on --nodes gpu-1",
		},
		"no NIC": {func(n []fleet.Node, _ *Choice) {
			for i := range n {
				n[i].Rails = nil
			}
		}, nil, "no node has reported"},
		"no subnet":       {func(_ []fleet.Node, c *Choice) { c.Subnet = "" }, nil, "have no addresses: give the subnets with --subnet"},
		"a wrong subnet":  {func(_ []fleet.Node, c *Choice) { c.Subnet = "172.16.0.0/99" }, nil, "172.16.0.0/99"},
		"an unknown node": {func([]fleet.Node, *Choice) {}, []string{"gpu-0", "gpu-9"}, `node "gpu-9" has no report`},
		// What a node that was taken over may write.
		"a pattern as name":    {func(n []fleet.Node, _ *Choice) { n[1].Rails[0].Netdev = "*" }, nil, `rail 0 of node gpu-1, "*"`},
		"a line as vendor":     {func(n []fleet.Node, _ *Choice) { n[1].Rails[0].Vendor = "a\nb" }, nil, `"a\nb"`},
		"a line as type":       {func(n []fleet.Node, _ *Choice) { n[1].Rails[0].DeviceID = "a\nb" }, nil, `"a\nb"`},
		"a vendor alone":       {func(n []fleet.Node, _ *Choice) { n[1].Rails[0].DeviceID = "" }, nil, `rail 0 of node gpu-1, "ens0", "15b3":""`},
		"a number of GIDs":     {func(n []fleet.Node, _ *Choice) { n[1].Rails[0].GIDs = -1 }, nil, "rail 0 of node gpu-1"},
		"a width of addresses": {func(n []fleet.Node, _ *Choice) { n[1].Rails[0].GIDWidth = -1 }, nil, "rail 0 of node gpu-1"},
		"a rail twice":         {func(n []fleet.Node, _ *Choice) { n[1].Rails[1].Rail = 0 }, nil, "rail 0 of node gpu-1"},
		"an impossible rail":   {func(n []fleet.Node, _ *Choice) { n[1].Rails[1].Rail = fleet.MaxRails }, nil, "rail 32 of node gpu-1"},
		"a command as node":    {func(n []fleet.Node, _ *Choice) { n[1].Name = "$(reboot)" }, nil, `"$(reboot)" is not the name of a node`},
	} {
		nodes, choice := reports(3), routed()
		c.change(nodes, &choice)
		if _, err := Cluster(nodes, nil, c.names, choice); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if _, err := Cluster(nil, nil, nil, routed()); err == nil || !strings.Contains(err.Error(), "no agent has reported") {
		t.Errorf("without reports: %v", err)
	}
}

// The other texts of a report are only in comments.
func TestTextsOfReportsStayInComments(t *testing.T) {
	t.Parallel()
	nodes := reports(2)
	r := &nodes[1].Rails[0]
	r.PCI, r.Driver = "x\nkind: Evil\x1b[2J\u2028kind: Evil", "Evil\n---\r\nkind:\u0085Evil $(reboot)"
	docs, err := Cluster(nodes, []string{"unreported\nkind: Evil"}, nil, routed())
	if err != nil {
		t.Fatal(err)
	}
	text, err := Text(docs)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && strings.Contains(line, "Evil") || strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("a line of a report is no comment: %q", line)
		}
	}
	if !strings.Contains(text, "no report: unreported") || strings.Count(text, "\n---\n") != 3 {
		t.Errorf("%s", text)
	}
}
