// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"context"
	"errors"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
)

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
