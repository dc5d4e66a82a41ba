// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
)

// nearMisses returns what leftOut returns, if too few NICs fit.
func (s search) nearMisses(all []candidate, fit int, m conf.Match) string {
	if fit > m.Count {
		return ""
	}
	return leftOut(all, m.Parent, s.sys)
}

// narrower returns the hint for a wrong number of NICs. On a node with SR-IOV, the
// virtual functions of the NICs often match too.
func (s search) narrower(fit []candidate, m conf.Match) string {
	p := m.Parent
	p.Function = conf.Physical
	if m.Parent.Function == "" && len(fit) > m.Count && len(fitting(fit, p, s.sys)) == m.Count {
		return `add "function": "physical" to rails.match, so that only the NICs match and not their functions`
	}
	return "correct rails.match or rails.count: rocectl rails and ip -d link show what there is"
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
	if len(fit) != m.Count {
		return nil, cnierr.New(cnierr.BadParent, selecting, "rails.match", s.narrower(fit, m), "want %d NICs, got %d: %s%s",
			m.Count, len(fit), names(fit), s.nearMisses(all, len(fit), m))
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
	var out []rtnl.Link
	for _, c := range fit {
		out = append(out, c.Link)
	}
	return out, nil
}
