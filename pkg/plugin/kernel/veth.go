// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// ErrDifferent is in the finding of Check about a link that exists when it is not as
// planned. Doing the operation again would take away what is on the link.
var ErrDifferent = errors.New("it is there, but different")

// veth executes plan.Veth.
type veth struct {
	namespace // the host's
	op        plan.Veth
}

// do creates the pair. It leaves alone a pair of ours that is as planned, and replaces any
// other pair of ours: that is a leftover.
func (v veth) do(ctx context.Context) error {
	const action = "add veth pair"
	is, err := v.conn.LinkByName(ctx, string(v.op.Name))
	switch {
	case errors.Is(err, unix.ENODEV):
		return v.create(ctx)
	case err != nil:
		return classify(action, string(v.op.Name), err)
	case !v.owns(is):
		return cnierr.New(cnierr.BadEnv, action, string(v.op.Name), "remove that link from the node, or delete the pod and create it again",
			"the node has a link of that name, of kind %q and with alias %q", is.Kind, is.Alias)
	}
	marked := is
	marked.Alias = v.op.Mark
	different, err := v.different(ctx, marked)
	if err != nil {
		return classify(action, string(v.op.Name), err)
	}
	if different != "" {
		return v.replace(ctx, is)
	}
	if is.Alias == v.op.Mark {
		return nil
	}
	return classify(action, string(v.op.Name), v.conn.Do(ctx, v.marking()))
}

// replace removes a pair of ours, and then makes the planned one.
func (v veth) replace(ctx context.Context, is rtnl.Link) error {
	if err := v.remove(ctx, is); err != nil {
		return err
	}
	return v.create(ctx)
}

// create makes the pair and marks it. One sendmsg has both messages, so that no signal
// comes between them.
func (v veth) create(ctx context.Context) error {
	const action = "add veth pair"
	here := rtnl.VethEnd{Name: string(v.op.Name), Address: v.op.MAC[:], MTU: v.op.MTU}
	peer := rtnl.VethEnd{Name: string(v.op.PodEnd), Address: v.op.PodMAC[:], MTU: v.op.MTU}
	answers := v.conn.Batch(ctx, rtnl.AddVeth(here, peer, v.podNS.FD()), v.marking())
	if errors.Is(answers[0], unix.EEXIST) {
		switch is, err := v.renamed(ctx); {
		case err == nil:
			return v.replace(ctx, is)
		case !errors.Is(err, unix.ENODEV):
			return classify(action, string(v.op.Name), err)
		}
	}
	if answers[0] != nil {
		return classify(action, string(v.op.Name), answers[0],
			meaning{unix.EEXIST, cnierr.BadEnv, fmt.Sprintf("the pod has another interface %q: hostLink needs the name", v.op.PodEnd)},
			meaning{unix.EOPNOTSUPP, cnierr.Unsupported, "load the driver on the node: modprobe veth"})
	}
	if answers[1] != nil {
		return errors.Join(classify(action, string(v.op.Name), answers[1]), v.undo(context.WithoutCancel(ctx)))
	}
	return nil
}

func (v veth) marking() rtnl.Change { return rtnl.SetAlias(string(v.op.Name), v.op.Mark) }

// renamed returns the end on the host under another name that the operator, or a program of
// the node, has given to it. The error is ENODEV if there is none.
func (v veth) renamed(ctx context.Context) (rtnl.Link, error) {
	links, err := v.conn.Links(ctx)
	if err != nil {
		return rtnl.Link{}, err
	}
	i := slices.IndexFunc(links, func(l rtnl.Link) bool { return l.Kind == "veth" && l.Alias == v.op.Mark })
	if i < 0 {
		return rtnl.Link{}, unix.ENODEV
	}
	return links[i], nil
}

// undo removes the pair by its end on the host. It does not look into the pod. An operation
// of a record, which has the MAC, also finds an end that was renamed.
func (v veth) undo(ctx context.Context) error {
	is, err := v.conn.LinkByName(ctx, string(v.op.Name))
	if errors.Is(err, unix.ENODEV) && !v.op.MAC.IsZero() {
		is, err = v.renamed(ctx)
	}
	if err != nil {
		return classify("delete veth pair", string(v.op.Name), ignore(err, unix.ENODEV))
	}
	if !v.owns(is) {
		return nil
	}
	return v.remove(ctx, is)
}

func (v veth) remove(ctx context.Context, is rtnl.Link) error {
	return classify("delete veth pair", string(v.op.Name), ignore(v.conn.Do(ctx, rtnl.DeleteLink(is.Index)), unix.ENODEV))
}

func (v veth) check(ctx context.Context) error {
	const action = "check veth pair"
	is, err := v.conn.LinkByName(ctx, string(v.op.Name))
	switch {
	case errors.Is(err, unix.ENODEV):
		return v.missing(ctx)
	case err != nil:
		return classify(action, string(v.op.Name), err)
	case !v.owns(is):
		return damaged(action, string(v.op.Name), v.recreate(), "%w: want the interface with alias %s, got kind %q with alias %q", ErrDifferent, v.op.Mark, is.Kind, is.Alias)
	}
	different, err := v.different(ctx, is)
	if err != nil {
		return classify(action, string(v.op.Name), err)
	}
	if different != "" {
		return damaged(action, string(v.op.Name), v.recreate(), "%w: %s", ErrDifferent, different)
	}
	return nil
}

// missing returns the finding about an end on the host that does not have our name.
func (v veth) missing(ctx context.Context) error {
	const action = "check veth pair"
	is, err := v.renamed(ctx)
	switch {
	case errors.Is(err, unix.ENODEV):
		return damaged(action, string(v.op.Name), v.redo(v.op), "the node has no such interface")
	case err != nil:
		return classify(action, string(v.op.Name), err)
	}
	back := []string{v.ip("link set dev %s down", is.Name), v.ip("link set dev %s name %s", is.Name, v.op.Name), v.ip("link set dev %s up", v.op.Name)}
	return damaged(action, string(v.op.Name), back, "its name is %q now", is.Name)
}

// recreate returns the commands that replace an existing pair.
func (v veth) recreate() []string { return v.redo(v.op, v.ip("link del dev %s", v.op.Name)) }

// owns says whether a link on the host with our name is ours; see plan.Veth.
func (v veth) owns(l rtnl.Link) bool {
	if l.Kind != "veth" {
		return false
	}
	if l.Alias == v.op.Mark {
		return true
	}
	return !v.op.MAC.IsZero() && parent.MAC(l) == v.op.MAC && !strings.HasPrefix(l.Alias, plan.MarkPrefix)
}

// different says how a pair of ours is not as planned, "" if it is.
func (v veth) different(ctx context.Context, is rtnl.Link) (string, error) {
	pod, err := v.pod.LinkByName(ctx, string(v.op.PodEnd))
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Sprintf("the pod has no interface %q, it has renamed or moved it", v.op.PodEnd), nil
	case err != nil:
		return "", err
	case pod.Kind != "veth" || pod.Lower.Index != is.Index || is.Lower.Index != pod.Index:
		return fmt.Sprintf("%q in the pod is not the other end", v.op.PodEnd), nil
	case is.Alias != v.op.Mark:
		return fmt.Sprintf("want alias %s, got %q", v.op.Mark, is.Alias), nil
	case parent.MAC(is) != v.op.MAC:
		return fmt.Sprintf("want MAC %s, got %s", v.op.MAC, parent.MAC(is)), nil
	case parent.MAC(pod) != v.op.PodMAC:
		return fmt.Sprintf("want MAC %s in the pod, got %s", v.op.PodMAC, parent.MAC(pod)), nil
	}
	return "", nil
}
