// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// report is that of a node with one rail.
func report(mtu int) fleet.Report {
	return fleet.Report{Rails: []fleet.Rail{{
		Rail: 0, Netdev: "ens1f0np0", PCI: "0000:13:00.0", Device: "mlx5_0", Port: 1, State: "ACTIVE", Speed: 400000, MTU: mtu, Vendor: "15b3", DeviceID: "1021",
		Driver: "mlx5_core 6.8.0", Firmware: "28.39.1002", GPUs: []string{"GPU0"}, Distance: "PIX", GIDs: 256, Switch: "leaf-03", SwitchPort: "swp12",
	}, {Rail: 1, Netdev: "ens2f0np0", State: "DOWN"}}}
}

// reported returns the report of a node, as people get it.
func (g guarded) reported(ctx context.Context, t *testing.T, name string) (kube.RailNode, bool) {
	t.Helper()
	all, err := api(t, g.Admin()).RailNodes(ctx)
	must(t, err)
	for _, n := range all {
		if n.Name == name {
			return n, true
		}
	}
	return kube.RailNode{}, false
}

// reports lets the agents of both nodes report.
func (g guarded) reports(t *testing.T) {
	t.Helper()
	for n, who := range map[string]*rest.Config{"a": g.a, "b": g.b} {
		must(t, api(t, who).Publish(t.Context(), g.pool+"-"+n, report(9000)))
	}
}

func TestAnAgentReportsItsNodeAlone(t *testing.T) {
	t.Parallel()
	g := guard(t, "reports")
	g.reports(t)
	ctx := t.Context()
	node(t, client(t, g.Admin()), g.pool+"-c")
	for _, foe := range []struct {
		name   string
		config *rest.Config
		node   string
	}{
		{"the agent of another node", g.a, "b"},
		{"the agent of another node, for a node without a report", g.a, "c"},
		{"an agent on no node", g.nowhere, "a"},
		{"another user in the name of the agents", g.impersonated(), "a"},
		{"the reaper", g.gc, "a"},
	} {
		if err := api(t, foe.config).Publish(ctx, g.pool+"-"+foe.node, report(1500)); !apierrors.IsForbidden(err) {
			t.Errorf("%s reports: %v", foe.name, err)
		}
	}
	for _, n := range []string{"a", "b"} {
		before, err := kinds(t, g.Cluster, "railnodes").Get(ctx, g.pool+"-"+n, meta.GetOptions{})
		must(t, err)
		must(t, api(t, map[string]*rest.Config{"a": g.a, "b": g.b}[n]).Publish(ctx, g.pool+"-"+n, report(9000)))
		after, err := kinds(t, g.Cluster, "railnodes").Get(ctx, g.pool+"-"+n, meta.GetOptions{})
		must(t, err)
		if before.GetResourceVersion() == after.GetResourceVersion() {
			t.Errorf("the same report of node %s has the same version, as if its agent had ended", n)
		}
	}
	must(t, api(t, g.a).Publish(ctx, g.pool+"-a", report(1500)))
	eventually(t, "the report is read", func(ctx context.Context) error {
		got, _ := g.reported(ctx, t, g.pool+"-a")
		if diff := cmp.Diff(report(1500), got.Status.Report); diff != "" {
			return fmt.Errorf("(-want +got)\n%s", diff)
		}
		return nil
	})
	if row := strings.Fields(kubectl(t, g.Cluster, "get", "railnodes", g.pool+"-a", "--no-headers")); len(row) != 4 || row[1] != "ens1f0np0,ens2f0np0" || row[2] != "ACTIVE,DOWN" {
		t.Errorf("kubectl get prints %q, want all interfaces and states", row)
	}
	if _, there := g.reported(ctx, t, g.pool+"-c"); there {
		t.Error("there is a report of node c")
	}
}

// TestAReportHasNoMoreThanItNeeds: an agent that was taken over can put nothing into its
// object that has an effect on others, and no more than the schema allows.
func TestAReportHasNoMoreThanItNeeds(t *testing.T) {
	t.Parallel()
	g := guard(t, "needs")
	g.reports(t)
	ctx := t.Context()
	as, err := dynamic.NewForConfig(g.a)
	must(t, err)
	ofA := as.Resource(kube.Version().WithResource("railnodes"))
	for what, patch := range map[string]string{
		"a label":         `{"metadata": {"labels": {"x": "y"}}}`,
		"an annotation":   `{"metadata": {"annotations": {"x": "y"}}}`,
		"a finalizer":     `{"metadata": {"finalizers": ["example.org/x"]}}`,
		"no owner":        `{"metadata": {"ownerReferences": null}}`,
		"another owner":   `{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "1"}]}}`,
		"a second report": `{"metadata": {"name": "` + g.pool + `-b"}}`,
	} {
		_, err := ofA.Patch(ctx, g.pool+"-a", types.MergePatchType, []byte(patch), meta.PatchOptions{})
		if !apierrors.IsForbidden(err) && !apierrors.IsBadRequest(err) && !apierrors.IsInvalid(err) {
			t.Errorf("an agent writes %s: %v", what, err)
		}
	}
	if err := ofA.Delete(ctx, g.pool+"-a", meta.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an agent deletes its report: %v", err)
	}
	must(t, kinds(t, g.Cluster, "railnodes").Delete(ctx, g.pool+"-a", meta.DeleteOptions{}))
	const owner = "apiVersion: v1, kind: Node, name: needs-a, uid: u"
	for metadata, allowed := range map[string]bool{
		"{name: needs-a, ownerReferences: [{" + owner + "}]}": true,
		"{name: needs-a}": false,
		"{name: needs-a, ownerReferences: [{apiVersion: v1, kind: Node, name: needs-b, uid: u}]}":     false,
		"{name: needs-a, ownerReferences: [{" + owner + ", blockOwnerDeletion: true}]}":               false,
		"{name: needs-a, labels: {x: z}, ownerReferences: [{" + owner + "}]}":                         false,
		"{name: needs-a, annotations: {x: z}, ownerReferences: [{" + owner + "}]}":                    false,
		"{name: needs-a, finalizers: [example.org/x], ownerReferences: [{" + owner + "}]}":            false,
		"{name: elsewhere, ownerReferences: [{apiVersion: v1, kind: Node, name: elsewhere, uid: u}]}": false,
	} {
		o := railNode(t, "{metadata: "+metadata+", status: {rails: []}}")
		if _, err := ofA.Create(ctx, o, meta.CreateOptions{DryRun: []string{meta.DryRunAll}}); allowed != (err == nil) || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("an agent makes %s: %v", metadata, err)
		}
	}
}

