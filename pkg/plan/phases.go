// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"slices"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
)

// phases are the operations of one rail, in order: of each kind together.
type phases [14]Ops

// phases returns the operations of a rail. A shared RDMA device is asked for
// its GIDs at once, for others wait meanwhile: a silent gateway must not hold
// them up. One that moves does so after everything that may fail more often,
// because moving takes what others have open on it away from them.
func (m maker) phases() (phases, error) {
	if err := m.checkFamilies(); err != nil {
		return phases{}, err
	}
	routes, rules, err := m.routing()
	if err != nil {
		return phases{}, err
	}
	mac, mtu := m.mac(), m.mtu()
	gateway := m.gateway(mac)
	var asked, askedLate Ops
	if r := m.facts.RDMA; r != nil && r.Exclusive {
		asked = gateway
	} else {
		askedLate = gateway
	}
	var conflict, addresses Ops
	if m.facts.Adopted == nil { // another plugin's link has its addresses, and they are in use: by us
		conflict, addresses = m.conflict(mac), m.addresses(mac)
	}
	return phases{
		m.link(mac, mtu),
		{m.sysctl()},
		{Up{m.req.IfName}},
		conflict,
		addresses,
		routes,
		rules,
		asked,
		m.move(),
		m.port(),
		m.gid(),
		askedLate,
		m.deviceInfo(),
		m.announce(mac),
	}, nil
}

// inPhases returns the operations of all rails, phase by phase, and makes one
// question to the wire of those of a phase.
func inPhases(rails []phases) Ops {
	var out Ops
	for i := range len(phases{}) {
		var phase Ops
		for _, r := range rails {
			phase = append(phase, r[i]...)
		}
		out = append(out, together(phase)...)
	}
	return out
}

// together joins operations of the wire, which differ in their targets alone.
func together(phase Ops) Ops {
	var out Ops
	for _, op := range phase {
		if len(out) == 0 {
			out = append(out, op)
			continue
		}
		switch first := out[0].(type) {
		case Conflict:
			first.Targets = slices.Concat(first.Targets, op.(Conflict).Targets)
			out[0] = first
		case Gateway:
			first.Targets = slices.Concat(first.Targets, op.(Gateway).Targets)
			out[0] = first
		case Announce:
			first.Targets = slices.Concat(first.Targets, op.(Announce).Targets)
			out[0] = first
		default:
			out = append(out, op)
		}
	}
	return out
}

// Of returns the operations of interfaces of the plan, without the questions
// that are asked for all.
func (p Plan) Of(interfaces ...Interface) Ops {
	return slices.DeleteFunc(slices.Clone(p.Ops), func(op Op) bool {
		return !slices.ContainsFunc(interfaces, func(i Interface) bool { return i.has(op) })
	})
}

func (i Interface) has(op Op) bool {
	r, rule := op.(Rule)
	return linkOf(op) == i.Name || rule && slices.ContainsFunc(i.Addresses, func(a LeasedAddress) bool { return a.Prefix.Addr() == r.From.Addr() })
}

// linkOf returns the pod's interface that an operation is about, "" if it is
// about none or several.
func linkOf(op Op) conf.LinkName {
	if link, ok := dependsOn(op); ok {
		return link
	}
	switch op := op.(type) {
	case Macvlan:
		return op.Name
	case Adopt:
		return op.Link
	case Move:
		return op.Link
	case Port:
		return op.Link
	case GID:
		return op.Targets[0].Link
	}
	return ""
}

// beside returns the facts of a rail as they will be once the rails before it
// are made: what tables and default routes the pod has then.
func beside(f Facts, before []phases) Facts {
	f.Pod.Tables, f.Pod.Defaults = slices.Clone(f.Pod.Tables), slices.Clone(f.Pod.Defaults)
	for _, op := range inPhases(before) {
		switch op := op.(type) {
		case Rule:
			if op.Table != 0 {
				f.Pod.Tables = append(f.Pod.Tables, op.Table)
			}
		case Route:
			if op.Table == MainTable && op.Dst.Bits() == 0 {
				f.Pod.Defaults = append(f.Pod.Defaults, DefaultRoute{IPv6: op.Dst.Addr().Is6(), Link: op.Link, Via: op.Via, Metric: op.Metric})
			}
		}
	}
	return f
}

// checkTwice refuses a route that two rails would have in one table: the kernel
// takes the first alone (NLM_F_EXCL).
func checkTwice(ops Ops) error {
	first := map[Route]conf.LinkName{}
	for _, op := range ops {
		r, ok := op.(Route)
		if !ok {
			continue
		}
		key := Route{Table: r.Table, Dst: r.Dst, Metric: r.Metric}
		if other := first[key]; other != "" && other != r.Link {
			return cnierr.New(cnierr.BadConfig, "add route to", r.Dst.String(),
				"give it a gw in the subnet of one rail, or leave the table to routing.mode policy, where each rail has its own",
				"%s and %s would both have it in table %d", other, r.Link, r.Table)
		}
		first[key] = r.Link
	}
	return nil
}
