// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
)

var update = flag.Bool("update", false, "rewrite the expected outputs in testdata")

// TestOtherStacksAreConverted compares testdata/NAME.in.* with NAME.out.yaml.
func TestOtherStacksAreConverted(t *testing.T) {
	t.Parallel()
	inputs, err := filepath.Glob("testdata/*.in.*")
	if err != nil || len(inputs) == 0 {
		t.Fatal(err, inputs)
	}
	for _, in := range inputs {
		text, err := os.ReadFile(in)
		if err != nil {
			t.Fatal(err)
		}
		docs, err := From(text)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		golden(t, strings.TrimSuffix(strings.TrimSuffix(in, filepath.Ext(in)), ".in")+".out.yaml", docs)
	}
}

// golden compares documents with a file.
func golden(t *testing.T, file string, docs []Document) {
	t.Helper()
	got, err := Text(docs)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); make golden rewrites it\n%s", file, diff)
	}
}

func TestWhatCannotBeConverted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"kind: SpiderMultusConfig\nmetadata: {name: a}\nspec: {cniType: macvlan}":                                                                                     "macvlan has no master",
		"kind: MacvlanNetwork\nmetadata: {name: a}\nspec: {ipam: '{'}":                                                                                                "spec.ipam: ",
		"kind: MacvlanNetwork\nmetadata: {name: a}\nspec: {ipam: '{\"type\": \"whereabouts\"}'}":                                                                      "whereabouts has no range",
		"kind: MacvlanNetwork\nmetadata: {name: a}\nspec: {ipam: '{\"type\": \"whereabouts\", \"range\": \"x\"}'}":                                                    `subnet "x"`,
		"kind: NetworkAttachmentDefinition\nmetadata: {name: a}\nspec: {config: x}":                                                                                   "spec.config",
		"kind: MacvlanNetwork\nmetadata: {name: a}\nspec: {}\nmaster: ens1":                                                                                           `"master" stands beside spec`,
		"kind: MacvlanNetwork\nmetadata: {name: a}\nspec: {master: ens1, ipam: '{\"type\": \"whereabouts\", \"range\": \"10.0.0.0/28\", \"gateway\": \"10.0.1.1\"}'}": "10.0.1.1 is not inside",
		"kind: List\nitems: [{kind: NetworkAttachmentDefinition, metadata: {name: a}, spec: {config: '{\"type\": \"macvlan\",}'}}]":                                   "spec.config",
		"kind: SpiderIPPool\nmetadata: {name: a}\nspec: {}\nsubnet: 10.0.0.0/8":                                                                                       `"subnet" stands beside spec`,
		"kind: CIDRPool\nmetadata: {name: p}\nspec: {exclusions: [{startIP: first, endIP: last}], staticAllocations: [{nodeName: a, prefix: 10.0.1.0/24}]}\n---\n" +
			"kind: MacvlanNetwork\nmetadata: {name: a}\nspec: {master: ens1, ipam: '{\"type\": \"nv-ipam\", \"poolName\": \"p\", \"poolType\": \"cidrpool\"}'}": "first-last",
		"apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPPool\nmetadata: {name: p}\nspec: {subnet: 10.0.0.0/33}\n---\n" +
			"kind: MacvlanNetwork\nmetadata: {name: a}\nspec: {master: ens1, ipam: '{\"type\": \"nv-ipam\", \"poolName\": \"p\"}'}": `IPPool p: subnet "10.0.0.0/33"`,
		"kind: CIDRPool\nmetadata: {name: p}\nspec: {staticAllocations: [{nodeName: a, prefix: 10.0.1.0}]}\n---\n" +
			"kind: MacvlanNetwork\nmetadata: {name: a}\nspec: {master: ens1, ipam: '{\"type\": \"nv-ipam\", \"poolName\": \"p\", \"poolType\": \"cidrpool\"}'}": "CIDRPool p: node a: ",
		"kind: CIDRPool\nmetadata: {name: p}\nspec: {staticAllocations: [{prefix: 10.0.1.0/24}]}\n---\n" +
			"kind: MacvlanNetwork\nmetadata: {name: a}\nspec: {master: ens1, ipam: '{\"type\": \"nv-ipam\", \"poolName\": \"p\", \"poolType\": \"cidrpool\"}'}": "CIDRPool p: it names no subnet of a node",
		"kind: SpiderIPPool\nmetadata: {name: p}\nspec: {subnet: x}\n---\n" +
			"kind: SpiderMultusConfig\nmetadata: {name: a}\nspec: {cniType: macvlan, macvlan: {master: [e], ippools: {ipv4: [p]}}}": `SpiderIPPool p: subnet "x"`,
		"kind: HostDeviceNetwork\nmetadata: {name: a}\nspec: {ipam: '{'}":                                          "spec.ipam: ",
		"name: a\ntype: macvlan\nmaster: e\nipam: {type: whereabouts, range: 10.0.0.0/33}":                         `subnet "10.0.0.0/33"`,
		"name: a\ntype: macvlan\nmaster: e\nipam: {type: whereabouts, range: 10.0.0.0/28, exclude: [10.1.0.0/30]}": "10.1.0.0",
		"name: a\ntype: macvlan\nmaster: e\nmtu: -1\n---\nname: b\ntype: macvlan\nmaster: e\nmtu: -2":              `"mtu": -2`, // and the first
		"kind: [":              "document 2",
		"type: macvlan":        "the configuration has no name",
		"name: a\nplugins: []": "it has no plugin",
	} {
		docs, err := From([]byte("name: good\ntype: macvlan\nmaster: ens1\n---\n" + text + "\n---\nname: last\ntype: macvlan\nmaster: ens1"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
		if len(docs) == 0 || docs[0].Object == nil {
			t.Errorf("%s: the network beside it is not converted: %+v", text, docs)
		}
		if got := comments(t, docs); !strings.Contains(got, want) || !strings.Contains(got, "last-roce") || strings.Contains(got, "The pool has") {
			t.Errorf("%s: the comments do not say it, or promise room:\n%s", text, got)
		}
	}
}

func TestRangesOfWhereabouts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, start, end, subnet, ranges string }{
		{"10.0.0.5-10.0.0.9/24", "", "", "10.0.0.0/24", "10.0.0.5-10.0.0.9"},
		{"10.0.0.0/24", "", "10.0.0.9", "10.0.0.0/24", "10.0.0.1-10.0.0.9"},
		{"10.0.0.0/30", "10.0.0.2", "", "10.0.0.0/30", "10.0.0.2-10.0.0.2"},
		{"10.0.0.0/31", "10.0.0.0", "", "10.0.0.0/31", "10.0.0.0-10.0.0.1"},
		{"fd00::/120", "fd00::9", "", "fd00::/120", "fd00::9-fd00::ff"},
	} {
		s, notes, err := wherever(newFields("ipam.", map[string]any{"range": c.text, "range_start": c.start, "range_end": c.end}))
		if err != nil || s.Subnet != c.subnet || strings.Join(s.Ranges, ",") != c.ranges || len(notes) != 0 {
			t.Errorf("%+v: got %+v, %q, %v", c, s, notes, err)
		}
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{0: 1, 1: 1, 15: 8, 16: 16, 17: 16, 2 * block.MaxSize: block.MaxSize} {
		if got := powerOfTwo(n); got != want {
			t.Errorf("perNodeBlockSize %d: blockSize %d, want %d", n, got, want)
		}
	}
	if got := addresses([]block.Subnet{{Subnet: "10.0.0.0/24"}, {Subnet: "10.1.0.0/28"}, {Subnet: "10.2.0.0/26"}}); got != 16 {
		t.Errorf("the smallest subnet has %d addresses, want 16", got)
	}
	for of, want := range map[string]string{"10.0.0.0/24": "10.0.0.128/25", "10.0.0.0/30": "10.0.0.2/31", "10.0.0.0/31": "10.0.0.0/31", "10.0.0.1/32": "10.0.0.1/32", "fd00::/64": "fd00::8000:0:0:0/65"} {
		p := netip.MustParsePrefix(of)
		if got := upperHalf(p, p.Addr().BitLen()-p.Bits()); got != want {
			t.Errorf("the upper half of %s is %s, want %s", of, got, want)
		}
	}
}

