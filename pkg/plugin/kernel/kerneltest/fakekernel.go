// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// FakeKernel is a Fake, opened for one of its pods, or for the host alone.
type FakeKernel struct {
	f      *Fake
	pod    *Space
	closed bool
}

// ID returns the identity of the pod's namespace.
func (k *FakeKernel) ID() netns.ID {
	if k.pod == nil {
		return netns.ID{}
	}
	return k.pod.id
}

// Enter calls fn: there is no thread to move.
func (k *FakeKernel) Enter(fn func() error) error { return fn() }

// EnterHost calls fn, as Enter does.
func (k *FakeKernel) EnterHost(fn func() error) error { return fn() }

// Close makes every later use of k fail the test.
func (k *FakeKernel) Close() {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	k.closed = true
}

// Do does the operations of a run until one fails.
func (k *FakeKernel) Do(ctx context.Context, run ...plan.Op) error {
	if err := oneKind(run); err != nil {
		return err
	}
	for _, op := range run {
		if err := k.run(ctx, op, func(s *Space, x executor) error { return x.do(s) }); err != nil {
			return err
		}
	}
	return nil
}

// Undo undoes the operations of a run.
func (k *FakeKernel) Undo(ctx context.Context, run ...plan.Op) error {
	errs := []error{oneKind(run)}
	for _, op := range slices.Backward(run) {
		errs = append(errs, k.run(ctx, op, func(s *Space, x executor) error { return x.undo(s) }))
	}
	return errors.Join(errs...)
}

// Check checks the operations of a run.
func (k *FakeKernel) Check(ctx context.Context, run ...plan.Op) error {
	errs := []error{oneKind(run)}
	for _, op := range run {
		errs = append(errs, k.run(ctx, op, func(s *Space, x executor) error { return x.check(s) }))
	}
	return errors.Join(errs...)
}

func oneKind(run []plan.Op) error {
	for _, op := range run {
		if reflect.TypeOf(op.Kind) != reflect.TypeOf(run[0].Kind) || op.Place != run[0].Place {
			return cnierr.New(cnierr.Bug, "execute operation", "", "", "a run of %T in %s and %T in %s", run[0].Kind, run[0].Place, op.Kind, op.Place)
		}
	}
	return nil
}

// executor is an operation that a namespace of a Fake can do.
type executor interface {
	do(s *Space) error
	undo(s *Space) error
	check(s *Space) error
}

func (k *FakeKernel) run(ctx context.Context, op plan.Op, fn func(*Space, executor) error) error {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	if k.closed {
		return k.f.unexpected("%T after Close", op.Kind)
	}
	if ctx.Err() != nil {
		return cnierr.New(cnierr.TryAgain, "execute operation", "", "", "%w", ctx.Err())
	}
	if err := k.f.call(); err != nil {
		return err
	}
	s := k.pod
	if op.Place == plan.Host {
		s = k.f.host
	}
	if s == nil {
		return cnierr.New(cnierr.Bug, "execute operation in", op.Place.String(), "", "its namespace is not open")
	}
	how := kinds(k.pod)[reflect.TypeOf(op.Kind)]
	if op.By() != plan.ByKernel || op.Place == plan.Host && how.podOnly {
		return cnierr.New(cnierr.Bug, "execute operation", "", "", "the kernel has no executor for %T in %s", op.Kind, op.Place)
	}
	if how.with == nil {
		return fn(s, thing{op})
	}
	return fn(s, how.with(op.Kind))
}

// kind says how the operations of one kind are done.
type kind struct {
	podOnly bool
	with    func(plan.Kind) executor
}

