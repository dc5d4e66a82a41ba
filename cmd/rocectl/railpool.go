// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/ranges"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

// railPool reads the Kubernetes object that a RailPool is.
func railPool(d document) (*block.Pool, error) {
	p := &block.Pool{}
	p.Name, _ = text(member(d.Metadata, "name"))
	if d.Spec == nil {
		return p, nil
	}
	return p, json.Unmarshal(d.Spec, &p.Spec)
}

// ranges reads what this node may lease of a RailPool, or, offline, makes up a
// node that has the pool's first block.
func (f planFlags) ranges(name string) (ranges.File, error) {
	if f.offline {
		return f.firstBlock(name)
	}
	boot, err := plugin.BootID()
	if err != nil {
		return ranges.File{}, err
	}
	return ranges.Store{Dir: f.node.stateDir, BootID: boot}.Read(name)
}

// firstBlock returns what the node may lease that owns the first block of a pool
// in the file.
func (f planFlags) firstBlock(name string) (ranges.File, error) {
	i := slices.IndexFunc(f.pools, func(p block.Pool) bool { return p.Name == name })
	if i < 0 {
		return ranges.File{}, cnierr.New(cnierr.BadConfig, "plan addresses of RailPool", name,
			"put the RailPool into FILE, behind a line ---, or leave --offline out on a node that has addresses of it", "FILE does not have it")
	}
	pool, rack := f.pools[i], ""
	if pool.Spec.RackLabel != "" {
		rack = f.rack
	}
	space, err := pool.Space(rack)
	if err != nil {
		return ranges.File{}, err
	}
	first := block.Spec{Pool: name, Rack: rack, Index: space.Index(0), Size: cmp.Or(pool.Spec.BlockSize, block.DefaultSize)}
	rails, err := space.Rails([]block.Block{{Name: space.Name(first.Index), Spec: first}})
	return ranges.File{Pool: name, Quarantine: space.Quarantine(), Rails: rails}, err
}
