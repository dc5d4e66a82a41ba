// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// railed is a cluster with four nodes that report a rail.
type railed struct {
	*ground.Cluster
	t      *testing.T
	agents map[string]*rest.Config // by node
}

// others is what people and kubelet have written into a node.
const others = `{"spec": {"unschedulable": true, "taints": [{"key": "nvidia.com/gpu", "value": "v", "effect": "NoExecute"}]},
	"metadata": {"labels": {"rack": "7"}, "annotations": {"a": "b"}}}`

const othersStatus = `{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "m"}],
	"capacity": {"cpu": "8"}, "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}`

func withRails(t *testing.T) railed {
	t.Helper()
	need(t, "../../../bin/rocectl")
	c := railed{own(t), t, map[string]*rest.Config{}}
	deploy(t, c.Cluster)
	for _, path := range kustomized(t, deployment+"/rail-taint") {
		applyFile(t, c.Cluster, path)
	}
	admin := client(t, c.Admin())
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		node(t, admin, name)
		token, err := ground.AgentToken(t.Context(), admin, "roce-cni", "roce-cni-agent", name)
		must(t, err)
		c.agents[name] = c.As(token)
		_, err = admin.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(others), meta.PatchOptions{})
		must(t, err)
		_, err = admin.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(othersStatus), meta.PatchOptions{}, "status")
		must(t, err)
		c.reports(name)
	}
	return c
}

// reports lets the agent of a node report faults of its rail.
func (c railed) reports(name string, faults ...fleet.Fault) {
	c.t.Helper()
	must(c.t, api(c.t, c.agents[name]).Publish(c.t.Context(), name, report(9000).With(map[string][]fleet.Fault{"ens1f0np0": faults})))
}

// rails returns the condition and the taint of a node, and the node without them.
func (c railed) rails(ctx context.Context, name string) (is string, rest core.Node, err error) {
	n, err := client(c.t, c.Admin()).CoreV1().Nodes().Get(ctx, name, meta.GetOptions{})
	if err != nil {
		return "", core.Node{}, err
	}
	rest = *n
	rest.ManagedFields, rest.ResourceVersion, rest.Status.Conditions, rest.Spec.Taints = nil, "", nil, nil
	for _, one := range n.Status.Conditions {
		if one.Type == kube.RailsCondition {
			is += string(one.Status) + ": " + one.Message
		} else {
			rest.Status.Conditions = append(rest.Status.Conditions, one)
		}
	}
	for _, one := range n.Spec.Taints {
		if one.Key == kube.RailTaint {
			is += " " + string(one.Effect)
		} else {
			rest.Spec.Taints = append(rest.Spec.Taints, one)
		}
	}
	return is, rest, nil
}

func (c railed) become(name, want string) {
	c.t.Helper()
	eventually(c.t, name+" is "+want, func(ctx context.Context) error {
		got, _, err := c.rails(ctx, name)
		if err == nil && got != want {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	})
}

// TestANodeWithADeadRailTakesNoNewPods has reports of agents, the reaper as it is deployed, and
// an API server.
func TestANodeWithADeadRailTakesNoNewPods(t *testing.T) {
	t.Parallel()
	c := withRails(t)
	_, before, err := c.rails(t.Context(), "n1")
	must(t, err)
	as := account(t, c.Cluster, "roce-cni-gc", "n1")
	const well, down = "True: each rail can serve new pods", "False: rail 0 (ens1f0np0): Down"
	reaper := runs(t, as, "gc", "--cluster", "--rails", "1s", "--interval", "10s", "--rail-taint")
	for name := range c.agents {
		c.become(name, well)
	}
	c.reports("n1", fleet.Down)
	c.become("n1", down+" NoSchedule")
	c.reports("n1")
	c.become("n1", well)
	_, after, err := c.rails(t.Context(), "n1")
	must(t, err)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("something else of the node has changed (-before +after)\n%s", diff)
	}
	if n := len(after.Spec.Taints); n != 1 {
		t.Errorf("%d taints of others: %v", n, after.Spec.Taints)
	}

	for name := range c.agents {
		c.reports(name, fleet.Down)
	}
	eventually(t, "all nodes have the condition, and half of them the taint", func(ctx context.Context) error {
		var is []string
		for name := range c.agents {
			got, _, err := c.rails(ctx, name)
			must(t, err)
			is = append(is, strings.TrimPrefix(got, down))
		}
		if slices.Sort(is); !slices.Equal(is, []string{"", "", " NoSchedule", " NoSchedule"}) {
			return fmt.Errorf("they are %q", is)
		}
		return nil
	})
	reaper.end()
	reaper = runs(t, as, "gc", "--cluster", "--rails", "1s", "--interval", "10s")
	for name := range c.agents {
		c.become(name, down)
	}
	must(t, kinds(t, c.Cluster, "railnodes").Delete(t.Context(), "n2", meta.DeleteOptions{}))
	c.become("n2", "Unknown: there is no RailNode of the node: its agent reports nothing")
	reaper.end()
}

