// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
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
		if join, last := op.row().join, len(out)-1; join != nil && op.alike(out[last]) { // a link is before what is joined
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
	return p.Ops.without(func(op Op) bool {
		return !slices.ContainsFunc(interfaces, func(i Interface) bool { return i.has(op) })
	})
}

// OfNone returns the operations that belong to no interface: what the attachment has
// on the host, and the questions to the network.
func (p Plan) OfNone() Ops {
	return p.Ops.without(func(op Op) bool {
		return slices.ContainsFunc(p.Interfaces, func(i Interface) bool { return i.has(op) })
	})
}

func (i Interface) has(op Op) bool {
	from := op.row().from
	return op.Link() == i.Name || from != nil && slices.ContainsFunc(i.Addresses, func(a LeasedAddress) bool { return a.Prefix.Addr() == from(op.Kind) })
}

// withBefore returns the facts of a rail after the rails before it are made: with
// the tables that the pod has then.
func withBefore(f Facts, before []Ops) Facts {
	f.Pod.Tables = slices.Clone(f.Pod.Tables)
	for r := range All[Rule](slices.Concat(before...)) {
		if r.Table != 0 {
			f.Pod.Tables = append(f.Pod.Tables, r.Table)
		}
	}
	return f
}

// checkTwice refuses a route that two rails would have in one table: the kernel
// accepts only the first (NLM_F_EXCL).
func checkTwice(ops Ops) error {
	first := map[Route]conf.LinkName{}
	for r := range All[Route](ops.At(Pod)) {
		key := Route{Table: r.Table, Dst: r.Dst, Metric: metricOf(r.Metric, r.Dst.Addr().Is6())}
		if other := first[key]; other != "" && other != r.Link {
			hint := "set gw to an address in the subnet of one rail, or use routing.mode policy without table: each rail then has its own table"
			if r.Dst.Bits() == 0 {
				hint = "have the default route on one rail only, or give each rail another routing.metric"
			}
			return cnierr.New(cnierr.BadConfig, "add route to", r.Dst.String(), hint,
				"%s and %s would both add it to table %d", other, r.Link, r.Table)
		}
		first[key] = r.Link
	}
	return nil
}

// Teardown returns the operations that must be undone one by one. The kernel
// removes a link's settings, addresses and routes together with the link. So
// only the link and the rules remain of an attachment with a link that we made. The
// rules come first, so that they are undone last: a pod can add any number of rules
// that agree with ours, and the link must not wait until they are deleted.
func (o Ops) Teardown() Ops {
	type link struct {
		place Place
		name  conf.LinkName
	}
	made := map[link]bool{}
	var first, out Ops
	for _, op := range o {
		r, on := op.row(), link{op.Place, op.Link()}
		if r.makesLink {
			made[on] = true
		}
		if r.podEnd != nil {
			made[link{Pod, r.podEnd(op.Kind)}] = true
		}
		switch {
		case r.goesWithLink && made[on]:
		case r.afterLinks:
			first = append(first, op)
		default:
			out = append(out, op)
		}
	}
	return append(first, out...)
}

// Links returns the operations that make links; OnLinks returns all others.
// Undo OnLinks first, then Links: so a link stays until everything else is
// gone.
func (o Ops) Links() Ops { return o.without(func(op Op) bool { return !op.row().makesLink }) }

// OnLinks returns the operations that Links does not return.
func (o Ops) OnLinks() Ops { return o.without(func(op Op) bool { return op.row().makesLink }) }

// Unrecorded returns what can be undone of an attachment that has lost its
// record: the links that carry its mark, and the rules for the addresses of the
// link in the pod.
func Unrecorded(at conf.Attachment) Ops {
	mark := Mark(at)
	return append(OnHost(Veth{Name: hostLinkName(at), Mark: mark}), InPod(Child{Name: at.IfName, Mark: mark}, Orphans{Link: at.IfName, Mark: mark})...)
}

// Orphans are what is left of an attachment after its record was lost: the
// links of its other rails, and the rules that have our protocol number and an
// address of the link with Mark. No plan has them. DEL undoes them before the
// link itself; they are never done.
type Orphans struct {
	Link conf.LinkName `json:"link"`
	Mark string        `json:"mark"`
}

func (o Orphans) commands(in namespaces) []string {
	return []string{shell.Command("# rules of protocol %d from the addresses of %s in %s (", Protocol, o.Link, in.pod) + in.ip() + fmt.Sprintf(" rule show protocol %d)", Protocol)}
}

// Carriers are the macvlans and ipvlans of the pod that have one of the addresses, although the
// attachment's own links are gone: a link of ours with another alias and MAC, or a copy
// that the pod has made. No plan has them. DEL undoes them before it releases the
// addresses; they are never done. Their aliases do not matter, because the pod can set
// any alias, also one with the form of a mark.
type Carriers struct {
	Addresses []netip.Addr `json:"addresses"`
}

func (c Carriers) commands(in namespaces) []string {
	var addrs []string
	for _, a := range c.Addresses {
		addrs = append(addrs, a.String())
	}
	return []string{fmt.Sprintf("# macvlans and ipvlans in %s with %s (%s -d addr show)", shell.Word(in.pod), strings.Join(addrs, ", "), in.ip())}
}

// MarkPrefix begins the alias of each link of ours.
const MarkPrefix = "roce:"
