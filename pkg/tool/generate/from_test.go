// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// comments returns all comments of documents, and their objects as JSON.
func comments(t *testing.T, docs []Document) string {
	t.Helper()
	var out strings.Builder
	for _, d := range docs {
		object, err := json.Marshal(d.Object)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString(strings.Join(d.Comments, "\n") + "\n" + string(object) + "\n")
	}
	return out.String()
}

// TestWhatIsLostIsNamed has keys of other stacks that change what a pod gets, and that nothing in
// roce-cni replaces.
func TestWhatIsLostIsNamed(t *testing.T) {
	t.Parallel()
	const (
		pool   = "kind: SpiderIPPool\nmetadata: {name: a}\nspec: {subnet: 10.1.0.0/16}\n---\n"
		multus = pool + "kind: SpiderMultusConfig\nmetadata: {name: net}\nspec: "
		nad    = "kind: NetworkAttachmentDefinition\nmetadata: {name: net}\nspec:\n  config: '"
	)
	for text, want := range map[string][]string{
		multus + `{cniType: macvlan, macvlan: {master: [e], ippools: {ipv4: [a, "b-*"]}}}`:           {"the pool b-*,", "not in the file"},
		multus + `{cniType: macvlan, macvlan: {master: [e], ippools: {ipv4: [missing], ipv6: [a]}}}`: {"SpiderIPPool missing is not in the file", "10.1.0.0/16"},
		multus + `{cniType: macvlan, macvlan: {master: [e], ippools: {ipv4: [a], ipv6: [missing]}}}`: {"SpiderIPPool missing is not in the file"},
		multus + `{cniType: macvlan, macvlan: {master: [e, f], bond: {name: b, mode: 4, options: "miimon=100"}, ippools: {ipv4: [a]}}}`: {
			"mode 4", "miimon=100",
		},
		multus + `{cniType: macvlan, coordinator: {hijackCIDR: [10.9.0.0/16], podMACPrefix: "02:42", txQueueLen: 1000, podDefaultRouteNIC: net1}, macvlan: {master: [e], ippools: {ipv4: [a]}}}`: {
			"spec.coordinator.hijackCIDR", "spec.coordinator.podMACPrefix", "spec.coordinator.txQueueLen", "spec.coordinator.podDefaultRouteNIC",
		},
		strings.Replace(multus, "{name: a}", "{name: a, labels: {version: 1}}", 1) + `{cniType: macvlan, macvlan: {master: [e], ippools: {ipv4: [a]}}}`: {"10.1.0.0/16"},
		multus + `{cniType: sriov, coordinator: {mode: underlay}, sriov: {ippools: {ipv4: [a]}}}`:                                                       {"Problem: coordinator.mode underlay"},
		nad + `{"name":"n","plugins":[{"type":"macvlan","master":"e"},{"type":"coordinator","mode":"underlay","hijackCIDR":["10.9.0.0/16"]}]}'`: {
			`\"hostLink\": {`, "plugins[1].hijackCIDR",
		},
		nad + `{"name":"n","plugins":[{"type":"sriov"},{"type":"coordinator","mode":"underlay"}]}'`: {"Problem: coordinator.mode underlay"},
		nad + `{"name":"n","plugins":[{"type":"macvlan","master":"e"},{"type":"sbr","table":50}]}'`: {"plugins[1].table"},
		nad + `{"name":"n","type":"macvlan","master":"e","ipam":{"type":"whereabouts","range":"10.1.0.0/16","enable_overlapping_ranges":false}}'`: {
			"ipam.enable_overlapping_ranges: false", "No two pods",
		},
		nad + `{"name":"n","type":"macvlan","master":"e","noneOfOurs":false,"neither":0}'`:                                                                          {"Dropped: noneOfOurs", "Dropped: neither"},
		multus + `{cniType: macvlan, enableCoordinator: false, macvlan: {master: [e], ippools: {ipv4: [a]}}}`:                                                       {"spec.enableCoordinator: false: roce always"},
		multus + `{cniType: macvlan, macvlan: {master: [e, f], ippools: {ipv4: [a]}}}`:                                                                              {"bond0", "names no mode"},
		multus + `{cniType: macvlan, macvlan: {master: [e, f], bond: {name: b, mode: 0}, ippools: {ipv4: [a]}}}`:                                                    {"with mode 0,"},
		"kind: SpiderMultusConfig\nmetadata: {name: net, annotations: {k8s.v1.cni.cncf.io/resourceName: r.io/x}}\nspec: {cniType: macvlan, macvlan: {master: [e]}}": {`"k8s.v1.cni.cncf.io/resourceName":"r.io/x"`},
		"kind: MacvlanNetwork\nmetadata: {name: net, annotations: {k8s.v1.cni.cncf.io/resourceName: r.io/x}}\nspec: {master: e}":                                    {`"k8s.v1.cni.cncf.io/resourceName":"r.io/x"`},
		"kind: NetworkAttachmentDefinition\nmetadata: {name: net, labels: {team: a, tier: b}, annotations: {k8s.v1.cni.cncf.io/bridgeName: br, x.io/owner: b}}\nspec: {config: '{\"name\":\"n\",\"type\":\"macvlan\",\"master\":\"e\"}'}": {
			"annotation k8s.v1.cni.cncf.io/bridgeName", "annotation x.io/owner", "label team", "label tier",
		},
		"kind: MacvlanNetwork\nmetadata: {name: net}\nspec: {master: e, ipam: '{\"type\": \"nv-ipam\", \"poolName\": \"My_Pool\"}'}": {
			"IPPool My_Pool is not in the file", `\"railPool\": \"my-pool\"`,
		},
		multus + `{cniType: macvlan, macvlan: {master: [e], ippools: {ipv4: [Missing.Pool]}}}`:   {`\"railPool\": \"missing-pool\"`},
		"kind: MacvlanNetwork\nmetadata: {name: net, annotations: {a: true}}\nspec: {master: e}": {"document 1: NOT converted"},
		"kind: List\nitems: [{kind: MacvlanNetwork, metadata: {name: net}, spec: {}, master: e}, {kind: MacvlanNetwork, metadata: {name: good}, spec: {master: e}}]": {
			"items[0]: NOT converted", `"master" stands beside spec`, `"name":"good-roce"`,
		},
		"kind: NetworkAttachmentDefinition\nmetadata: {name: net}\nspec: {}":           {"net: not converted, keep it", "Multus reads a file of the node"},
		"kind: MacvlanNetwork\nmetadata: {name: net}\nspec: {master: e}\n---\nkind: [": {"document 2: NOT converted"},
	} {
		docs, _ := From([]byte(text))
		got := comments(t, docs)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s\nis converted without %q:\n%s", text, w, got)
			}
		}
	}
}