// TestAReaperAtRestWritesNoNode: nodes are written only on change, whatever others report.
func TestAReaperAtRestWritesNoNode(t *testing.T) {
	t.Parallel()
	c := withRails(t)
	runs(t, account(t, c.Cluster, "roce-cni-gc", "n1"), "gc", "--cluster", "--rails", "100ms", "--interval", "10s", "--rail-taint")
	c.reports("n2", fleet.Down)
	c.become("n2", "False: rail 0 (ens1f0np0): Down NoSchedule")
	for name := range c.agents {
		if name != "n2" {
			c.become(name, "True: each rail can serve new pods")
		}
	}
	versions := func() (out []string) {
		for _, name := range []string{"n1", "n2"} {
			n, err := client(t, c.Admin()).CoreV1().Nodes().Get(t.Context(), name, meta.GetOptions{})
			must(t, err)
			out = append(out, name+" "+n.ResourceVersion)
		}
		return out
	}
	before := versions()
	for i := range 20 {
		c.reports("n2", fleet.Down)
		c.reports("n1")
		c.reports("n3", []fleet.Fault{fleet.Down, fleet.GIDTableFull}[:i%3]...) // an agent that was taken over
	}
	for _, other := range []string{"n1", "n2"} {
		if err := api(t, c.agents["n3"]).Publish(t.Context(), other, report(1500)); !apierrors.IsForbidden(err) {
			t.Errorf("the agent of n3 reports for %s: %v", other, err)
		}
	}
	c.reports("n3")
	c.reports("n4", fleet.Down) // the look that writes it has seen the others
	c.become("n4", "False: rail 0 (ens1f0np0): Down NoSchedule")
	if diff := cmp.Diff(before, versions()); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
}

