// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
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
	RailNode = Stored[struct{}, NodeStatus]
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
	id := types.UID(uid)
	err := s.api.send(ctx, s.api.ours.Delete().Resource(s.plural).Name(name).SetHeader("Content-Type", asJSON), "delete "+s.noun+" "+name, metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{UID: &id, ResourceVersion: &resourceVersion},
	}, nil)
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

// Blocks accesses the RailBlocks of a cluster. It is a block.Store.
type Blocks struct {
	objects[block.Spec, BlockStatus]
}

const (
	blocks = "railblocks"
	asJSON = "application/json"
)

// Blocks returns the RailBlocks.
func (a *API) Blocks() Blocks {
	return Blocks{objects[block.Spec, BlockStatus]{a, "RailBlock", blocks, "block", func(s block.Spec) metav1.ObjectMeta {
		labels := map[string]string{PoolLabel: s.Pool, MachineIDLabel: s.MachineID}
		if s.Rack != "" {
			labels[RackLabel] = s.Rack
		}
		return metav1.ObjectMeta{Labels: labels}
	}}}
}

// Peek is block.Store's.
func (s Blocks) Peek(ctx context.Context, name string) (block.Block, error) {
	return s.one(ctx, s.get(name).Param("resourceVersion", "0"), "read block "+name, nil)
}

// List is block.Store's.
func (s Blocks) List(ctx context.Context, q block.Query) (out []block.Block, err error) {
	if err := s.api.EachBlock(ctx, q, func(b *RailBlock) { out = append(out, b.Object()) }); err != nil {
		return nil, err // half a list is none
	}
	return out, nil
}

// EachBlock calls see for each block of a List, and keeps none of them: there may be very
// many. A Pool of "" means all pools. The errors are those of List.
func (a *API) EachBlock(ctx context.Context, q block.Query, see func(*RailBlock)) error {
	set := labels.Set{}
	for key, value := range map[string]string{PoolLabel: q.Pool, RackLabel: q.Rack, MachineIDLabel: q.MachineID} {
		if value != "" {
			set[key] = value
		}
	}
	params := url.Values{}
	if len(set) > 0 {
		params.Set("labelSelector", set.String())
	}
	return each(ctx, a, a.ours, blocks, params, q.Freshness, see)
}

// Used says whether there is a block of a pool, or a lease that a node holds. The number of
// blocks costs nothing. The errors are those of List.
func (a *API) Used(ctx context.Context, pool string) (used bool, err error) {
	selector := PoolLabel + "=" + pool
	used, err = a.any(ctx, a.ours.Get().Resource(blocks).Param("labelSelector", selector), "list blocks with "+selector)
	if !used && err == nil {
		err = a.EachLease(ctx, sticky.Query{Pool: pool}, func(l *RailLease) { used = used || l.Spec.Holder != (block.Owner{}) })
	}
	return used, err
}

// Strangers is EachBlock for the blocks of other pools than these.
func (a *API) Strangers(ctx context.Context, pools []string, see func(*RailBlock)) error {
	selector := PoolLabel
	if len(pools) > 0 {
		selector += " notin (" + strings.Join(pools, ",") + ")"
	}
	return each(ctx, a, a.ours, blocks, url.Values{"labelSelector": {selector}}, block.Latest, see)
}

// Touch is block.Store's.
func (s Blocks) Touch(ctx context.Context, name, uid string) (block.Block, error) {
	return s.write(ctx, name, uid, nil)
}

