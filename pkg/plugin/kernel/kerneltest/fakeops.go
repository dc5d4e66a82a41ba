// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

type (
	sysctl  struct{ op plan.Sysctl }
	up      struct{ op plan.Up }
	address struct{ op plan.Address }
	routing struct{ op plan.Route }
	policy  struct{ op plan.Rule }
	orphans struct {
		onlyUndone
		op plan.Orphans
	}
	carriers struct {
		onlyUndone
		op plan.Carriers
	}
)

// damaged returns the finding of a check.
func (s *Space) damaged(action, subject string, k plan.Kind, format string, args ...any) error {
	return cnierr.New(cnierr.Damaged, action, subject, strings.Join(s.op(k).Commands(s.name), " && "), format, args...)
}

// op returns an operation that acts in the namespace.
func (s *Space) op(k plan.Kind) plan.Op {
	op := plan.Op{Kind: k}
	if s == s.f.host {
		op.Place = plan.Host
	}
	return op
}

// need returns a link that an operation changes.
func (s *Space) need(action string, name conf.LinkName) (*iface, error) {
	if l := s.link(name); l != nil {
		return l, nil
	}
	return nil, cnierr.New(cnierr.IO, action, string(name), "", "no such device")
}

// onlyUndone is a part of what no plan has.
type onlyUndone struct{}

func (onlyUndone) do(s *Space) error { return s.f.unexpected("it is only ever undone") }

func (o onlyUndone) check(s *Space) error { return o.do(s) }

func (c carriers) undo(s *Space) error {
	has := func(l *iface) bool {
		return slices.ContainsFunc(l.addrs, func(p netip.Prefix) bool { return slices.Contains(c.op.Addresses, p.Addr()) })
	}
	for _, l := range s.links {
		if l != nil && childKind(l) && has(l) {
			s.removeLink(l)
		}
	}
	return nil
}

func (r orphans) undo(s *Space) error {
	rail := func(l *iface) bool {
		n, ok := strings.CutPrefix(l.alias, r.op.Mark+"/")
		_, err := strconv.Atoi(n)
		return ok && err == nil && childKind(l)
	}
	first := child{plan.Child{Name: r.op.Link, Mark: r.op.Mark}}.ours(s)
	for _, l := range s.links {
		if l == nil || l != first && !rail(l) {
			continue
		}
		s.rules = slices.DeleteFunc(s.rules, func(x rule) bool {
			from := func(p netip.Prefix) bool { return x.From.IsSingleIP() && x.From.Addr() == p.Addr() }
			return x.proto == plan.Protocol && slices.ContainsFunc(l.addrs, from)
		})
		if l != first {
			s.removeLink(l)
		}
	}
	return nil
}

// ours says whether the path of a setting belongs to the link.
func (c sysctl) ours(path string) bool {
	parts := strings.Split(path, "/")
	return len(parts) == 5 && parts[0] == "net" && parts[3] == string(c.op.Link) && c.op.Link != "all" && c.op.Link != "default"
}

func (c sysctl) do(s *Space) error {
	for _, v := range c.op.Set {
		if !c.ours(v.Path) {
			return cnierr.New(cnierr.Bug, "set sysctl", v.Path, "", "not a setting of %q", c.op.Link)
		}
		l := s.link(c.op.Link)
		if l == nil {
			return cnierr.New(cnierr.BadConfig, "set sysctl", v.Path, "", "no such file or directory")
		}
		if l.sysctls == nil {
			l.sysctls = map[string]string{}
		}
		l.sysctls[v.Path] = v.Value
	}
	return nil
}

func (c sysctl) undo(*Space) error { return nil }

func (c sysctl) check(s *Space) error {
	var errs []error
	l := s.link(c.op.Link)
	for _, v := range c.op.Set {
		if l == nil {
			errs = append(errs, s.damaged("check sysctl", v.Path, c.op, "the interface is gone"))
		} else if got := l.sysctls[v.Path]; got != v.Value {
			errs = append(errs, s.damaged("check sysctl", v.Path, c.op, "%w", &kernel.ChangedError{Property: v.Path, Want: v.Value, Got: got}))
		}
	}
	return errors.Join(errs...)
}

func (u up) do(s *Space) error {
	l, err := s.need("bring up", u.op.Link)
	if err != nil {
		return err
	}
	l.mtu = cmp.Or(u.op.MTU, l.mtu)
	if err := s.setUp(l, true); errors.Is(err, errMACInUse) {
		return cnierr.New(cnierr.TryAgain, "bring up", string(u.op.Link), "", "%w", &kernel.MACInUseError{Link: u.op.Link})
	}
	return nil
}

func (u up) undo(*Space) error { return nil }

func (u up) check(s *Space) error {
	if l := s.link(u.op.Link); l == nil || !l.up {
		return s.damaged("check state of", string(u.op.Link), u.op, "missing or down")
	}
	return nil
}