// TestTheReaperWritesNothingElseOfANode goes past the program in each way that a client with its
// token has, and an agent has none.
func TestTheReaperWritesNothingElseOfANode(t *testing.T) {
	t.Parallel()
	c := withRails(t)
	token, err := ground.AgentToken(t.Context(), client(t, c.Admin()), "roce-cni", "roce-cni-gc", "n1")
	must(t, err)
	patch := func(who *rest.Config, kind types.PatchType, body string, sub ...string) error {
		_, err := client(t, who).CoreV1().Nodes().Patch(t.Context(), "n2", kind, []byte(body), meta.PatchOptions{DryRun: []string{meta.DryRunAll}}, sub...)
		return err
	}
	const gpu, ours = `{"key": "nvidia.com/gpu", "value": "v", "effect": "NoExecute"}`, `{"key": "roce-cni.io/rail-not-ready", "effect": "NoSchedule"}`
	for body, allowed := range map[string]bool{
		`{"spec": {"taints": [` + gpu + `, ` + ours + `]}}`:                                                             true,
		`{"spec": {"taints": [` + gpu + `]}}`:                                                                           true,
		`{"spec": {"taints": [` + gpu + `, {"key": "roce-cni.io/rail-not-ready", "effect": "NoExecute"}]}}`:             false,
		`{"spec": {"taints": [` + gpu + `, {"key": "roce-cni.io/rail-not-ready", "effect": "PreferNoSchedule"}]}}`:      false,
		`{"spec": {"taints": [` + ours + `]}}`:                                                                          false,
		`{"spec": {"taints": null}}`:                                                                                    false,
		`{"spec": {"taints": [` + gpu + `, {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]}}`:           false,
		`{"spec": {"taints": [` + strings.ReplaceAll(gpu, `"v"`, `"w"`) + `]}}`:                                         false,
		`{"spec": {"unschedulable": null, "taints": [{"key": "nvidia.com/gpu", "value": "v", "effect": "NoExecute"}]}}`: false,
		`{"spec": {"unschedulable": false}}`:                                                                            false,
		`{"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}}`:                                             false,
		`{"spec": {"providerID": "aws:///i-1"}}`:                                                                        false,
		`{"metadata": {"labels": {"rack": "8"}}}`:                                                                       false,
		`{"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}`:                                       false,
		`{"metadata": {"annotations": {"a": null}}}`:                                                                    false,
		`{"metadata": {"finalizers": ["example.org/x"]}}`:                                                               false,
		`{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}]}}`:           false,
	} {
		err := patch(c.As(token), types.MergePatchType, body)
		if (err == nil) != allowed || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("the reaper writes %s: %v", body, err)
		}
		if err := patch(c.agents["n2"], types.MergePatchType, body); !apierrors.IsForbidden(err) {
			t.Errorf("the agent writes %s: %v", body, err)
		}
	}
	for body, allowed := range map[string]bool{
		`{"status": {"conditions": [{"type": "RoceRailsReady", "status": "False", "reason": "R", "message": "m"}]}}`: true,
		`{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`:                                         false,
		`{"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}`:                                        false,
		`{"status": {"conditions": [{"type": "NetworkUnavailable", "status": "True"}]}}`:                             false,
		`{"status": {"capacity": {"cpu": "9"}}}`:                                                                     false,
		`{"status": {"allocatable": {"rdma/rails": "0"}}}`:                                                           false,
		`{"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.2"}]}}`:                                false,
		`{"status": {"nodeInfo": {"machineID": "0123456789abcdef0123456789abcdef"}}}`:                                false,
		`{"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}`:                                          false,
		`{"status": {"images": [{"names": ["x"], "sizeBytes": 1}]}}`:                                                 false,
		`{"status": {"volumesInUse": ["x"]}}`:                                                                        false,
		`{"status": {"phase": "Terminated"}}`:                                                                        false,
		`{"metadata": {"labels": {"rack": "8"}}}`:                                                                    false,
		`{"metadata": {"annotations": {"x": "y"}}}`:                                                                  false,
	} {
		err := patch(c.As(token), types.StrategicMergePatchType, body, "status")
		if (err == nil) != allowed || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("the reaper writes the status %s: %v", body, err)
		}
		if err := patch(c.agents["n2"], types.StrategicMergePatchType, body, "status"); !apierrors.IsForbidden(err) {
			t.Errorf("the agent writes the status %s: %v", body, err)
		}
	}
	for what, err := range map[string]error{
		"deletes a Node": client(t, c.As(token)).CoreV1().Nodes().Delete(t.Context(), "n2", meta.DeleteOptions{DryRun: []string{meta.DryRunAll}}),
		"puts a Node": func() error {
			n, err := client(t, c.Admin()).CoreV1().Nodes().Get(t.Context(), "n2", meta.GetOptions{})
			must(t, err)
			_, err = client(t, c.As(token)).CoreV1().Nodes().Update(t.Context(), n, meta.UpdateOptions{})
			return err
		}(),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("the reaper %s: %v", what, err)
		}
	}
}