// TestTheMTUOfTuning wins over that of macvlan, because tuning runs later. Behind another plugin
// roce makes no interface, so tuning keeps it.
func TestTheMTUOfTuning(t *testing.T) {
	t.Parallel()
	for first, want := range map[string][]string{
		`"type":"macvlan","master":"ens1","mtu":9000`: {`"type":"roce","master":"ens1","mtu":4200}`, "Dropped: tuning"},
		`"type":"macvlan","master":"ens1"`:            {`"type":"roce","master":"ens1","mtu":4200}`, "Dropped: tuning"},
		`"type":"sriov"`:                              {`{"type":"roce"},{"type":"tuning","mtu":4200}`, "tuning stays"},
	} {
		docs, err := From([]byte(`{"cniVersion":"1.0.0","name":"n","plugins":[{` + first + `},{"type":"tuning","mtu":4200}]}`))
		if err != nil {
			t.Fatal(err)
		}
		text, err := Text(docs)
		if err != nil {
			t.Fatal(err)
		}
		text = strings.Join(strings.Fields(text), "")
		for _, w := range want {
			if !strings.Contains(text, strings.ReplaceAll(w, " ", "")) {
				t.Errorf("%s: no %s in\n%s", first, w, text)
			}
		}
	}
}

// server is a node with two NICs, that can have addresses.
func server(addresses ...string) nic.Node {
	sys := fstest.MapFS{}
	n := nic.Node{Sys: sys, Driver: func(string) (nic.Driver, error) { return nic.Driver{Name: "mlx5_core"}, nil }}
	write := func(name, content string) { sys[name] = &fstest.MapFile{Data: []byte(content)} }
	for i := range 2 {
		pci := fmt.Sprintf("0000:0%d:00.0", i+1)
		way := fmt.Sprintf("devices/pci0000:00/0000:00:0%d.0/%s", i+1, pci)
		device := fmt.Sprintf("mlx5_%d", i)
		for name, target := range map[string]string{
			"bus/pci/devices/" + pci: "../../../" + way, fmt.Sprintf("class/net/ens%d", i): "../../" + way + fmt.Sprintf("/net/ens%d", i),
			"class/infiniband/" + device: "../../" + way + "/infiniband/" + device,
		} {
			sys[name] = &fstest.MapFile{Data: []byte(target), Mode: os.ModeSymlink}
		}
		write(way+"/vendor", "0x15b3")
		write(way+"/device", "0x1021")
		write(way+"/infiniband/"+device+"/ports/1/link_layer", "Ethernet")
		for j := range 64 {
			write(fmt.Sprintf("%s/infiniband/%s/ports/1/gids/%d", way, device, j), "0000:0000:0000:0000:0000:0000:0000:0000")
		}
		index := int32(i + 1)
		n.Links = append(n.Links, rtnl.Link{Index: index, Name: fmt.Sprintf("ens%d", i), Type: unix.ARPHRD_ETHER, MTU: 9000, Dev: pci, Bus: "pci"})
		n.RDMA.Devices = append(n.RDMA.Devices, nldev.Device{Name: device, Ports: []nldev.Port{{Number: 1, State: nldev.Active, NetdevIndex: index}}})
	}
	for i, a := range addresses {
		n.Addresses = append(n.Addresses, rtnl.Address{Index: int32(i + 1), Prefix: netip.MustParsePrefix(a)})
	}
	return n
}

