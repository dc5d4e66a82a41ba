// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"cmp"
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// Stored is an object of ours as the API server stores it.
type Stored[S, T any] struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec   S `json:"spec,omitzero"`
	Status T `json:"status,omitzero"`
}

// The kinds that no watch decodes.
type (
	// RailBlock is block.Block.
	RailBlock = Stored[block.Spec, BlockStatus]
	// RailLease is sticky.Lease. It has no labels: lists filter by its fields, so they also
	// find a RailLease that an operator has written.
	RailLease = Stored[sticky.Spec, struct{}]
	// RailNode is the report of a node about its rails. It has the name of the Node, which
	// owns it. The status is no subresource, so that a report is one write.
	RailNode = Stored[struct{}, fleet.Report]
)

// Object returns what the packages block and sticky know of an object.
func (o *Stored[S, T]) Object() block.Object[S] {
	return block.Object[S]{
		Name: o.Name, UID: string(o.UID), ResourceVersion: o.ResourceVersion,
		Created: o.CreationTimestamp.UTC(), Spec: o.Spec,
	}
}

// objects accesses the objects of a kind: it is the block.Objects of Blocks and Leases, but
// for List.
type objects[S, T any] struct {
	api          *API
	kind, plural string
	noun         string // in errors
	meta         func(S) metav1.ObjectMeta
}

// Create is block.Objects'.
func (s objects[S, T]) Create(ctx context.Context, o block.Object[S]) (block.Object[S], error) {
	stored := Stored[S, T]{TypeMeta: metav1.TypeMeta{APIVersion: Version().String(), Kind: s.kind}, ObjectMeta: s.meta(o.Spec), Spec: o.Spec}
	stored.Name = o.Name
	return s.one(ctx, s.api.ours.Post().Resource(s.plural).SetHeader("Content-Type", asJSON), "create "+s.noun+" "+o.Name, stored)
}

// Get is block.Objects'.
func (s objects[S, T]) Get(ctx context.Context, name string) (block.Object[S], error) {
	return s.one(ctx, s.get(name), "read "+s.noun+" "+name, nil)
}

func (s objects[S, T]) get(name string) *rest.Request {
	return s.api.ours.Get().Resource(s.plural).Name(name)
}

// Delete is block.Objects'.
func (s objects[S, T]) Delete(ctx context.Context, name, uid, resourceVersion string) error {
	err := s.api.remove(ctx, s.plural, name, uid, resourceVersion, "delete "+s.noun+" "+name)
	return s.unless(ctx, name, uid, resourceVersion, err)
}

// one sends a request that is answered with an object.
func (s objects[S, T]) one(ctx context.Context, r *rest.Request, what string, body any) (block.Object[S], error) {
	var out Stored[S, T]
	if err := s.api.send(ctx, r, what, body, &out); err != nil {
		return block.Object[S]{}, err
	}
	return out.Object(), nil
}

// unless finds out why the API server has refused a request about an object. A policy may
// refuse it before the API server compares versions, and a node must learn first that it
// has lost the object.
func (s objects[S, T]) unless(ctx context.Context, name, uid, resourceVersion string, err error) error {
	if errors.As(err, new(*cnierr.Error)) {
		err = cmp.Or(s.changed(ctx, name, uid, resourceVersion), err)
	}
	return err
}

// changed asks whether an object has another UID now, or another version unless that is "".
func (s objects[S, T]) changed(ctx context.Context, name, uid, resourceVersion string) error {
	there, err := s.Get(ctx, name)
	if err == nil && (there.UID != uid || resourceVersion != "" && there.ResourceVersion != resourceVersion) {
		err = block.ErrConflict
	}
	return err
}