// TestPoolsOfOthersAreNotThoseOfNVIDIA has pools of one kind and name, of which a network uses one.
func TestPoolsOfOthersAreNotThoseOfNVIDIA(t *testing.T) {
	t.Parallel()
	const (
		calico      = "apiVersion: crd.projectcalico.org/v1\nkind: IPPool\nmetadata: {name: p}\nspec: {cidr: 10.9.0.0/16, ipipMode: Always}\n---\n"
		whereabouts = "apiVersion: whereabouts.cni.cncf.io/v1alpha1\nkind: IPPool\nmetadata: {name: p}\nspec: {range: 10.8.0.0/16, allocations: {}}\n---\n"
		nvidia      = "apiVersion: nv-ipam.nvidia.com/v1alpha1\nkind: IPPool\nmetadata: {name: p}\nspec: {subnet: 10.1.0.0/16, perNodeBlockSize: 16, unknownKey: 5}\n---\n"
		network     = "kind: MacvlanNetwork\nmetadata: {name: net}\nspec: {master: e, ipam: '{\"type\": \"nv-ipam\", \"poolName\": \"p\"}'}\n---\n"
	)
	for text, want := range map[string][]string{
		nvidia + calico + whereabouts + network: {"10.1.0.0/16", "Dropped: spec.unknownKey", "IPPool p: not converted", "of crd.projectcalico.org", "of whereabouts.cni.cncf.io"},
		calico + network:                        {"The IPPool p is not in the file", "of crd.projectcalico.org"},
		whereabouts:                             {"of whereabouts.cni.cncf.io"},
		nvidia + strings.Replace(nvidia, "name: p", "name: q", 1): {"IPPool p: not converted, because no network", "IPPool q: not converted, because no network"},
	} {
		docs, err := From([]byte(text))
		if err != nil {
			t.Error(err)
		}
		got := comments(t, docs)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s\nis converted without %q:\n%s", text, w, got)
			}
		}
	}
}

