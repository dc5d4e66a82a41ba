// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"context"
	"errors"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
)

// Nodes accesses the Nodes of a cluster and the pods bound to them. It is a
// sticky.Cluster.
type Nodes struct{ api *API }

// Node has the fields of a Node object that we need.
type Node struct {
	Name      string
	UID       string
	Labels    map[string]string
	MachineID string // as kubelet reports it; "" until it does: block.Node.Confirm
	Ready     bool   // the condition of that name is True
}

// node is the form of the API server. A whole Node has about 10 kB, and we need only
// a few fields.
type node struct {
	Metadata struct {
		Name   string            `json:"name"`
		UID    string            `json:"uid"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Status struct {
		NodeInfo struct {
			MachineID string `json:"machineID"`
		} `json:"nodeInfo"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

func (n node) node() Node {
	out := Node{Name: n.Metadata.Name, UID: n.Metadata.UID, Labels: n.Metadata.Labels, MachineID: n.Status.NodeInfo.MachineID}
	for _, c := range n.Status.Conditions {
		out.Ready = out.Ready || c.Type == "Ready" && c.Status == "True"
	}
	return out
}

// Node returns the Node of that name as it was at some time after the call. The
// errors are block.Store's for Get.
func (s Nodes) Node(ctx context.Context, name string) (Node, error) {
	var out node
	if err := s.api.do(ctx, s.api.core.Get().Resource("nodes").Name(name), "read node "+name, &out); err != nil {
		return Node{}, err
	}
	return out.node(), nil
}

// All returns all nodes, in any order, as they were at some time after the call.
// The errors are block.Store's for List.
func (s Nodes) All(ctx context.Context) ([]Node, error) {
	objects, err := items[node](ctx, s.api, s.api.core, "nodes", url.Values{}, block.Latest)
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
func (s Nodes) Machine(ctx context.Context, name string) (string, error) {
	n, err := s.Node(ctx, name)
	return n.MachineID, err
}

// Bound is block.Cluster's. It asks for one pod in any phase: the containers of a
// failed pod may still run if the node has not heard of it.
func (s Nodes) Bound(ctx context.Context, name string) (bool, error) {
	selector := fields.OneTermEqualSelector("spec.nodeName", name).String()
	return s.api.any(ctx, s.api.core.Get().Resource("pods").Param("fieldSelector", selector), "list pods of node "+name)
}

// Ready is sticky.Cluster's.
func (s Nodes) Ready(ctx context.Context, name string) (bool, error) {
	n, err := s.Node(ctx, name)
	if errors.Is(err, block.ErrNotFound) {
		return false, nil
	}
	return n.Ready, err
}

// Runs is sticky.Cluster's. The names are those of a RailLease, which an agent has
// written. The API server finds one pod by its key, so the request costs little.
func (s Nodes) Runs(ctx context.Context, namespace, pod, node string) (bool, error) {
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(pod)) > 0 {
		return false, nil
	}
	selector := fields.AndSelectors(fields.OneTermEqualSelector("metadata.name", pod), fields.OneTermEqualSelector("spec.nodeName", node)).String()
	return s.api.any(ctx, s.api.core.Get().Namespace(namespace).Resource("pods").Param("fieldSelector", selector), "find pod "+namespace+"/"+pod)
}

// RailNodes accesses the RailNodes of a cluster.
type RailNodes struct{ api *API }

const railNodes = "railnodes"

// RailNodes returns the RailNodes.
func (a *API) RailNodes() RailNodes { return RailNodes{a} }

// All returns all reports, in any order, from the cache of the API server. The errors are
// block.Store's for List.
func (s RailNodes) All(ctx context.Context) ([]RailNode, error) {
	return items[RailNode](ctx, s.api, s.api.ours, railNodes, url.Values{}, block.Cached)
}

// Publish writes the report of a node, which must have a Node object. If the report is the
// same already, the API server writes nothing. block.ErrNotFound: there is no Node object.
func (s RailNodes) Publish(ctx context.Context, name string, r fleet.Report) error {
	what := "publish rails of node " + name
	request := s.api.ours.Patch(types.MergePatchType).Resource(railNodes).Name(name)
	err := s.api.send(ctx, request, what, map[string]fleet.Report{"status": r}, nil)
	if !errors.Is(err, block.ErrNotFound) {
		return err
	}
	node, err := s.api.Nodes().Node(ctx, name)
	if err != nil {
		return err
	}
	return s.api.send(ctx, s.api.ours.Post().Resource(railNodes).SetHeader("Content-Type", asJSON), what, RailNode{
		TypeMeta: metav1.TypeMeta{APIVersion: Version().String(), Kind: "RailNode"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(node.UID)}},
		},
		Status: r,
	}, nil)
}
