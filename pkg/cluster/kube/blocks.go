// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

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
	if err := s.Each(ctx, q, func(b *RailBlock) { out = append(out, b.Object()) }); err != nil {
		return nil, err // half a list is none
	}
	return out, nil
}

// Each calls see for each block of a List, and keeps none of them: there may be very many.
// A Pool of "" means all pools. The errors are those of List.
func (s Blocks) Each(ctx context.Context, q block.Query, see func(*RailBlock)) error {
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
	return each(ctx, s.api, s.api.ours, blocks, params, q.Freshness, see)
}

// Any says whether there is a block of a pool. Its cost does not depend on the number
// of blocks. The errors are those of List.
func (s Blocks) Any(ctx context.Context, pool string) (bool, error) {
	selector := PoolLabel + "=" + pool
	return s.api.any(ctx, s.api.ours.Get().Resource(blocks).Param("labelSelector", selector), "list blocks with "+selector)
}

// Others is Each for the blocks of other pools than these.
func (s Blocks) Others(ctx context.Context, pools []string, see func(*RailBlock)) error {
	selector := PoolLabel
	if len(pools) > 0 {
		selector += " notin (" + strings.Join(pools, ",") + ")"
	}
	return each(ctx, s.api, s.api.ours, blocks, url.Values{"labelSelector": {selector}}, block.Latest, see)
}

// Touch is block.Store's.
func (s Blocks) Touch(ctx context.Context, name, uid string) (block.Block, error) {
	return s.write(ctx, name, uid, nil)
}

// Report writes how much of a block is used. It is a Touch too, with its errors.
func (s Blocks) Report(ctx context.Context, name, uid string, u Usage) (block.Block, error) {
	return s.write(ctx, name, uid, &u)
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// write patches the status of the block with that UID. The API server ignores the
// metadata of what is written to a status (statusStrategy.PrepareForUpdate of
// apiextensions-apiserver), so a UID in a merge patch is no precondition. A test in a
// JSON patch is one, which fails with 422. The CustomResourceDefinition has a default, so
// there is always a status to write into.
func (s Blocks) write(ctx context.Context, name, uid string, u *Usage) (block.Block, error) {
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