// Report writes how much of a block is used. It is a Touch too, with its errors.
func (s Blocks) Report(ctx context.Context, b block.Block, u block.Usage) error {
	_, err := s.write(ctx, b.Name, b.UID, &u)
	return err
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// write patches the status of the block with that UID. A merge patch of a status has no
// precondition (statusStrategy.PrepareForUpdate of apiextensions-apiserver ignores the metadata),
// so a JSON patch tests the UID, and fails with 422. The definition has a default, so there is a
// status to write into.
func (s Blocks) write(ctx context.Context, name, uid string, u *block.Usage) (block.Block, error) {
	patch := []operation{
		{"test", "/metadata/uid", uid},
		{"add", "/status/asserted", s.api.now().UTC().Format(metav1.RFC3339Micro)},
	}
	if u != nil {
		patch = append(patch,
			operation{"add", "/status/size", u.Size}, operation{"add", "/status/used", u.Used},
			operation{"add", "/status/quarantined", u.Quarantined}, operation{"add", "/status/free", u.Free})
	}
	out, err := s.one(ctx, s.api.ours.Patch(types.JSONPatchType).Resource(blocks).Name(name).SubResource("status"), "assert block "+name, patch)
	if errors.Is(err, block.ErrConflict) { // other clients write it at the same time
		return out, cmp.Or(s.changed(ctx, name, uid, ""), error(&block.BusyError{}))
	}
	return out, s.unless(ctx, name, uid, "", err)
}

// CreatedBy is the annotation of a RailLease with the node that has created it. A lease
// that an operator has created lacks it.
const CreatedBy = "roce-cni.io/created-by"

// Leases accesses the RailLeases of a cluster. It is a sticky.Store.
type Leases struct {
	objects[sticky.Spec, struct{}]
}

var _ sticky.Store = Leases{}

const leases = "railleases"

// Leases returns the RailLeases.
func (a *API) Leases() Leases {
	return Leases{objects[sticky.Spec, struct{}]{a, "RailLease", leases, "lease", func(s sticky.Spec) (meta metav1.ObjectMeta) {
		if node := s.Holder.NodeName; node != "" {
			meta.Annotations = map[string]string{CreatedBy: node}
		}
		return meta
	}}}
}

// List is sticky.Store's.
func (s Leases) List(ctx context.Context, q sticky.Query) (out []sticky.Lease, err error) {
	err = s.api.EachLease(ctx, q, func(l *RailLease) { out = append(out, l.Object()) })
	return out, err
}

// EachLease calls see for each lease of a List, and keeps none of them. The errors are those
// of List.
func (a *API) EachLease(ctx context.Context, q sticky.Query, see func(*RailLease)) error {
	var terms []fields.Selector
	for _, f := range []struct{ path, value string }{
		{"spec.pool", q.Pool},
		{"spec.rack", q.Rack},
		{"spec.namespace", q.Key.Namespace},
		{"spec.pod", q.Key.Pod},
		{"spec.interface", q.Key.Interface},
		{"spec.holder.nodeName", q.Node},
	} {
		if f.value != "" {
			terms = append(terms, fields.OneTermEqualSelector(f.path, f.value))
		}
	}
	params := url.Values{}
	if len(terms) > 0 {
		params.Set("fieldSelector", fields.AndSelectors(terms...).String())
	}
	return each(ctx, a, a.ours, leases, params, block.Latest, see)
}

// Update is sticky.Store's. The UID and the resourceVersion in a merge patch make it
// fail when the object has others (rest.BeforeUpdate and store.Update of
// k8s.io/apiserver): another version fails with 409. Only another UID, which needs a
// restored etcd, fails with 422.
func (s Leases) Update(ctx context.Context, l sticky.Lease) (sticky.Lease, error) {
	spec := map[string]any{"holder": nil, "written": l.Spec.Written.UTC().Format(time.RFC3339Nano)}
	if l.Spec.Holder != (block.Owner{}) {
		spec["holder"] = l.Spec.Holder
	}
	out, err := s.one(ctx, s.api.ours.Patch(types.MergePatchType).Resource(leases).Name(l.Name), "write lease "+l.Name, map[string]any{
		"metadata": map[string]string{"uid": l.UID, "resourceVersion": l.ResourceVersion},
		"spec":     spec,
	})
	return out, s.unless(ctx, l.Name, l.UID, l.ResourceVersion, err)
}
