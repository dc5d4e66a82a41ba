// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"cmp"
	"io/fs"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
)

const correct = "correct rails.match or rails.count: rocectl rails and ip -d link show what there is"

// narrower returns the hint for too many NICs. On a node with SR-IOV, the virtual
// functions of the NICs often match too.
func (s search) narrower(fit []candidate, m conf.Match) string {
	p := m.Parent
	p.Function = conf.Physical
	if len(fitting(fit, p, s.sys)) == m.Count {
		return `add "function": "physical" to rails.match, so that only the NICs match and not their functions`
	}
	return correct
}

// Hardware returns the Ethernet links that rails.match selects by vendors and device IDs.
// links are all of the namespace, and sys is the root of sysfs.
func Hardware(links []rtnl.Link, vendors, ids []string, sys fs.FS) []rtnl.Link {
	p := conf.Parent{Vendors: vendors, DeviceIDs: ids, LinkTypes: []string{"ether"}}
	s := search{links: func() ([]rtnl.Link, error) { return links, nil }, sys: sys}
	all, _ := s.candidates(p) // p names no RDMA device, so nothing can fail
	return linksOf(fitting(all, p, sys))
}

// match returns the links that have what m asks for, in the order of m. It
// includes links that are down: a rail keeps its NIC also when other NICs fail.
//
// Errors: BadParent, with the names of the links, when the number of links is
// not the one that m wants, or when a link cannot be sorted. Other errors are
// those of ofDevice.
func (s search) match(m conf.Match) ([]rtnl.Link, error) {
	all, err := s.candidates(m.Parent)
	if err != nil {
		return nil, err
	}
	fit := fitting(all, m.Parent, s.sys)
	if len(fit) > m.Count {
		return nil, cnierr.New(cnierr.BadParent, selecting, "rails.match", s.narrower(fit, m), "want %d NICs, got %d: %s", m.Count, len(fit), names(fit))
	}
	if len(fit) < m.Count {
		hint, slaves := slavesOnly(all, m.Parent, s.sys)
		return nil, cnierr.New(cnierr.BadParent, selecting, "rails.match", cmp.Or(hint, correct), "want %d NICs, got %d: %s%s%s",
			m.Count, len(fit), names(fit), slaves, leftOut(all, m.Parent, s.sys))
	}
	seats := map[int32]seat{}
	if m.Order == conf.ByRDMA {
		if seats, err = s.devicePorts(); err != nil {
			return nil, err
		}
	}
	for _, c := range fit {
		at, ok := seats[c.Index]
		switch {
		case m.Order != conf.ByRDMA:
			at = c.onBus(s.sys)
		case !ok:
			return nil, cnierr.New(cnierr.BadParent, selecting, c.Name,
				`sort by "pci" in rails.order, or make rails.match fit only NICs that have RDMA: rdma link shows them`,
				"it fits rails.match, but has no RDMA device to be sorted by")
		}
		at.name = c.Name
		seats[c.Index] = at
	}
	slices.SortFunc(fit, func(a, b candidate) int { return seats[a.Index].compare(seats[b.Index]) })
	return linksOf(fit), nil
}

func linksOf(cs []candidate) []rtnl.Link {
	var out []rtnl.Link
	for _, c := range cs {
		out = append(out, c.Link)
	}
	return out
}
