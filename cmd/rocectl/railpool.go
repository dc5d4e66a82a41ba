// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/cmd/rocectl/cluster"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// offlinePool is the node's agent as an ADD would find it.
type offlinePool struct {
	planFlags
	said string // what an operator should know about sticky addresses
}

// Read implements lease.Agent: it reads what this node may lease of a RailPool,
// or, offline, makes up a node that has the pool's first block.
func (f *offlinePool) Read(name string) (nodefile.File, error) {
	if f.offline {
		return f.firstBlock(name)
	}
	s, err := f.node.files()
	if err != nil {
		return nodefile.File{}, err
	}
	return s.Read(name)
}

// services reads the CIDRs of the cluster's Services, or, offline, those of the flag.
func (f *offlinePool) services() ([]netip.Prefix, error) {
	if !f.offline {
		s, err := f.node.files()
		if err != nil {
			return nil, err
		}
		return s.Services()
	}
	return cluster.ServiceCIDRs(f.planFlags.services)
}

// Ask implements lease.Agent. On the node it asks nothing, because the agent would
// reserve addresses. Offline, it answers for a cluster in which no address is reserved
// for another pod.
func (f *offlinePool) Ask(name string, k nodefile.Key) (a nodefile.Answer, err error) {
	a.None = "only an ADD requests its sticky addresses from rocectl agent"
	if f.offline {
		a, err = f.firstSlot(name, k)
	}
	f.said = fmt.Sprintf("%s of pod %s/%s gets the sticky addresses that RailPool %s reserves for it", k.Interface, k.Namespace, k.Pod, name)
	if !a.Granted() {
		f.said = fmt.Sprintf("%s of pod %s/%s gets ordinary addresses of RailPool %s here: %s", k.Interface, k.Namespace, k.Pod, name, a.None)
	}
	return a, err
}

// pool returns a RailPool of the file, and the rack of the node if it needs one.
func (f *offlinePool) pool(name string) (block.Pool, string, error) {
	i := slices.IndexFunc(f.pools, func(p block.Pool) bool { return p.Name == name })
	if i < 0 {
		return block.Pool{}, "", cnierr.New(cnierr.BadConfig, "plan addresses of RailPool", name,
			"put the RailPool into FILE, after a line ---, or run without --offline on a node that has addresses of it", "FILE does not have it")
	}
	if f.pools[i].Spec.RackLabel == "" {
		return f.pools[i], "", nil
	}
	return f.pools[i], f.rack, nil
}

// firstBlock returns what a node may lease if it owns the first block of a pool.
func (f *offlinePool) firstBlock(name string) (nodefile.File, error) {
	pool, rack, err := f.pool(name)
	if err != nil {
		return nodefile.File{}, err
	}
	space, err := pool.Space(rack)
	if err != nil {
		return nodefile.File{}, err
	}
	first := block.Spec{Pool: name, Rack: rack, Index: space.Index(0), Size: cmp.Or(pool.Spec.BlockSize, block.DefaultSize)}
	rails, err := space.Rails([]block.Block{{Name: space.Name(first.Index), Spec: first}})
	return nodefile.File{Pool: name, Quarantine: space.Quarantine(), Rails: rails, Sticky: pool.Spec.Sticky != nil}, err
}

// firstSlot answers with the slot that a pod tries first.
func (f *offlinePool) firstSlot(name string, k nodefile.Key) (nodefile.Answer, error) {
	pool, rack, err := f.pool(name)
	if err != nil {
		return nodefile.Answer{}, err
	}
	slots, err := pool.Slots(rack)
	for slot := range slots.Order(k.String()) {
		return nodefile.Answer{Rails: slots.Rails(slot)}, err
	}
	return nodefile.Answer{None: "exclusions and reservations leave no host index of spec.sticky.slots"}, err
}
