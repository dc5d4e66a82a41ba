// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
)

// Node has the fields of a Node object that we need.
type Node struct {
	Name      string
	UID       string
	Labels    map[string]string
	MachineID string // as kubelet reports it; "" until it does: block.Node.Confirm
	Ready     bool   // the condition of that name is True
	// Rails is the condition RailsCondition, and Tainted says whether the node has the
	// taint RailTaint.
	Rails   fleet.Condition
	Tainted bool
}

// RailsCondition is the condition of a Node that says whether its rails can serve new pods.
const RailsCondition = "RoceRailsReady"

// RailTaint is the key of the taint, of effect NoSchedule, that keeps new pods from a node.
const RailTaint = "roce-cni.io/rail-not-ready"

// node is the form of the API server. A whole Node has about 10 kB, of which we need little.
type node struct {
	Metadata struct {
		Name            string            `json:"name"`
		UID             string            `json:"uid"`
		Labels          map[string]string `json:"labels"`
		ResourceVersion string            `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		Taints []core.Taint `json:"taints"`
	} `json:"spec"`
	Status struct {
		NodeInfo   core.NodeSystemInfo  `json:"nodeInfo"`
		Conditions []core.NodeCondition `json:"conditions"`
	} `json:"status"`
}

func (n node) node() Node {
	out := Node{Name: n.Metadata.Name, UID: n.Metadata.UID, Labels: n.Metadata.Labels, MachineID: n.Status.NodeInfo.MachineID}
	for _, c := range n.Status.Conditions {
		out.Ready = out.Ready || c.Type == core.NodeReady && c.Status == core.ConditionTrue
		if c.Type == RailsCondition {
			out.Rails = fleet.Condition{Status: string(c.Status), Reason: c.Reason, Message: c.Message}
		}
	}
	out.Tainted = slices.ContainsFunc(n.Spec.Taints, isRailTaint)
	return out
}

// Node returns the Node of that name as it was at some time after the call. The
// errors are block.Store's for Get.
func (a *API) Node(ctx context.Context, name string) (Node, error) {
	var out node
	if err := a.do(ctx, a.core.Get().Resource("nodes").Name(name), "read node "+name, &out); err != nil {
		return Node{}, err
	}
	return out.node(), nil
}

func isRailTaint(t core.Taint) bool { return t.Key == RailTaint }

// SetRails gives a Node the condition and the taint, or takes the taint away, and changes nothing
// else. The errors are those of Node; block.ErrConflict: the Node has changed meanwhile, and keeps
// its taints.
func (a *API) SetRails(ctx context.Context, name string, c fleet.Condition, taint bool) error {
	const action = "write rails of node "
	var now node
	if err := a.do(ctx, a.core.Get().Resource("nodes").Name(name), "read node "+name, &now); err != nil {
		return err
	}
	was := now.node()
	if was.Rails != c {
		at := a.now().UTC().Format(time.RFC3339)
		condition := map[string]string{"type": RailsCondition, "status": c.Status, "reason": c.Reason, "message": c.Message, "lastHeartbeatTime": at}
		if was.Rails.Status != c.Status {
			condition["lastTransitionTime"] = at
		}
		// Decoding keeps what the answer does not have.
		now = node{}
		request := a.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(name).SubResource("status") // it merges conditions by their type
		if err := a.send(ctx, request, action+name, map[string]any{"status": map[string]any{"conditions": []any{condition}}}, &now); err != nil {
			return err
		}
	}
	if was.Tainted == taint {
		return nil
	}
	taints := slices.DeleteFunc(now.Spec.Taints, isRailTaint)
	if taint {
		taints = append(taints, core.Taint{Key: RailTaint, Effect: core.TaintEffectNoSchedule})
	}
	err := a.send(ctx, a.core.Patch(types.MergePatchType).Resource("nodes").Name(name), action+name, map[string]any{
		"metadata": map[string]string{"uid": now.Metadata.UID, "resourceVersion": now.Metadata.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	}, nil)
	if cnierr.CodeOf(err) == cnierr.NotAvailable {
		return cnierr.New(cnierr.NotAvailable, "write taints of node", name,
			"give the reaper the right: kubectl apply -k conf-examples/deploy/rail-taint; or, without --rail-taint: kubectl taint nodes "+name+" "+RailTaint+"-", "%w", err)
	}
	return err
}

// Nodes returns all nodes, in any order, as they were at some time after the call. The errors are
// block.Store's for List.
func (a *API) Nodes(ctx context.Context) ([]Node, error) {
	objects, err := items[node](ctx, a, a.core, "nodes", url.Values{}, block.Latest)
	if err != nil {
		return nil, err
	}
	out := make([]Node, 0, len(objects))
	for _, n := range objects {
		out = append(out, n.node())
	}
	return out, nil
}

// Machine is block.Cluster's.
func (a *API) Machine(ctx context.Context, name string) (string, error) {
	n, err := a.Node(ctx, name)
	return n.MachineID, err
}

// Bound is block.Cluster's. The phase does not count: the containers of a failed pod may still
// run if the node has not heard of it.
func (a *API) Bound(ctx context.Context, name string) (bool, error) {
	selector := fields.OneTermEqualSelector("spec.nodeName", name).String()
	return a.any(ctx, a.core.Get().Resource("pods").Param("fieldSelector", selector), "list pods of node "+name)
}

// Ready is sticky.Cluster's.
func (a *API) Ready(ctx context.Context, name string) (bool, error) {
	n, err := a.Node(ctx, name)
	if errors.Is(err, block.ErrNotFound) {
		return false, nil
	}
	return n.Ready, err
}

// Runs is sticky.Cluster's. An agent has written the names. The API server finds one pod by its
// key, so the request costs little.
func (a *API) Runs(ctx context.Context, namespace, pod, node string) (bool, error) {
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(pod)) > 0 {
		return false, nil
	}
	selector := fields.AndSelectors(fields.OneTermEqualSelector("metadata.name", pod), fields.OneTermEqualSelector("spec.nodeName", node)).String()
	return a.any(ctx, a.core.Get().Namespace(namespace).Resource("pods").Param("fieldSelector", selector), "find pod "+namespace+"/"+pod)
}

const railNodes = "railnodes"

// RailNodes returns all reports, in any order, from the cache of the API server. The errors are
// block.Store's for List.
func (a *API) RailNodes(ctx context.Context) ([]RailNode, error) {
	return items[RailNode](ctx, a, a.ours, railNodes, url.Values{}, block.Cached)
}

// Publish writes the report of a node, which must have a Node object. block.ErrNotFound: there
// is no Node object.
func (a *API) Publish(ctx context.Context, name string, r fleet.Report) error {
	what := "publish rails of node " + name
	request := a.ours.Patch(types.MergePatchType).Resource(railNodes).Name(name)
	var interfaces, states []string
	for _, rail := range r.Rails {
		interfaces = append(interfaces, rail.Netdev)
		if !slices.Contains(states, rail.State) {
			states = append(states, rail.State)
		}
	}
	status := NodeStatus{metav1.NewMicroTime(a.now()), strings.Join(interfaces, ","), strings.Join(states, ","), r}
	err := a.send(ctx, request, what, map[string]NodeStatus{"status": status}, nil)
	if !errors.Is(err, block.ErrNotFound) {
		return err
	}
	node, err := a.Node(ctx, name)
	if err != nil {
		return err
	}
	return a.send(ctx, a.ours.Post().Resource(railNodes).SetHeader("Content-Type", asJSON), what, RailNode{
		TypeMeta: metav1.TypeMeta{APIVersion: Version().String(), Kind: "RailNode"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(node.UID)}},
		},
		Status: status,
	}, nil)
}