// TestEachNodeOfACIDRPoolLeavesOutItsOwnAddresses, and not those of other nodes: a rack with
// addresses outside of its subnet would be refused.
func TestEachNodeOfACIDRPoolLeavesOutItsOwnAddresses(t *testing.T) {
	t.Parallel()
	docs, err := From([]byte(`
kind: CIDRPool
metadata: {name: p}
spec:
  cidr: 10.0.0.0/16
  gatewayIndex: 1
  exclusions: [{startIP: 10.0.1.200, endIP: 10.0.2.9}, {startIP: 10.0.9.1, endIP: 10.0.9.2}]
  perNodeExclusions: [{startIndex: 20, endIndex: 30}]
  staticAllocations: [{nodeName: a, prefix: 10.0.1.0/24}, {nodeName: b, prefix: 10.0.2.0/24}]
---
kind: MacvlanNetwork
metadata: {name: net}
spec: {master: e, ipam: '{"type": "nv-ipam", "poolName": "p", "poolType": "cidrpool"}'}
`))
	if err != nil {
		t.Error(err)
	}
	got := map[string][]string{}
	for _, d := range docs {
		if spec, ok := d.Object["spec"].(block.PoolSpec); ok {
			for _, r := range spec.Racks {
				got[r.Name] = append([]string{r.Rails[0].Subnets[0].Gateway}, r.Rails[0].Subnets[0].Exclude...)
			}
		}
	}
	want := map[string][]string{"a": {"10.0.1.1", "10.0.1.200-10.0.1.255", "10.0.1.20-10.0.1.30"}, "b": {"10.0.2.1", "10.0.2.0-10.0.2.9", "10.0.2.20-10.0.2.30"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestNamesOfRailPools: they are DNS labels, and two pools have one name only if they have the same
// addresses.
func TestNamesOfRailPools(t *testing.T) {
	t.Parallel()
	var in strings.Builder
	for _, n := range [][2]string{
		{"rail_A", "10.1.0.0/16"},
		{"rail-a", "10.2.0.0/16"},
		{"rail.a", "10.3.0.0/16"},
		{"another", "10.2.0.0/16"},
		{"the.network.of.the.first.rail.of.node.1.2", "10.4.0.0/16"},
	} {
		fmt.Fprintf(&in, "kind: MacvlanNetwork\nmetadata: {name: %s}\nspec: {master: e, ipam: '{\"type\": \"whereabouts\", \"range\": \"%s\"}'}\n---\n", n[0], n[1])
	}
	docs, err := From([]byte(in.String()))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	uses := regexp.MustCompile(`railPool\\": \\"([^"\\]*)`)
	for _, d := range docs {
		if spec, ok := d.Object["spec"].(block.PoolSpec); ok {
			got = append(got, fmt.Sprintf("%v: %s", d.Object["metadata"].(map[string]any)["name"], spec.Rails[0].Subnets[0].Subnet)) //nolint:forcetypeassert // as railPool makes it
			continue
		}
		got = append(got, "a network of "+uses.FindStringSubmatch(comments(t, []Document{d}))[1])
	}
	want := []string{
		"rail-a: 10.1.0.0/16", "a network of rail-a", "rail-a-2: 10.2.0.0/16", "a network of rail-a-2", "rail-a-2-2: 10.3.0.0/16", "a network of rail-a-2-2",
		"a network of rail-a-2", "the-network-of-the-first-rail-of-node: 10.4.0.0/16", "a network of the-network-of-the-first-rail-of-node",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
