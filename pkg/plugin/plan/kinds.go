// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// kinds is all that there is to know of the kinds of operations, beside what they
// do: a row for each.
//
//nolint:gochecknoglobals // a table that nothing writes; every look at an operation reads it
var kinds = []row{
	of[VLAN](row{name: "vlan", phase: phaseVLAN, makesLink: true, marked: true, link: about(func(v VLAN) conf.LinkName { return v.Name })}),
	of[Child](row{
		name: "macvlan", phase: phaseLink, makesLink: true, marked: true,
		link:   about(func(m Child) conf.LinkName { return m.Name }),
		parent: func(k Kind) conf.Request { return k.(Child).parentRequest() },
	}),
	of[Veth](row{
		name: "veth", phase: phaseLink, makesLink: true, marked: true,
		link:   about(func(v Veth) conf.LinkName { return v.Name }),
		podEnd: about(func(v Veth) conf.LinkName { return v.PodEnd }),
	}),
	of[Adopt](row{name: "adopt", phase: phaseLink, foreign: true, link: about(func(a Adopt) conf.LinkName { return a.Link })}),
	of[Sysctl](row{
		name: "sysctl", phase: phaseSettings, goesWithLink: true, routing: true, link: about(func(s Sysctl) conf.LinkName { return s.Link }),
		late: func(k Kind) bool { return k.(Sysctl).Up }, phaseLate: phaseUpSettings,
	}),
	of[Up](row{name: "up", phase: phaseUp, goesWithLink: true, link: about(func(u Up) conf.LinkName { return u.Link })}),
	of[Neighbour](row{name: "neighbour", phase: phaseNeighbour, goesWithLink: true, routing: true, link: about(func(n Neighbour) conf.LinkName { return n.Link })}),
	of[Conflict](row{name: "conflict", by: ByWire, phase: phaseConflict, join: joined(func(c *Conflict) *[]Target { return &c.Targets })}),
	of[Address](row{
		name: "address", phase: phaseAddress, goesWithLink: true, makesGIDs: true,
		link: about(func(a Address) conf.LinkName { return a.Link }),
	}),
	of[Align](row{name: "align", by: ByAligner, phase: phaseAlign, join: joined(func(a *Align) *[]AlignRail { return &a.Rails })}),
	of[Route](row{name: "route", phase: phaseRoute, goesWithLink: true, marked: true, routing: true, link: about(func(r Route) conf.LinkName { return r.Link })}),
	of[Rule](row{name: "rule", phase: phaseRule, afterLinks: true, marked: true, routing: true, from: func(k Kind) netip.Addr { return k.(Rule).From.Addr() }}),
	of[Orphans](row{name: "orphans"}),
	of[Carriers](row{name: "carriers"}),
	of[Gateway](row{name: "gateway", by: ByWire, phase: phaseGateway, join: joined(func(g *Gateway) *[]Target { return &g.Targets })}),
	of[Move](row{name: "move", by: ByRDMA, phase: phaseMove, stays: true, link: about(func(m Move) conf.LinkName { return m.Link })}),
	of[Port](row{name: "port", by: ByRDMA, looks: true, phase: phasePort, phaseOnHost: phaseHostPort, link: about(func(p Port) conf.LinkName { return p.Link })}),
	of[GID](row{
		name: "gid", by: ByRDMA, looks: true, phase: phaseGID, phaseOnHost: phaseHostGID,
		link: about(func(g GID) conf.LinkName { return g.Targets[0].Link }),
	}),
	of[DeviceInfo](row{name: "deviceinfo", by: ByRDMA, phase: phaseDeviceInfo}),
	of[Announce](row{name: "announce", by: ByWire, phase: phaseAnnounce, join: joined(func(a *Announce) *[]Target { return &a.Targets })}),
}

type row struct {
	name string // in JSON, so it never changes
	by   By
	// phase is when an operation is done; none for Orphans and Carriers, which are only undone.
	// phaseOnHost, unless it is 0, is the phase of an operation that acts on the host, and
	// phaseLate that of an operation for which late is true.
	phase, phaseOnHost, phaseLate phase
	late                          func(Kind) bool
	// makesLink says that an operation makes a link: it is undone after all operations
	// on links. goesWithLink says that the kernel undoes it when its link goes.
	makesLink, goesWithLink bool
	// afterLinks says that an operation is undone after all others: a pod can make
	// that slow, and its link must not wait for it.
	afterLinks bool
	// marked says that what an operation makes carries our mark. Only such operations can be
	// shared: without a mark, our things cannot be told from foreign ones.
	marked bool
	// foreign says that another plugin made the thing. stays says that repair makes the
	// thing again without undoing it first.
	foreign, stays bool
	// looks says that an operation only waits for something, or looks at it.
	looks bool
	// routing says that an operation only steers packets, and changes no link and no address.
	routing bool
	// makesGIDs says that the kernel adds an entry to the GID table of a NIC.
	makesGIDs bool
	// link returns the link of an operation, podEnd the link that one on the host makes in
	// the pod, from the source address of the packets that it affects, and parent a request
	// for nothing but the link that it makes. nil: there is none.
	link   func(Kind) conf.LinkName
	podEnd func(Kind) conf.LinkName
	from   func(Kind) netip.Addr
	parent func(Kind) conf.Request
	// join makes one operation of two in the same phase; nil: they stay two.
	join func(first, next Kind) Kind

	of     reflect.Type
	decode func(json.RawMessage) (Kind, error)
}