// TestABondIsSelectedByItsSlaves: their vendor and type fit the bond. The device plugin sees no
// bond, so it names slaves where roce names the bond.
func TestABondIsSelectedByItsSlaves(t *testing.T) {
	t.Parallel()
	n := server("172.16.11.5/24")
	n.RDMA.Devices = n.RDMA.Devices[:1] // RoCE LAG
	n.Addresses[0].Index = 9
	for i := range n.Links {
		n.Links[i].SlaveKind, n.Links[i].Master = "bond", 9
	}
	n.Links = append(n.Links, rtnl.Link{Index: 9, Name: "bond0", Kind: "bond", Type: unix.ARPHRD_ETHER, MTU: 9000})
	kind := `{"vendors":["15b3"],"deviceIDs":["1021"],"linkTypes":["ether"]`
	for range 2 {
		docs, err := Node(n, Choice{Name: "rails"})
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(strings.Fields(fmt.Sprint(docs)), "")
		match, selectors := kind+"}", kind+"}"
		if len(n.Links) > 3 {
			match, selectors = kind+`,"ifNames":["bond0"]}`, kind+`,"ifNames":["ens0","ens1"]}`
		}
		for _, want := range []string{`"match":` + match + `,"count":1`, `"selectors":` + selectors} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
		n.Links = append(n.Links, rtnl.Link{Index: 10, Name: "ens9", Type: unix.ARPHRD_ETHER, Dev: "0000:01:00.0", Bus: "pci"}) // no RDMA
	}
}

