// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/blocktest"
)

func TestTheAPIServerIsAStore(t *testing.T) {
	c := shared(t)
	store := api(t, c.Admin()).Blocks()
	var made atomic.Int64
	blocktest.Suite(t, func(*testing.T) block.Store {
		return apart{store, fmt.Sprintf("suite%d-", made.Add(1))}
	})
}

// apart is a store of its own within another one: names and pools have a prefix
// that the caller does not see.
type apart struct {
	block.Store
	prefix string
}

func (a apart) outside(b block.Block) block.Block {
	b.Name, b.Spec.Pool = a.prefix+b.Name, a.prefix+b.Spec.Pool
	return b
}

func (a apart) inside(b block.Block, err error) (block.Block, error) {
	b.Name, b.Spec.Pool = strings.TrimPrefix(b.Name, a.prefix), strings.TrimPrefix(b.Spec.Pool, a.prefix)
	return b, err
}

func (a apart) Create(ctx context.Context, b block.Block) (block.Block, error) {
	return a.inside(a.Store.Create(ctx, a.outside(b)))
}

func (a apart) Get(ctx context.Context, name string) (block.Block, error) {
	return a.inside(a.Store.Get(ctx, a.prefix+name))
}

func (a apart) Peek(ctx context.Context, name string) (block.Block, error) {
	return a.inside(a.Store.Peek(ctx, a.prefix+name))
}

func (a apart) List(ctx context.Context, q block.Query) ([]block.Block, error) {
	q.Pool = a.prefix + q.Pool
	all, err := a.Store.List(ctx, q)
	for i := range all {
		all[i], _ = a.inside(all[i], nil)
	}
	return all, err
}

func (a apart) Touch(ctx context.Context, name, uid string) (block.Block, error) {
	return a.inside(a.Store.Touch(ctx, a.prefix+name, uid))
}

func (a apart) Delete(ctx context.Context, name, uid, resourceVersion string) error {
	return a.Store.Delete(ctx, a.prefix+name, uid, resourceVersion)
}