// kinds returns the kinds that have laws of their own: what they need, and how
// they change what others made. An operation of any other kind makes a thing.
// pod is the pod of the kernel, nil for the host alone.
func kinds(pod *Space) map[reflect.Type]kind {
	return map[reflect.Type]kind{
		reflect.TypeFor[plan.VLAN]():     {false, func(k plan.Kind) executor { return vlan{k.(plan.VLAN)} }},
		reflect.TypeFor[plan.Veth]():     {false, func(k plan.Kind) executor { return veth{k.(plan.Veth), pod} }},
		reflect.TypeFor[plan.Child]():    {true, func(k plan.Kind) executor { return child{k.(plan.Child)} }},
		reflect.TypeFor[plan.Adopt]():    {true, func(k plan.Kind) executor { return adopt{k.(plan.Adopt)} }},
		reflect.TypeFor[plan.Sysctl]():   {false, func(k plan.Kind) executor { return sysctl{k.(plan.Sysctl)} }},
		reflect.TypeFor[plan.Up]():       {false, func(k plan.Kind) executor { return up{k.(plan.Up)} }},
		reflect.TypeFor[plan.Address]():  {false, func(k plan.Kind) executor { return address{k.(plan.Address)} }},
		reflect.TypeFor[plan.Route]():    {false, func(k plan.Kind) executor { return routing{k.(plan.Route)} }},
		reflect.TypeFor[plan.Rule]():     {false, func(k plan.Kind) executor { return policy{k.(plan.Rule)} }},
		reflect.TypeFor[plan.Carriers](): {true, func(k plan.Kind) executor { return carriers{op: k.(plan.Carriers)} }},
		reflect.TypeFor[plan.Orphans]():  {true, func(k plan.Kind) executor { return orphans{op: k.(plan.Orphans)} }},
	}
}

// thing is what an operation of any other kind makes. It exists or not, and has
// no further state.
type thing struct{ op plan.Op }

func (x thing) is(op plan.Op) bool { return op.Same(x.op) }

func (x thing) do(s *Space) error {
	if !slices.ContainsFunc(s.things, x.is) {
		s.things = append(s.things, x.op)
	}
	return nil
}

func (x thing) undo(s *Space) error {
	s.things = slices.DeleteFunc(s.things, x.is)
	return nil
}

func (x thing) check(s *Space) error {
	if !slices.ContainsFunc(s.things, x.is) {
		return s.damaged("check", fmt.Sprintf("%T", x.op.Kind), x.op.Kind, "missing")
	}
	return nil
}

// Facts reads the facts.
func (k *FakeKernel) Facts(ctx context.Context, req conf.Request) ([]plan.RailFacts, error) {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	if k.closed {
		return nil, k.f.unexpected("Facts after Close")
	}
	if err := k.f.call(); err != nil {
		return nil, err
	}
	if req.Prev != nil {
		one, err := k.adoptFacts(req)
		return []plan.RailFacts{{Facts: one, Fault: err}}, nil
	}
	from, taken := k.f.host, k.f.host.addresses()
	if req.LinkInContainer {
		from, taken = k.pod, append(taken, k.pod.addresses()...)
	}
	place := parent.Place{Namespace: seen{from}, Addrs: from.addresses(), Ask: noRDMA, Sys: fstest.MapFS{}}
	links, faults, err := parent.Select(ctx, place, req)
	if err != nil {
		return nil, err
	}
	var rails []plan.RailFacts
	for i, one := range req.Rails {
		facts := plan.Facts{Parent: links[i], HostAddrs: unique(taken), Pod: k.pod.facts(one.IfName)}
		keeps := func(l *iface) bool { return l.kind == "ipvlan" && l.mode != conf.L2 }
		if on := from.link(links[i].Name); faults[i] == nil && on != nil && req.Mode == conf.L2 && slices.ContainsFunc(k.f.foreign(on), keeps) {
			faults[i] = cnierr.New(cnierr.BadParent, "use master", string(links[i].Name), "", "an ipvlan of another program has another mode")
		}
		rails = append(rails, plan.RailFacts{Facts: facts, Fault: faults[i]})
	}
	return rails, nil
}

