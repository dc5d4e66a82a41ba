// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"cmp"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// phase is when an operation is done. All rails go through each phase together.
//
// For a shared RDMA device the GIDs come before the gateway: other attachments wait for
// the lock of the GID tables meanwhile, and a silent gateway must not hold them up. An
// exclusive device moves after all that may fail more often, because a move breaks the
// programs that have the device open. Its GIDs come after the move.
type phase uint8

const (
	phaseNone phase = iota
	phaseVLAN
	phaseLink
	phaseSettings
	phaseUp
	phaseUpSettings
	phaseNeighbour
	phaseConflict
	phaseAddress
	phaseAlign
	phaseRoute
	phaseRule
	phaseHostPort
	phaseHostGID
	phaseGateway
	phaseMove
	phasePort
	phaseGID
	phaseDeviceInfo
	phaseAnnounce
)

// ops returns the operations of a rail in the order of the phases.
func (m maker) ops() (Ops, error) {
	if err := m.checkFamilies(); err != nil {
		return nil, err
	}
	routes, rules, err := m.routing()
	if err != nil {
		return nil, err
	}
	mac, mtu := m.mac(), m.mtu()
	link := m.link(mac, mtu)
	out := slices.Concat(m.vlan(), link, m.sysctl(), InPod(Up{Link: m.rail.IfName}))
	if m.facts.Adopted == nil { // another plugin's link has its addresses, and they are in use: by us
		set := m.addresses(mac)
		out = slices.Concat(out, m.conflict(mac), set, m.align(link, set))
	}
	return slices.Concat(out, at(Pod, routes), at(Pod, rules), m.gateway(mac),
		m.move(), m.port(), m.gid(), m.deviceInfo(), m.announce(mac)), nil
}

// inPhases returns the operations of all rails, phase by phase. It joins the
// questions to the network of one phase into one.
func inPhases(rails []Ops) Ops {
	all := slices.Concat(rails...)
	slices.SortStableFunc(all, func(a, b Op) int { return cmp.Compare(a.phase(), b.phase()) })
	var out Ops
	for _, op := range all {
		join := op.row().join
		if last := len(out) - 1; join != nil && last >= 0 && op.alike(out[last]) {
			out[last].Kind = join(out[last].Kind, op.Kind)
		} else {
			out = append(out, op)
		}
	}
	return out
}

// Of returns the operations of interfaces of the plan. It leaves out the
// questions to the network, which are joined for all interfaces.
func (p Plan) Of(interfaces ...Interface) Ops {
	return slices.DeleteFunc(slices.Clone(p.Ops), func(op Op) bool {
		return !slices.ContainsFunc(interfaces, func(i Interface) bool { return i.has(op) })
	})
}

// OfNone returns the operations that belong to no interface: what the attachment has
// on the host, and the questions to the network.
func (p Plan) OfNone() Ops {
	return slices.DeleteFunc(slices.Clone(p.Ops), func(op Op) bool {
		return slices.ContainsFunc(p.Interfaces, func(i Interface) bool { return i.has(op) })
	})
}

func (i Interface) has(op Op) bool {
	from := op.row().from
	return op.Link() == i.Name || from != nil && slices.ContainsFunc(i.Addresses, func(a LeasedAddress) bool { return a.Prefix.Addr() == from(op.Kind) })
}

// withBefore returns the facts of a rail after the rails before it are made: with
// the tables and default routes that the pod has then.
func withBefore(f Facts, before []Ops) Facts {
	f.Pod.Tables, f.Pod.Defaults = slices.Clone(f.Pod.Tables), slices.Clone(f.Pod.Defaults)
	ops := slices.Concat(before...)
	for r := range All[Rule](ops) {
		if r.Table != 0 {
			f.Pod.Tables = append(f.Pod.Tables, r.Table)
		}
	}
	for r := range All[Route](ops) {
		if r.Table == MainTable && r.Dst.Bits() == 0 {
			f.Pod.Defaults = append(f.Pod.Defaults, DefaultRoute{IPv6: r.Dst.Addr().Is6(), Link: r.Link, Via: r.Via, Metric: r.Metric})
		}
	}
	return f
}

// checkTwice refuses a route that two rails would have in one table: the kernel
// accepts only the first (NLM_F_EXCL).
func checkTwice(ops Ops) error {
	first := map[Route]conf.LinkName{}
	for r := range All[Route](ops.At(Pod)) {
		key := Route{Table: r.Table, Dst: r.Dst, Metric: r.Metric}
		if other := first[key]; other != "" && other != r.Link {
			return cnierr.New(cnierr.BadConfig, "add route to", r.Dst.String(),
				"set gw to an address in the subnet of one rail, or use routing.mode policy without table: each rail then has its own table",
				"%s and %s would both add it to table %d", other, r.Link, r.Table)
		}
		first[key] = r.Link
	}
	return nil
}
