// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// macvlan executes plan.Macvlan.
type macvlan struct {
	*Kernel
	op plan.Macvlan
}

// do creates the link. One that is ours and as planned is left alone; one that
// is ours and different is what a plan of before left, and makes way.
func (m macvlan) do(ctx context.Context) error {
	const action = "add macvlan"
	p, err := m.parent(ctx, action)
	if err != nil {
		return err
	}
	is, err := m.pod.LinkByName(ctx, string(m.op.Name))
	switch {
	case errors.Is(err, unix.ENODEV):
		return m.create(ctx, p)
	case err != nil:
		return classify(action, string(m.op.Name), err)
	case !m.owns(is):
		return cnierr.New(cnierr.BadEnv, action, string(m.op.Name),
			"choose another interface name in the pod's networks annotation", "the pod has %s of that name", m.describe(is))
	case is.Alias == "":
		if err := m.pod.Do(ctx, m.marking()); err != nil {
			return classify(action, string(m.op.Name), err)
		}
		is.Alias = m.op.Mark
	}
	if len(m.differences(is, p)) == 0 {
		return nil
	}
	if err := m.remove(ctx, is.Index); err != nil {
		return classify(action, string(m.op.Name), err)
	}
	return m.create(ctx, p)
}

// undo removes the link if it is ours, also under a name that the pod gave it.
func (m macvlan) undo(ctx context.Context) error {
	const action = "delete macvlan"
	is, err := m.ours(ctx)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err == nil {
		err = m.remove(ctx, is.Index)
	}
	return classify(action, string(m.op.Name), err)
}

// ours returns our link, whatever its name is, ENODEV if there is none.
func (m macvlan) ours(ctx context.Context) (rtnl.Link, error) {
	is, err := m.pod.LinkByName(ctx, string(m.op.Name))
	if errors.Is(err, unix.ENODEV) || (err == nil && !m.owns(is)) {
		return m.renamed(ctx)
	}
	return is, err
}

// renamed returns the link that carries our mark under another name, ENODEV if
// there is none.
func (m macvlan) renamed(ctx context.Context) (rtnl.Link, error) {
	links, err := m.pod.Links(ctx)
	if err != nil {
		return rtnl.Link{}, err
	}
	for _, l := range links {
		if l.Alias == m.op.Mark && m.owns(l) {
			return l, nil
		}
	}
	return rtnl.Link{}, unix.ENODEV
}

func (m macvlan) check(ctx context.Context) error {
	const action = "check macvlan"
	is, err := m.pod.LinkByName(ctx, string(m.op.Name))
	if errors.Is(err, unix.ENODEV) {
		return m.missing(ctx, action)
	}
	if err != nil {
		return classify(action, string(m.op.Name), err)
	}
	if !m.owns(is) {
		return damaged(action, string(m.op.Name), m.anew(),
			"want the interface with alias %s, got %s", m.op.Mark, m.describe(is))
	}
	p, err := m.parent(ctx, action)
	if err != nil {
		return err
	}
	var found, fixes []string
	for _, d := range m.differences(is, p) {
		found, fixes = append(found, d.what), append(fixes, d.fix...)
	}
	if len(found) == 0 {
		return nil
	}
	return damaged(action, string(m.op.Name), fixes, "%s", strings.Join(found, ", "))
}

// missing says that there is no link of our name, and whether it has another.
func (m macvlan) missing(ctx context.Context, action string) error {
	is, err := m.renamed(ctx)
	switch {
	case errors.Is(err, unix.ENODEV):
		return damaged(action, string(m.op.Name), m.redo(m.op), "the pod has no such interface")
	case err != nil:
		return classify(action, string(m.op.Name), err)
	}
	down, name, up := m.ip("link set dev %s down", is.Name), m.ip("link set dev %s name %s", is.Name, m.op.Name), m.ip("link set dev %s up", m.op.Name)
	return damaged(action, string(m.op.Name), []string{down, name, up}, "%w to %q", ErrRenamed, is.Name)
}

// anew returns the commands that put our link in the place of what is there.
func (m macvlan) anew() []string { return m.redo(m.op, m.ip("link del dev %s", m.op.Name)) }

// owns says whether a link of our name is ours; see plan.Macvlan.
func (m macvlan) owns(l rtnl.Link) bool {
	if l.Kind != "macvlan" {
		return false // an alias alone can be anybody's
	}
	if l.Alias != "" {
		return l.Alias == m.op.Mark
	}
	return !m.op.MAC.IsZero() && ethernet(l) == m.op.MAC
}

// describe says what somebody else's link is.
func (m macvlan) describe(l rtnl.Link) string {
	kind := l.Kind
	if kind == "" {
		kind = l.Encap()
	}
	s := fmt.Sprintf("a link of kind %s with address %s", kind, ethernet(l))
	if l.Alias != "" {
		s += fmt.Sprintf(" and alias %q", l.Alias)
	}
	return s
}

// parentage is the link that carries the macvlan: what to ask for, and what
// the kernel makes of it.
type parentage struct {
	ask rtnl.Lower
	// real differs from ask on a macvlan: the kernel takes the link below that
	// one (macvlan_common_newlink). Its namespace may be one that ours knows
	// by no number, so only the index counts.
	real   int32
	nested bool
}

func (p parentage) carries(l rtnl.Link) bool {
	return l.Lower.Index == p.real && (p.nested || l.Lower.NSID == p.ask.NSID)
}

// parent looks the parent up now: an index that was stored may be another
// link's by now.
func (m macvlan) parent(ctx context.Context, action string) (parentage, error) {
	c := m.host
	if m.op.InPod {
		c = m.pod
	}
	l, err := c.LinkByName(ctx, string(m.op.Parent))
	if err != nil {
		return parentage{}, classify(action, string(m.op.Parent), err,
			meaning{unix.ENODEV, cnierr.BadParent, "ip link shows whether the master was renamed or removed"})
	}
	p := parentage{ask: rtnl.Lower{Index: l.Index, NSID: rtnl.NoNSID}, real: l.Index}
	if l.Kind == "macvlan" {
		p.real, p.nested = l.Lower.Index, true
	}
	if !m.op.InPod {
		p.ask.NSID, err = m.hostNSID(ctx)
	}
	return p, classify(action, string(m.op.Parent), err)
}

// difference is one thing about a link that is not as planned, and the
// commands that make it so.
type difference struct {
	what string
	fix  []string
}

func (m macvlan) differences(l rtnl.Link, p parentage) []difference {
	var out []difference
	differ := func(what string, want, got any, fix ...string) {
		if want != got {
			out = append(out, difference{fmt.Sprintf("want %s %v, got %v", what, want, got), fix})
		}
	}
	if l.Kind != "macvlan" || !p.carries(l) {
		return []difference{{fmt.Sprintf("want a macvlan on %s, got %s", m.op.Parent, m.describe(l)), m.anew()}}
	}
	set := m.ip("link set dev %s ", m.op.Name)
	differ("alias", m.op.Mark, l.Alias, set+"alias "+m.op.Mark)
	differ("mode", m.op.Mode, conf.Mode(l.Mode), set+"type macvlan mode "+string(m.op.Mode))
	differ("MAC", m.op.MAC, ethernet(l), set+"address "+m.op.MAC.String())
	differ("MTU", m.op.MTU, l.MTU, set+fmt.Sprint("mtu ", m.op.MTU))
	return out
}