// railNode makes one from YAML.
func railNode(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	must(t, yaml.UnmarshalStrict([]byte(text), &o.Object))
	o.SetAPIVersion(kube.Version().String())
	o.SetKind("RailNode")
	return o
}

func TestAReportIsBounded(t *testing.T) {
	t.Parallel()
	all := kinds(t, shared(t), "railnodes")
	var many, most []string
	for i := range 33 {
		many = append(many, fmt.Sprintf("{rail: %d}", i))
	}
	texts := func(of map[string]int) string {
		var out []string
		for key, size := range of {
			out = append(out, fmt.Sprintf("%s: %q", key, strings.Repeat("x", size)))
		}
		return strings.Join(out, ", ")
	}
	gpus := "gpus: [" + strings.TrimSuffix(strings.Repeat(strings.Repeat("x", 16)+", ", 16), ", ") + "]"
	for i := range 32 {
		most = append(most, fmt.Sprintf("{rail: %d, %s, %s}", i, gpus, texts(map[string]int{
			"netdev": 15, "pci": 32, "device": 63, "state": 16, "vendor": 4, "deviceID": 4, "driver": 64, "firmware": 32, "distance": 8, "switch": 64, "switchPort": 64,
		})))
	}
	for spec, want := range map[string]string{
		"rails: []": "",
		"rails: [" + strings.Join(most, ", ") + "]":                       "",
		"rails: [" + strings.Join(many, ", ") + "]":                       "must have at most 32 items",
		"rails: [{rail: 1}, {rail: 1}]":                                   "Duplicate value",
		"rails: [{rail: 32}]":                                             "less than or equal to 31",
		"rails: [{netdev: ens1}]":                                         "rail: Required value",
		`rails: [{rail: 1, switch: "leaf\x1b[2J"}]`:                       "should match",
		`rails: [{rail: 1, firmware: "\u202e"}]`:                          "should match",
		"rails: [{rail: 1, " + texts(map[string]int{"switch": 65}) + "}]": "than 64",
		"rails: [{rail: 1, gpus: [" + strings.Repeat("x, ", 16) + "x]}]":  "must have at most 16 items",
		"rails: [{rail: 1, color: red}]":                                  "unknown field",
		"rails: [{rail: 1, faults: [Down, NeighbourLost, GIDTableFull]}]": "",
		"rails: [{rail: 1, faults: [Down, Down]}]":                        "Duplicate value",
		"rails: [{rail: 1, faults: [AsIWrite]}]":                          "Unsupported value",
	} {
		o := railNode(t, "{metadata: {name: bounded}, status: {"+spec+"}}")
		_, err := all.Create(t.Context(), o, meta.CreateOptions{DryRun: []string{meta.DryRunAll}, FieldValidation: meta.FieldValidationStrict})
		says(t, spec, err, want)
	}
}

// TestANodeReportsItsRailsToARealServer runs the agent with the rights of its account. The
// report has no rails if the machine has no RDMA device.
func TestANodeReportsItsRailsToARealServer(t *testing.T) {
	t.Parallel()
	c := pooled(t)
	m := joins(t, c, "n1")
	m.agent = runs(t, m.kubeconfig, append(m.args(), "--rails=100ms")...)
	it, err := api(t, c.Admin()).Node(t.Context(), "n1")
	must(t, err)
	is := func(ctx context.Context) error {
		o, err := kinds(t, c, "railnodes").Get(ctx, "n1", meta.GetOptions{})
		if err != nil {
			return err
		}
		if owners := o.GetOwnerReferences(); len(owners) != 1 || owners[0].Kind != "Node" || owners[0].Name != "n1" || string(owners[0].UID) != it.UID {
			return fmt.Errorf("its owners are %v, and the Node is %s", owners, it.UID)
		}
		return nil
	}
	eventually(t, "a report", is)
	m.agent.end()
	must(t, kinds(t, c, "railnodes").Delete(t.Context(), "n1", meta.DeleteOptions{}))
	m.agent = runs(t, m.kubeconfig, append(m.args(), "--rails=100ms")...)
	eventually(t, "a report of the next agent", is)
}
