// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// vlan executes plan.VLAN.
type vlan struct {
	namespace // the host's
	op        plan.VLAN
}

const addingVLAN = "add VLAN"

// do creates the VLAN. One that is up needs one round trip for both links.
func (v vlan) do(ctx context.Context) error {
	found := v.conn.LinksByName(ctx, string(v.op.Name), string(v.op.NIC))
	nic, err := v.nic(ctx, found[1])
	if err != nil {
		return err
	}
	is, err := found[0].Link, found[0].Err
	switch {
	case errors.Is(err, unix.ENODEV):
		return v.create(ctx, nic)
	case err != nil:
		return classify(addingVLAN, string(v.op.Name), err)
	}
	if different := v.different(is, nic); different != "" {
		return cnierr.New(cnierr.TryAgain, addingVLAN, string(v.op.Name),
			cnierr.Again+"; if it fails again, compare with ip -d link show dev "+shell.Word(string(v.op.Name)),
			"another program has made or changed the link: %s", different)
	}
	if is.Flags&unix.IFF_UP != 0 {
		return nil
	}
	return v.start(ctx)
}

// nic returns the link below, whatever its name is now.
func (v vlan) nic(ctx context.Context, found rtnl.Named) (rtnl.Link, error) {
	return child{v.namespace, plan.Child{Name: v.op.Name, Parent: v.op.NIC, NIC: v.op.Identity}}.parentNow(ctx, v.conn, found, addingVLAN)
}

// create makes the VLAN, marks and starts it, or leaves none. One sendmsg makes and marks it, so
// that no signal comes between.
func (v vlan) create(ctx context.Context, nic rtnl.Link) error {
	name := string(v.op.Name)
	answers := v.conn.Batch(ctx, rtnl.AddVLAN(name, nic.Index, v.op.ID), rtnl.SetAlias(name, plan.VLANMark))
	if answers[0] != nil {
		return classify(addingVLAN, name, fmt.Errorf("on %q: %w", nic.Name, answers[0]),
			meaning{unix.EEXIST, cnierr.BadParent, "the NIC has this VLAN already, in another network namespace, or another program is making it: ip -d link show type vlan, in each namespace"},
			meaning{unix.EBUSY, cnierr.BadParent, "if the master is a port of a bridge, bond or switch, use the interface of that bridge, bond or switch as master"},
			meaning{unix.EOPNOTSUPP, cnierr.Unsupported, "load the driver on the node: modprobe 8021q. A link that is no Ethernet NIC cannot have VLANs"},
		)
	}
	err := classify("mark VLAN", name, answers[1])
	if err == nil {
		err = v.start(ctx)
	}
	if err != nil { // all or nothing
		return errors.Join(err, v.conn.Do(context.WithoutCancel(ctx), rtnl.DeleteNamed(name)))
	}
	return nil
}

// start sets what the host must not do in the VLAN, and brings it up.
func (v vlan) start(ctx context.Context) error {
	settings := v.op.Settings()
	if !hasIPv6() {
		settings.Set = settings.Set[1:]
	}
	if err := (sysctls{{v.namespace, settings}}).do(ctx); err != nil {
		return err
	}
	return ups{{v.namespace, plan.Up{Link: v.op.Name}}}.do(ctx)
}

// undo removes the VLAN if it is ours, and with it what of ours stands on it.
func (v vlan) undo(ctx context.Context) error {
	const action = "delete VLAN"
	is, err := v.conn.LinkByName(ctx, string(v.op.Name))
	if err != nil {
		return classify(action, string(v.op.Name), ignore(err, unix.ENODEV))
	}
	if !v.owns(is) {
		return nil
	}
	if err := v.unused(ctx, is); err != nil {
		return classify(action, string(v.op.Name), err)
	}
	return classify(action, string(v.op.Name), ignore(v.conn.Do(ctx, rtnl.DeleteLink(is.Index)), unix.ENODEV))
}

func (v vlan) owns(l rtnl.Link) bool {
	return l.Kind == "vlan" && l.VLAN == v.op.ID && l.Alias == plan.VLANMark
}

func (v vlan) check(ctx context.Context) error {
	const action = "check VLAN"
	found := v.conn.LinksByName(ctx, string(v.op.Name), string(v.op.NIC))
	nic, err := v.nic(ctx, found[1])
	if err != nil {
		return err
	}
	is, err := found[0].Link, found[0].Err
	if errors.Is(err, unix.ENODEV) {
		return damaged(action, string(v.op.Name), v.redo(v.op), "the node has no such interface")
	}
	if err != nil {
		return classify(action, string(v.op.Name), err)
	}
	if different := v.different(is, nic); different != "" {
		return damaged(action, string(v.op.Name), v.redo(v.op, v.ip("link del dev %s", v.op.Name)), "%w: %s", ErrDifferent, different)
	}
	if is.Flags&unix.IFF_UP == 0 {
		return damaged(action, string(v.op.Name), []string{v.ip("link set dev %s up", v.op.Name)}, "it is down")
	}
	if is.MTU < nic.MTU {
		return damaged(action, string(v.op.Name), v.redo(plan.Up{Link: v.op.Name, MTU: nic.MTU}), "%w",
			&ChangedError{MTU, fmt.Sprint(nic.MTU), fmt.Sprint(is.MTU), nic.MTU})
	}
	return nil
}

// different says how a link with our name is not the planned one, "" if it is.
func (v vlan) different(is, nic rtnl.Link) string {
	var out []string
	differ := func(what string, want, got any) {
		if want != got {
			out = append(out, fmt.Sprintf("want %s %v, got %v", what, want, got))
		}
	}
	differ("kind", "vlan", is.Kind)
	differ("id", v.op.ID, is.VLAN)
	differ("interface index below", nic.Index, is.Lower.Index)
	differ("alias", plan.VLANMark, is.Alias)
	return strings.Join(out, ", ")
}