func TestObjectsOfANode(t *testing.T) {
	t.Parallel()
	choice := Choice{Name: "rails", Image: "registry.example.org/roce-cni:devel-tools"}
	docs, err := Node(server("172.16.11.5/24", "172.16.12.5/24"), choice)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/node.yaml", docs)
	again, err := Node(server("172.16.11.5/24", "172.16.12.5/24"), choice)
	if diff := cmp.Diff(docs, again, cmp.AllowUnexported(member{})); diff != "" || err != nil {
		t.Errorf("the same node gives other objects: %v\n%s", err, diff)
	}

	choice.Subnet, choice.Gateway, choice.Namespace = "172.{rail+16}.0.0/16", "172.{rail+16}.0.1", "ml"
	choice.PluginNamespace = "network"
	n := server()
	n.Links = append(n.Links, rtnl.Link{Index: 9, Name: "ens9", Type: unix.ARPHRD_ETHER, Dev: "0000:01:00.0", Bus: "pci"})
	n.RDMA.Devices = append(n.RDMA.Devices, nldev.Device{Name: "mlx5_9", Ports: []nldev.Port{{Number: 1, State: nldev.Down}}}) // no rail
	n.Sys.(fstest.MapFS)["class/net/ens9"] = &fstest.MapFile{Data: []byte("../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/net/ens9"), Mode: os.ModeSymlink}
	docs, err = Node(n, choice)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/node-template.yaml", docs)

	if _, err := Node(server("172.16.11.5/24"), Choice{Name: "rails"}); err == nil || !strings.Contains(err.Error(), "rail 1 (ens1) has no address") {
		t.Errorf("got %v, want the rail without address", err)
	}
	if _, err := Node(nic.Node{Sys: fstest.MapFS{}}, choice); err == nil || !strings.Contains(err.Error(), "no RoCE NIC") {
		t.Errorf("got %v, want that there is no NIC", err)
	}
}