// By names an executor of operations.
type By uint8

// The executors.
const (
	ByKernel By = iota
	ByWire
	ByRDMA
	ByAligner // uses the kernel and RDMA in turn
)

func of[K Kind](r row) row {
	r.of = reflect.TypeFor[K]()
	r.decode = func(b json.RawMessage) (Kind, error) {
		var k K
		err := json.Unmarshal(b, &k)
		return k, err
	}
	return r
}

func about[K Kind](link func(K) conf.LinkName) func(Kind) conf.LinkName {
	return func(k Kind) conf.LinkName { return link(k.(K)) }
}

func joined[K Kind, T any](list func(*K) *[]T) func(first, next Kind) Kind {
	return func(first, next Kind) Kind {
		a, b := first.(K), next.(K)
		*list(&a) = slices.Concat(*list(&a), *list(&b))
		return a
	}
}

// row returns the row of an operation's kind, an empty one if it has no kind.
func (o Op) row() row {
	t := reflect.TypeOf(o.Kind)
	i := slices.IndexFunc(kinds, func(r row) bool { return r.of == t })
	if i < 0 {
		return row{}
	}
	return kinds[i]
}

func (o Op) phase() phase {
	switch r := o.row(); {
	case r.late != nil && r.late(o.Kind):
		return r.phaseLate
	case o.Place == Pod || r.phaseOnHost == 0:
		return r.phase
	default:
		return r.phaseOnHost
	}
}

// Name returns the kind of the operation in one word, as the records have it.
func (o Op) Name() string { return o.row().name }

// By returns which executor does the operation.
func (o Op) By() By { return o.row().by }

// Link returns the link of the operation, "" if it has none or several.
func (o Op) Link() conf.LinkName {
	if link := o.row().link; link != nil {
		return link(o.Kind)
	}
	return ""
}

// Marked says whether what the operation makes carries our mark.
func (o Op) Marked() bool { return o.row().marked }

// Stays says that repair does the operation again without undoing it first,
// because programs or other pods are using the thing.
func (o Op) Stays() bool { return o.Shared || o.row().stays }

// Routing says that the operation only steers packets.
func (o Op) Routing() bool { return o.row().routing }

// Changes returns the operations without those that only look.
func (o Ops) Changes() Ops {
	return o.without(func(op Op) bool { return op.row().looks })
}

// Foreign says that another plugin made the thing: the operation cannot make it again.
func (o Op) Foreign() bool { return o.row().foreign }

// Parent returns a request for nothing but the link that the operation makes,
// false if it makes none.
func (o Op) Parent() (conf.Request, bool) {
	if parent := o.row().parent; parent != nil {
		return parent(o.Kind), true
	}
	return conf.Request{}, false
}

type envelope[Args any] struct {
	Kind   string `json:"op"`
	Place  string `json:"place"`
	Shared bool   `json:"shared,omitempty"`
	Args   Args   `json:"args"`
}

// The places in JSON.
const (
	inPod  = "pod"
	onHost = "host"
)

// MarshalJSON writes [{"op": kind, "place": place, "args": {...}}, ...].
func (o Ops) MarshalJSON() ([]byte, error) {
	out := make([]envelope[Kind], 0, len(o))
	for _, op := range o {
		place := inPod
		if op.Place == Host {
			place = onHost
		}
		out = append(out, envelope[Kind]{op.row().name, place, op.Shared, op.Kind})
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote. An unknown kind or place is an error: a
// record must not be undone in part.
func (o *Ops) UnmarshalJSON(b []byte) error {
	var in []envelope[json.RawMessage]
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*o = make(Ops, len(in))
	for i, e := range in {
		var err error
		if (*o)[i], err = decode(e); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	return nil
}

func decode(e envelope[json.RawMessage]) (Op, error) {
	op := Op{Shared: e.Shared}
	switch e.Place {
	case inPod:
	case onHost:
		op.Place = Host
	default:
		return Op{}, fmt.Errorf("unknown place %q", e.Place)
	}
	for _, r := range kinds {
		if r.name == e.Kind {
			var err error
			op.Kind, err = r.decode(e.Args)
			return op, err
		}
	}
	return Op{}, fmt.Errorf("unknown kind %q", e.Kind)
}