func (a address) do(s *Space) error {
	l, err := s.need("add address", a.op.Link)
	if err != nil {
		return err
	}
	if slices.Contains(l.addrs, a.op.Prefix) {
		return nil
	}
	if a.op.Prefix.Addr().Is6() && slices.ContainsFunc(l.addrs, func(p netip.Prefix) bool { return p.Addr() == a.op.Prefix.Addr() }) {
		return cnierr.New(cnierr.IO, "add address", a.op.Prefix.String(), "", "it is there with another length")
	}
	inUse := func(o *iface) bool {
		return slices.ContainsFunc(o.addrs, func(p netip.Prefix) bool { return p.Addr() == a.op.Prefix.Addr() })
	}
	if l.kind == "ipvlan" && slices.ContainsFunc(s.f.children(l.parent), inUse) {
		return cnierr.New(cnierr.AddressTaken, "add address", a.op.Prefix.String(), "", "%w", &kernel.AddressInUseError{Link: a.op.Link, Addr: a.op.Prefix.Addr()})
	}
	s.addAddress(l, a.op.Prefix)
	return nil
}

func (a address) undo(s *Space) error {
	if l := s.link(a.op.Link); l != nil && slices.Contains(l.addrs, a.op.Prefix) {
		s.removeAddress(l, a.op.Prefix)
	}
	return nil
}

func (a address) check(s *Space) error {
	const action = "check address"
	l := s.link(a.op.Link)
	if l == nil || !slices.Contains(l.addrs, a.op.Prefix) {
		return s.damaged(action, a.op.Prefix.String(), a.op, "not on %s", a.op.Link)
	}
	connected := func(r route) bool {
		return r.Table == plan.MainTable && r.Link == l.name && r.Dst == a.op.Prefix.Masked() && !r.Via.IsValid()
	}
	if l.up && !a.op.Prefix.IsSingleIP() && !slices.ContainsFunc(s.routes, connected) {
		if s.routedByOthers(l, a.op.Prefix.Addr()) {
			return s.damaged(action, a.op.Prefix.String(), a.op, "%w", &kernel.ChangedError{Property: "the route to its subnet", Want: "in the main table", Got: "none"})
		}
		return s.damaged(action, a.op.Prefix.String(), a.op, "%w", kernel.ErrNoSubnetRoute)
	}
	return nil
}

// routedByOthers says whether another program has a rule for an address of a link.
func (s *Space) routedByOthers(l *iface, family netip.Addr) bool {
	return slices.ContainsFunc(s.rules, func(r rule) bool {
		return r.proto != plan.Protocol && r.From.IsSingleIP() && r.From.Addr().Is4() == family.Is4() &&
			slices.ContainsFunc(l.addrs, func(p netip.Prefix) bool { return p.Addr() == r.From.Addr() })
	})
}

func (r routing) do(s *Space) error {
	const action = "add route"
	subject := fmt.Sprintf("%s table %d", r.op.Dst, r.op.Table)
	if r.op.Dst != r.op.Dst.Masked() {
		return s.f.unexpected("route %s is not masked", r.op.Dst)
	}
	l, err := s.need(action, r.op.Link)
	if err != nil {
		return err
	}
	want := route{r.op, plan.Protocol}
	switch rival := s.rival(r.op); {
	case r.op.Via.IsValid() && !r.op.OnLink && !s.reaches(r.op):
		return cnierr.New(cnierr.BadConfig, action, subject, "", "network is unreachable")
	case !l.up:
		return cnierr.New(cnierr.IO, action, subject, "", "network is down")
	case r.op.Src.IsValid() && !s.assigned(r.op.Src):
		return cnierr.New(cnierr.IO, action, subject, "", "invalid source address")
	case rival != nil && *rival == want:
		return nil
	case rival != nil:
		return cnierr.New(cnierr.RouteTaken, action, subject, "", "there is one already: %s", rival)
	}
	s.routes = append(s.routes, want)
	return nil
}

func (r routing) undo(s *Space) error {
	s.routes = slices.DeleteFunc(s.routes, func(o route) bool {
		return o.proto == plan.Protocol && o.Link == r.op.Link && o.Table == r.op.Table && o.Dst == r.op.Dst && o.Via == r.op.Via && metric(o.Route) == metric(r.op)
	})
	return nil
}

func (r routing) check(s *Space) error {
	if !slices.Contains(s.routes, route{r.op, plan.Protocol}) {
		if l := s.link(r.op.Link); l != nil && r.op.Table == plan.MainTable && s.rival(r.op) == nil && s.routedByOthers(l, r.op.Dst.Addr()) {
			return s.damaged("check route", r.op.Dst.String(), r.op, "%w", &kernel.ChangedError{Property: "the route", Want: "in the main table", Got: "none"})
		}
		return s.damaged("check route", r.op.Dst.String(), r.op, "missing or different")
	}
	return nil
}

func (p policy) do(s *Space) error {
	if want := (rule{p.op, plan.Protocol}); !slices.Contains(s.rules, want) {
		s.rules = append(s.rules, want)
	}
	return nil
}

func (p policy) undo(s *Space) error {
	s.rules = slices.DeleteFunc(s.rules, func(r rule) bool { return r == rule{p.op, plan.Protocol} })
	return nil
}

func (p policy) check(s *Space) error {
	if !slices.Contains(s.rules, rule{p.op, plan.Protocol}) {
		return s.damaged("check rule", p.op.From.String(), p.op, "missing")
	}
	return nil
}