func unique(as []rtnl.Address) []netip.Addr {
	var out []netip.Addr
	for _, a := range as {
		out = append(out, a.Prefix.Addr())
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// noRDMA is the answer of a kernel without RDMA: a Fake has none.
func noRDMA(context.Context) (nldev.System, error) {
	return nldev.System{}, unix.EPROTONOSUPPORT
}

func (s *Space) facts(ifName conf.LinkName) plan.PodFacts {
	p := plan.PodFacts{Netns: s.id, IPv6: true, Taken: s.link(ifName) != nil}
	for _, r := range s.routes {
		p.Tables = append(p.Tables, r.Table)
		if r.Table == plan.MainTable && r.Dst.Bits() == 0 {
			p.Defaults = append(p.Defaults, plan.DefaultRoute{IPv6: r.Dst.Addr().Is6(), Link: r.Link, Via: r.Via, Metric: metric(r.Route)})
		}
	}
	for _, r := range s.rules {
		p.Tables = append(p.Tables, r.Table)
		p.Rules = append(p.Rules, plan.ForeignRule{From: r.From, Table: r.Table, Priority: r.Priority, Protocol: uint8(r.proto)})
	}
	p.Tables = slices.DeleteFunc(p.Tables, func(t uint32) bool { return t == 0 || t >= 253 && t <= 255 })
	slices.Sort(p.Tables)
	p.Tables = slices.Compact(p.Tables)
	return p
}

func (s *Space) addresses() []rtnl.Address {
	var out []rtnl.Address
	for i, l := range s.links {
		if l == nil {
			continue
		}
		for _, p := range l.addrs {
			a := rtnl.Address{Index: int32(i + 1), Prefix: p}
			if p.Addr().IsLinkLocalUnicast() {
				a.Scope = unix.RT_SCOPE_LINK
			}
			out = append(out, a)
		}
	}
	return out
}

// rtnl returns the link with an index as Linux reports it. ENODEV means that
// there is none.
func (s *Space) rtnl(i int) (rtnl.Link, error) {
	if i < 0 || i >= len(s.links) || s.links[i] == nil {
		return rtnl.Link{}, unix.ENODEV
	}
	l := s.links[i]
	out := rtnl.Link{Index: int32(i + 1), Name: string(l.name), Kind: l.kind, Address: l.mac[:], MTU: l.mtu, Type: unix.ARPHRD_ETHER}
	if out.Lower.NSID = rtnl.NoNSID; l.vlan != 0 {
		out.VLAN, out.Alias, out.Lower.Index = l.vlan, l.alias, s.parentIndex(l)
	}
	switch l.kind {
	case "loopback":
		out.Kind, out.Type, out.Flags = "", unix.ARPHRD_LOOPBACK, unix.IFF_LOOPBACK
	case "ether":
		out.Kind = ""
	}
	if l.up {
		out.Flags |= unix.IFF_UP | unix.IFF_LOWER_UP
	}
	return out, nil
}

// seen is a namespace in the form that parent.Select reads. It has no virtual functions.
type seen struct{ *Space }

func (seen) VFs(context.Context, string) ([]rtnl.VF, error) { return nil, nil }

func (s seen) LinksByName(_ context.Context, names ...string) []rtnl.Named {
	var out []rtnl.Named
	for _, name := range names {
		l, err := s.rtnl(slices.Index(s.links, s.link(conf.LinkName(name))))
		out = append(out, rtnl.Named{Link: l, Err: err})
	}
	return out
}

func (s seen) LinkByIndex(_ context.Context, index int32) (rtnl.Link, error) {
	return s.rtnl(int(index) - 1)
}

func (s seen) Links(context.Context) ([]rtnl.Link, error) {
	var out []rtnl.Link
	for i := range s.links {
		if l, err := s.rtnl(i); err == nil {
			out = append(out, l)
		}
	}
	return out, nil
}

func (s seen) RoutesOf(_ context.Context, family uint8, table uint32) ([]rtnl.Route, error) {
	var out []rtnl.Route
	for _, r := range s.routes {
		if r.Table == table && rtnl.Family(r.Dst.Addr()) == family {
			index := slices.Index(s.links, s.link(r.Link)) + 1
			out = append(out, rtnl.Route{Table: table, Dst: r.Dst, Via: r.Via, Index: int32(index), Metric: metric(r.Route), Type: unix.RTN_UNICAST})
		}
	}
	return out, nil
}

var errMACInUse = errors.New("address already in use")