// TestANICWithoutRoCE has no GID table. The NIC stays a rail, because a match selects it.
func TestANICWithoutRoCE(t *testing.T) {
	t.Parallel()
	n := server("172.16.11.5/24", "172.16.12.5/24")
	maps.DeleteFunc(n.Sys.(fstest.MapFS), func(name string, _ *fstest.MapFile) bool { return strings.Contains(name, "/mlx5_1/ports/1/gids/") })
	docs, err := Node(n, Choice{Name: "rails"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := Text(docs)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"count": 2,`, `"rdmaHcaMax": 32,`, "# Problem: RoCE is off on ens1"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// TestTheFullestTableCounts has a NIC without RoCE, a NIC of which a pod has the device, and two with
// a table, of which NVIDIA's own driver has the fuller one.
func TestTheFullestTableCounts(t *testing.T) {
	t.Parallel()
	ports := []nic.Details{
		{Netdev: "ens0"},
		{Netdev: "ens1", State: nic.Away},
		{Netdev: "ens2", GIDs: nic.GIDs{Used: 2, Size: 64, Width: 2}},
		{Netdev: "ens3", GIDs: nic.GIDs{Used: 30, Size: 64, Width: 2, Hidden: true}},
		{Netdev: "ens4", GIDs: nic.GIDs{Used: 3, Size: 64, Width: 2}},
	}
	pods, why := podsOf(ports)
	if pods != 17 || len(why) != 2 || !strings.Contains(why[0], "GID table of ens3") || !strings.Contains(why[0], "34 of 64 entries are free") || !strings.Contains(why[1], "hides") {
		t.Errorf("got %d pods, %q", pods, why)
	}
	if pods, why := podsOf(append(ports[:3:3], ports[4])); pods != 30 || len(why) != 1 || !strings.Contains(why[0], "GID table of ens4") {
		t.Errorf("without ens3: got %d pods, %q", pods, why)
	}
	if pods, why := podsOf(ports[:2]); pods != 0 || len(why) != 1 || why[0] != unknownTables {
		t.Errorf("without a table: got %d pods, %q", pods, why)
	}
	if got := withoutRoCE(ports); len(got) != 1 || !strings.Contains(got[0], "RoCE is off on ens0, so") {
		t.Errorf("got %q, want ens0 alone", got)
	}
}

// TestSubnetsOfTheNICs: a rail has a subnet for each address of its NIC. The ranges have the same
// host indexes, because a pod has one on all rails. With the template of a rack
// in the gateway alone, the room depends on the racks too.
func TestSubnetsOfTheNICs(t *testing.T) {
	t.Parallel()
	n := server("172.16.11.5/24", "172.16.12.5/24")
	n.Addresses = append(n.Addresses, rtnl.Address{Index: 2, Prefix: netip.MustParsePrefix("fd00:12::5/64")})
	docs, err := Node(n, Choice{Name: "rails"})
	if err != nil {
		t.Fatal(err)
	}
	want := []block.Rail{
		{Subnets: []block.Subnet{{Subnet: "172.16.11.0/24", Ranges: []string{"172.16.11.128/25"}}}},
		{Subnets: []block.Subnet{{Subnet: "172.16.12.0/24", Ranges: []string{"172.16.12.128/25"}}, {Subnet: "fd00:12::/64", Ranges: []string{"fd00:12::80/121"}}}},
	}
	if spec, ok := docs[0].Object["spec"].(block.PoolSpec); !ok || !cmp.Equal(want, spec.Rails) {
		t.Errorf("got %+v, want the rails %+v", docs[0].Object["spec"], want)
	}
	if why := strings.Join(docs[0].Comments, "\n"); !strings.Contains(why, "ranges: fd00:12::/64 is larger") || strings.Contains(why, "172.16.12.0/24 is larger") {
		t.Errorf("it says %s", why)
	}
	docs, err = Node(server("fd00:11::5/64", "fd00:12::5/56"), Choice{Name: "rails"}) // as far as blocks reach
	want = []block.Rail{
		{Subnets: []block.Subnet{{Subnet: "fd00:11::/64", Ranges: []string{"fd00:11::80:0/105"}}}},
		{Subnets: []block.Subnet{{Subnet: "fd00:12::/56", Ranges: []string{"fd00:12::80:0/105"}}}},
	}
	if err != nil || !cmp.Equal(want, docs[0].Object["spec"].(block.PoolSpec).Rails) { //nolint:forcetypeassert // as railPool makes it
		t.Errorf("without IPv4: %v, %+v", err, docs)
	}
	docs, err = Node(n, Choice{Name: "rails", Subnet: "172.{rail+16}.0.0/16", Gateway: "172.{rail+16}.{rack}.1"})
	if got := fmt.Sprint(docs); err != nil || !strings.Contains(got, "it depends on the racks") {
		t.Errorf("got %s, %v", got, err)
	}
}

// TestNICsOfTwoVendorsAreSelectedByBoth has NICs on no PCI bus, too, and a bond of one NIC, of which
// the device plugin sees the NIC.
func TestNICsOfTwoVendorsAreSelectedByBoth(t *testing.T) {
	t.Parallel()
	n := server("172.16.11.5/24", "172.16.12.5/24")
	n.Sys.(fstest.MapFS)["devices/pci0000:00/0000:00:02.0/0000:02:00.0/vendor"].Data = []byte("0x14e4")
	docs, err := Node(n, Choice{Name: "rails"})
	if got := strings.Join(strings.Fields(fmt.Sprint(docs)), ""); err != nil || strings.Count(got, `{"vendors":["14e4","15b3"],"deviceIDs":["1021"],`) != 2 {
		t.Errorf("got %s, %v", got, err)
	}
	match, selectors, comment := matching(n, []nic.Details{{Netdev: "ens0"}, {Netdev: "ens1"}})
	if text := indent(match); text != indent(selectors) || strings.Join(strings.Fields(text), "") != `{"ifNames":["ens0","ens1"]}` || !strings.Contains(comment, "on no PCI bus") {
		t.Errorf("NICs on no PCI bus: %s, %s", text, comment)
	}
	slaves := onPCI([]nic.Details{{Netdev: "ens0"}, {Netdev: "bond0", Slaves: []string{"ens1"}}, {Netdev: "bond1", Slaves: []string{"ens2", "ens3"}}})
	if diff := cmp.Diff([]string{"ens0", "ens1", "ens2", "ens3"}, slaves); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestATableOfRoCEv2Alone has room for twice as many pods: E810 has 32 entries of v2.
func TestATableOfRoCEv2Alone(t *testing.T) {
	t.Parallel()
	for kind, pods := range map[string]int{"RoCE v2": 62, "IB/RoCE v1": 31} {
		n := server("172.16.11.5/24", "172.16.12.5/24")
		for i := range 2 {
			for j := range 2 {
				port := fmt.Sprintf("devices/pci0000:00/0000:00:0%[1]d.0/0000:0%[1]d:00.0/infiniband/mlx5_%[2]d/ports/1/", i+1, i)
				n.Sys.(fstest.MapFS)[fmt.Sprint(port, "gids/", j)] = &fstest.MapFile{Data: []byte("fe80:0000:0000:0000:0000:0000:0000:0001")}
				n.Sys.(fstest.MapFS)[fmt.Sprint(port, "gid_attrs/types/", j)] = &fstest.MapFile{Data: []byte(kind)}
			}
		}
		docs, err := Node(n, Choice{Name: "rails"})
		if err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprint(docs); !strings.Contains(text, fmt.Sprintf(`"rdmaHcaMax": %d,`, pods)) {
			t.Errorf("%s: want %d pods:\n%s", kind, pods, text)
		}
	}
}

func TestChoicesThatAreWrong(t *testing.T) {
	t.Parallel()
	for want, choice := range map[string]Choice{
		"--gateway is for the subnets of --subnet": {Name: "rails", Gateway: "172.{rail+16}.0.1"},
		"172.16.0.0/33":               {Name: "rails", Subnet: "172.{rail+16}.0.0/33"},
		"10.16.0.1 is not inside":     {Name: "rails", Subnet: "172.{rail+16}.0.0/16", Gateway: "10.{rail+16}.0.1"},
		`"my_rails" cannot be a name`: {Name: "my_rails"},
		`"a space" cannot be a name`:  {Name: "rails", Namespace: "a space"},
		`"a b" cannot be an image`:    {Name: "rails", Image: "a b"},
		`"a\x7f" cannot be an image`:  {Name: "rails", Image: "a\x7f"},
		`--plugin-namespace "Helm"`:   {Name: "rails", PluginNamespace: "Helm"},
	} {
		if _, err := Node(server("172.16.11.5/24", "172.16.12.5/24"), choice); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", choice, err, want)
		}
		if choice.Subnet == "" {
			choice.Subnet = "172.{rail+16}.0.0/16"
			if choice.Gateway != "" {
				continue
			}
		}
		if _, err := Cluster(reports(2), nil, nil, choice); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v, of all nodes: %v, want %q", choice, err, want)
		}
	}
}

// TestTheDevicePluginReadsItsConfiguration reads it as k8s-rdma-shared-dev-plugin does
// (types.UserConfigList), and with unknown keys as faults.
func TestTheDevicePluginReadsItsConfiguration(t *testing.T) {
	t.Parallel()
	docs, err := Node(server("172.16.11.5/24", "172.16.12.5/24"), Choice{Name: "rails"})
	if err != nil {
		t.Fatal(err)
	}
	data, ok := docs[2].Object["data"].(map[string]any)
	if !ok {
		t.Fatalf("%+v", docs[2])
	}
	type selectors struct {
		Vendors   []string `json:"vendors"`
		DeviceIDs []string `json:"deviceIDs"`
		Drivers   []string `json:"drivers"`
		IfNames   []string `json:"ifNames"`
		LinkTypes []string `json:"linkTypes"`
	}
	type resource struct {
		ResourceName   string    `json:"resourceName"`
		ResourcePrefix string    `json:"resourcePrefix"`
		RdmaHcaMax     int       `json:"rdmaHcaMax"`
		Selectors      selectors `json:"selectors"`
	}
	var got struct {
		PeriodicUpdateInterval *int       `json:"periodicUpdateInterval"`
		ConfigList             []resource `json:"configList"`
	}
	d := json.NewDecoder(bytes.NewReader([]byte(fmt.Sprint(data["config.json"]))))
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil {
		t.Fatal(err)
	}
	want := []resource{{ResourceName: "rails", RdmaHcaMax: 32, Selectors: selectors{Vendors: []string{"15b3"}, DeviceIDs: []string{"1021"}, LinkTypes: []string{"ether"}}}}
	if diff := cmp.Diff(want, got.ConfigList); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestTheDevicePluginOfTheQuickStartReadsTheConfiguration compares the name of the
// ConfigMap with the one that the DaemonSet of the examples mounts.
func TestTheDevicePluginOfTheQuickStartReadsTheConfiguration(t *testing.T) {
	t.Parallel()
	docs, err := Node(server("172.16.11.5/24", "172.16.12.5/24"), Choice{Name: "rails"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("../../../conf-examples/deploy/rdma/device-plugin/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var example map[string]any
	if err := yaml.Unmarshal(b, &example); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(example["metadata"], docs[2].Object["metadata"]); diff != "" {
		t.Errorf("the ConfigMap (-example +generated)\n%s", diff)
	}
}

// Names that no cluster accepts can be in a file. Terminals obey some characters.
func TestCommentsHaveNoControlCharacters(t *testing.T) {
	t.Parallel()
	docs, err := From([]byte(`kind: "Foo\nkind: Evil\e[2J\x9b2J"`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := Text(docs)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range text {
		if !unicode.IsPrint(r) && r != '\n' {
			t.Errorf("%q has the character %U", text, r)
		}
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && strings.Contains(line, "Evil") {
			t.Errorf("a line of a name is no comment: %q", line)
		}
	}
}
