// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
)

// RailNode is the report of a node about its rails. It has the name of the Node, which owns it.
// The status is no subresource, so that a report is one write.
type RailNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Status fleet.Report `json:"status"`
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
	const action = "publish rails of node"
	what := action + " " + name
	body, err := json.Marshal(map[string]fleet.Report{"status": r})
	if err != nil {
		return cnierr.New(cnierr.Bug, action, name, "", "%w", err)
	}
	request := s.api.ours.Patch(types.MergePatchType).Resource(railNodes).Name(name).Body(body)
	if err = s.api.do(ctx, request, what, nil); !errors.Is(err, block.ErrNotFound) {
		return err
	}
	node, err := s.api.Nodes().Node(ctx, name)
	if err != nil {
		return err
	}
	body, err = json.Marshal(RailNode{
		TypeMeta: metav1.TypeMeta{APIVersion: Version().String(), Kind: "RailNode"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(node.UID)}},
		},
		Status: r,
	})
	if err != nil {
		return cnierr.New(cnierr.Bug, action, name, "", "%w", err)
	}
	return s.api.do(ctx, s.api.ours.Post().Resource(railNodes).SetHeader("Content-Type", asJSON).Body(body), what, nil)
}
