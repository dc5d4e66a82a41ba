// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// Blocks accesses the RailBlocks of a cluster. It is a block.Store.
type Blocks struct{ api *API }

const (
	blocks = "railblocks"
	asJSON = "application/json"
)

// Create is block.Store's.
func (s Blocks) Create(ctx context.Context, b block.Block) (block.Block, error) {
	body, err := json.Marshal(railBlock(b))
	if err != nil {
		return block.Block{}, cnierr.New(cnierr.Bug, "create block", b.Name, "", "%w", err)
	}
	return s.one(ctx, s.api.ours.Post().Resource(blocks).SetHeader("Content-Type", asJSON).Body(body), "create block "+b.Name)
}

// Get is block.Store's.
func (s Blocks) Get(ctx context.Context, name string) (block.Block, error) {
	return s.one(ctx, s.api.ours.Get().Resource(blocks).Name(name), "read block "+name)
}

// Peek is block.Store's.
func (s Blocks) Peek(ctx context.Context, name string) (block.Block, error) {
	return s.one(ctx, s.api.ours.Get().Resource(blocks).Name(name).Param("resourceVersion", "0"), "read block "+name)
}

// one sends a request that is answered with a block.
func (s Blocks) one(ctx context.Context, r *rest.Request, what string) (block.Block, error) {
	var out RailBlock
	if err := s.api.do(ctx, r, what, &out); err != nil {
		return block.Block{}, err
	}
	return out.Block(), nil
}

// List is block.Store's.
func (s Blocks) List(ctx context.Context, q block.Query) ([]block.Block, error) {
	objects, err := s.Objects(ctx, q)
	if err != nil {
		return nil, err
	}
	out := make([]block.Block, 0, len(objects))
	for i := range objects {
		out = append(out, objects[i].Block())
	}
	return out, nil
}

// Objects is List for callers that need the whole objects. A Pool of "" means all
// pools. The errors are those of List.
func (s Blocks) Objects(ctx context.Context, q block.Query) ([]RailBlock, error) {
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
	return items[RailBlock](ctx, s.api, s.api.ours, blocks, params, q.Freshness)
}

// Any says whether there is a block of a pool. Its cost does not depend on the number
// of blocks. The errors are those of List.
func (s Blocks) Any(ctx context.Context, pool string) (bool, error) {
	selector := PoolLabel + "=" + pool
	return s.api.any(ctx, s.api.ours.Get().Resource(blocks).Param("labelSelector", selector), "list blocks with "+selector)
}

// Each calls see for each block of the cluster, and keeps none of them: there may be very
// many. The errors are those of List.
func (s Blocks) Each(ctx context.Context, see func(*RailBlock)) error {
	return each(ctx, s.api, s.api.ours, blocks, url.Values{}, block.Latest, see)
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
// JSON patch is one. The CustomResourceDefinition has a default, so there is always a
// status to write into.
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
	body, err := json.Marshal(patch)
	if err != nil {
		return block.Block{}, cnierr.New(cnierr.Bug, "assert block", name, "", "%w", err)
	}
	request := s.api.ours.Patch(types.JSONPatchType).Resource(blocks).Name(name).SubResource("status").Body(body)
	out, err := s.one(ctx, request, "assert block "+name)
	conflict := errors.Is(err, block.ErrConflict)
	if !conflict && !errors.As(err, new(*cnierr.Error)) {
		return out, err
	}
	if other := s.another(ctx, name, uid); other != nil {
		return block.Block{}, other
	}
	if conflict { // other clients write it at the same time
		return block.Block{}, &block.BusyError{}
	}
	return block.Block{}, err
}

// another finds out why the API server has refused a request about a block. A failed
// test gives 422, and a policy gives 403 or 422. Both may happen because another node
// has the block by now, and the owner must learn this first. another returns nil if
// the block still has the UID.
func (s Blocks) another(ctx context.Context, name, uid string) error {
	there, err := s.Get(ctx, name)
	if err == nil && there.UID != uid {
		err = block.ErrConflict
	}
	return err
}

// Delete is block.Store's.
func (s Blocks) Delete(ctx context.Context, name, uid, resourceVersion string) error {
	err := s.api.remove(ctx, blocks, name, uid, resourceVersion, "delete block "+name)
	if errors.As(err, new(*cnierr.Error)) {
		if other := s.another(ctx, name, uid); other != nil {
			return other
		}
	}
	return err
}
