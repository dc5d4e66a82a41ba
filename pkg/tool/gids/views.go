// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"context"
	"errors"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// podView is what a look from inside a pod's namespace finds.
type podView struct {
	holder *Owner
	held   []Port // the ports of devices that were moved to it
}

// views looks from inside the namespaces of pods. It finds the devices that the pods
// have. It also finds entries of the host's ports that only pods see, and adds them
// to host.
func (n Node) views(ctx context.Context, host []Port) ([]podView, error) {
	hidden := n.lacksEntries(host)
	looked := map[netns.ID]bool{}
	var out []podView
	for _, r := range n.Records {
		moves := moved(r)
		if len(moves) == 0 && (!hidden || looked[r.NetnsID]) {
			continue
		}
		into := host
		if !hidden || looked[r.NetnsID] {
			into = nil
		}
		held, err := n.look(ctx, r, moves, into)
		if err != nil {
			return nil, err
		}
		looked[r.NetnsID] = true
		if len(held) > 0 {
			out = append(out, podView{holder(r), held})
		}
	}
	return out, nil
}

// lacksEntries says whether the host does not see an entry that an attachment has, as
// its record says, in a device of the host. The driver may hide it. If the kernel
// hides nothing, views need not look again from each pod.
func (n Node) lacksEntries(host []Port) bool {
	for _, r := range n.Records {
		for addr, found := range recorded(r) {
			if found.Place == nil {
				continue
			}
			if slices.ContainsFunc(host, func(p Port) bool { return p.Device.Name == found.Device && len(p.places(addr.Addr, rdma.RoCEv2)) == 0 }) {
				return true
			}
		}
	}
	return false
}

// look returns the ports of the devices in the namespace of an attachment. It adds
// the entries that this namespace sees to the entries of the host's ports. A
// namespace that is gone has nothing.
func (n Node) look(ctx context.Context, r record.Record, devices []plan.RDMADevice, host []Port) ([]Port, error) {
	k, err := kernel.Open(r.Netns, n.Sys)
	if errors.Is(err, kernel.ErrNetnsGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer k.Close()
	if k.ID() != r.NetnsID {
		return nil, nil
	}
	s := rdma.New(rdma.Config{Sys: n.Sys, Enter: k.Enter, Netns: r.Netns})
	defer s.Close()
	for i := range host {
		if err := host[i].add(s, rdma.Host, rdma.Pod); err != nil {
			return nil, err
		}
	}
	if len(devices) == 0 {
		return nil, nil
	}
	held, err := usable(ctx, s)
	if err != nil {
		return nil, err
	}
	held = slices.DeleteFunc(held, func(p Port) bool { return !slices.ContainsFunc(devices, p.of) })
	for i := range held { // these entries belong to the host's interface
		if err := held[i].add(s, rdma.Pod, rdma.Host); err != nil {
			return nil, err
		}
	}
	return held, nil
}

// add adds the entries of a port of the namespace of that a reader sees.
func (p *Port) add(s *rdma.Subsystem, of, reader rdma.Side) error {
	entries, _, err := s.Table(of, reader, p.Device.Name, p.Number)
	if errors.Is(err, rdma.ErrNoTable) {
		return nil
	}
	if err != nil {
		return err
	}
	before := len(p.Entries)
	p.Entries, _ = rdma.Merge(p.Entries, entries)
	p.Hidden = p.Hidden || len(p.Entries) > before
	return nil
}
