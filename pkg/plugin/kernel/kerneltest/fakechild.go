// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// child makes a macvlan or an ipvlan of a NIC of the host.
type child struct{ op plan.Child }

func (m child) parent(s *Space) (*iface, error) {
	from := s.f.host
	if m.op.InPod {
		from = s
	}
	if p := from.link(m.op.Parent); p != nil {
		return p, nil
	}
	return nil, cnierr.New(cnierr.BadParent, "add macvlan", string(m.op.Parent), "", "no such device")
}

func (m child) do(s *Space) error {
	const action = "add macvlan"
	p, err := m.parent(s)
	if err != nil {
		return err
	}
	l := s.link(m.op.Name)
	switch {
	case l != nil && !m.owns(l):
		return cnierr.New(cnierr.BadEnv, action, string(m.op.Name), "", "the pod has a link of that name")
	case l != nil && len(m.differences(l, p)) == 0:
		l.alias = m.op.Mark
		return nil
	case l != nil:
		s.removeLink(l)
	}
	siblings := s.f.children(p)
	if slices.ContainsFunc(siblings, func(l *iface) bool { return l.kind != m.op.Mode.Kind() }) {
		return cnierr.New(cnierr.BadParent, action, string(m.op.Name), "", "on %q: device or resource busy", m.op.Parent)
	}
	crowded := slices.ContainsFunc(siblings, func(l *iface) bool { return m.op.Mode == conf.Passthru || l.mode == conf.Passthru })
	if p.kind == "loopback" || m.op.MTU > p.mtu || crowded {
		return cnierr.New(cnierr.BadParent, action, string(m.op.Name), "", "on %q: invalid argument", m.op.Parent)
	}
	s.links = append(s.links, &iface{
		name: m.op.Name, kind: m.op.Mode.Kind(), alias: m.op.Mark, mac: m.mac(p), mtu: m.op.MTU, mode: m.op.Mode, parent: p, sysctls: map[string]string{},
	})
	return nil
}

// mac returns the MAC that the link gets on p.
func (m child) mac(p *iface) conf.MAC {
	if m.op.Mode == conf.L2 {
		return p.mac
	}
	return m.op.MAC
}

// children returns the macvlans and ipvlans on p, in all namespaces.
func (f *Fake) children(p *iface) (out []*iface) {
	for _, s := range f.spaces() {
		for _, l := range s.links {
			if l != nil && l.parent == p && childKind(l) {
				out = append(out, l)
			}
		}
	}
	return out
}

// foreign returns the children of p that another program has made.
func (f *Fake) foreign(p *iface) []*iface {
	return slices.DeleteFunc(f.children(p), func(l *iface) bool { return strings.HasPrefix(l.alias, plan.MarkPrefix) })
}

func (m child) owns(l *iface) bool {
	if m.op.Mode != "" && l.kind != m.op.Mode.Kind() || !childKind(l) {
		return false
	}
	if l.alias == m.op.Mark {
		return true
	}
	if l.kind == "ipvlan" && l.name != m.op.Name {
		return false
	}
	return !m.op.MAC.IsZero() && l.mac == m.op.MAC && !strings.HasPrefix(l.alias, "roce:")
}

func (m child) undo(s *Space) error {
	if l := m.ours(s); l != nil {
		s.removeLink(l)
	}
	return nil
}

// ours returns our link, whatever its name is, nil if there is none.
func (m child) ours(s *Space) *iface {
	if l := s.link(m.op.Name); l != nil && m.owns(l) {
		return l
	}
	i := slices.IndexFunc(s.links, func(l *iface) bool { return l != nil && l.alias == m.op.Mark && m.owns(l) })
	if i < 0 {
		i = slices.IndexFunc(s.links, func(l *iface) bool { return l != nil && m.owns(l) })
	}
	if i < 0 {
		return nil
	}
	return s.links[i]
}

// childKind says whether a link is of a kind that roce makes on a NIC.
func childKind(l *iface) bool { return l.kind == "macvlan" || l.kind == "ipvlan" }

func (m child) check(s *Space) error {
	const action = "check macvlan"
	l := s.link(m.op.Name)
	if l == nil && m.ours(s) != nil {
		return s.damaged(action, string(m.op.Name), m.op, "%w", kernel.ErrRenamed)
	}
	if l == nil || !m.owns(l) {
		return s.damaged(action, string(m.op.Name), m.op, "missing, or a link of another program")
	}
	p, err := m.parent(s)
	if err != nil {
		return err
	}
	var found []error
	if !p.up {
		found = append(found, s.damaged(action, string(m.op.Name), m.op, "%w %s is down", kernel.ErrParentDown, p.name))
	}
	for _, d := range m.differences(l, p) {
		found = append(found, s.damaged(action, string(m.op.Name), m.op, "%w", d))
	}
	if l.alias != m.op.Mark {
		found = append(found, s.damaged(action, string(m.op.Name), m.op, "another alias"))
	}
	return errors.Join(found...)
}

// differences does not compare the alias: its callers do.
func (m child) differences(l, p *iface) []error {
	var out []error
	for _, d := range []struct {
		what      string
		want, got any
	}{{"kind", m.op.Mode.Kind(), l.kind}, {"parent", p, l.parent}, {"mode", m.op.Mode, l.mode}} {
		if d.want != d.got {
			out = append(out, fmt.Errorf("want %s %v, got %v", d.what, d.want, d.got))
		}
	}
	if l.mac != m.op.MAC {
		out = append(out, &kernel.ChangedError{Property: kernel.MAC, Want: m.op.MAC.String(), Got: l.mac.String()})
	}
	if l.mtu != m.op.MTU {
		changed := &kernel.ChangedError{Property: kernel.MTU, Want: strconv.Itoa(m.op.MTU), Got: strconv.Itoa(l.mtu)}
		if l.mtu < m.op.MTU && m.op.MTU <= p.mtu {
			changed.Raise = m.op.MTU
		}
		out = append(out, changed)
	}
	return out
}
