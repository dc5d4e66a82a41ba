// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"context"
	"errors"
	"net/url"
	"slices"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

const pools = "railpools"

// WatchPools is for an informer. The objects are *RailPool.
func (a *API) WatchPools() *cache.ListWatch {
	return cache.NewListWatchFromClient(a.ours, pools, "", fields.Everything())
}

// Pools returns all pools, in any order, as they were at some time after the call.
// The errors are block.Store's for List.
func (a *API) Pools(ctx context.Context) ([]RailPool, error) {
	return items[RailPool](ctx, a, a.ours, pools, url.Values{}, block.Latest)
}

// Pool returns the pool of that name as it was at some time after the call. The errors
// are block.Store's for Get.
func (a *API) Pool(ctx context.Context, name string) (RailPool, error) {
	var out RailPool
	err := a.do(ctx, a.ours.Get().Resource(pools).Name(name), "read RailPool "+name, &out)
	return out, err
}

// Stands says whether the pool of that name has this UID, is in use and is not deleted. If so, a
// block of it prevents its removal.
func (a *API) Stands(ctx context.Context, name, uid string) (bool, error) {
	p, err := a.Pool(ctx, name)
	if errors.Is(err, block.ErrNotFound) {
		return false, nil
	}
	now := p.Pool()
	return now.UID == uid && now.InUse && !now.Deleted, err
}

// Report writes the status of the pool of that name, and nothing else of the object.
// If the status is the same already, the API server writes nothing.
// block.ErrNotFound: there is no such pool.
func (a *API) Report(ctx context.Context, name string, status PoolStatus) error {
	request := a.ours.Patch(types.MergePatchType).Resource(pools).Name(name).SubResource("status")
	return a.send(ctx, request, "report on pool "+name, map[string]PoolStatus{"status": status}, nil)
}

// Mark puts the finalizer InUse on a pool, or takes it off if the pool is being deleted, and
// changes nothing else. block.ErrConflict: the pool has changed since it was read.
// block.ErrNotFound: there is no such pool.
func (a *API) Mark(ctx context.Context, p RailPool) error {
	finalizers := slices.DeleteFunc(slices.Clone(p.Finalizers), func(f string) bool { return f == InUse })
	if p.DeletionTimestamp == nil {
		finalizers = append(finalizers, InUse)
	}
	request := a.ours.Patch(types.MergePatchType).Resource(pools).Name(p.Name)
	return a.send(ctx, request, "mark pool "+p.Name, map[string]any{"metadata": map[string]any{
		"uid": p.UID, "resourceVersion": p.ResourceVersion, "finalizers": finalizers,
	}}, nil)
}
