// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package repair

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// Namespace is a network namespace with the addresses in it.
type Namespace struct {
	netns.Ref
	Addrs []Addr
}

// Addr is an address that an interface has.
type Addr struct {
	IfName string
	Addr   netip.Addr
	Marked bool // roce made the interface, as its alias says
}

// Found is the network namespaces of a node.
type Found struct {
	Namespaces []Namespace
	// Hidden is the number of processes that this process may not inspect.
	// Their namespaces may be missing. It is 0 for root of the node.
	Hidden int
}

const needsRoot = "run it as root on the node itself, where all processes and namespaces are visible"

// Scan returns every network namespace of the node except that of the calling thread; see
// netns.Each. proc is the path of procfs. It never reports a namespace as empty that it
// could not read.
//
// It leaves out a namespace that vanishes during the scan. It returns an error
// of code IO for a namespace that it cannot look into.
func Scan(ctx context.Context, proc string) (Found, error) {
	var out Found
	own, err := netns.OwnID()
	if err != nil {
		return out, cnierr.New(cnierr.IO, "look at namespace", "of this thread", needsRoot, "%w", err)
	}
	for ns, err := range netns.Each(proc) {
		switch {
		case errors.Is(err, netns.ErrHidden):
			out.Hidden++
			continue
		case err != nil:
			return Found{}, cnierr.New(cnierr.IO, "look for namespaces in", proc, needsRoot, "%w", err)
		case ns.ID == own:
			continue
		}
		n := Namespace{Ref: ns.Ref}
		err := ns.Enter(func() (err error) {
			n.Addrs, err = addresses(ctx)
			return err
		})
		if err != nil {
			return Found{}, cnierr.New(cnierr.IO, "read addresses of namespace", ns.Path, needsRoot, "%w", err)
		}
		out.Namespaces = append(out.Namespaces, n)
	}
	return out, ctx.Err()
}

// addresses returns the addresses in the calling thread's namespace.
func addresses(ctx context.Context) ([]Addr, error) {
	c, err := rtnl.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	links, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	of := map[int32]rtnl.Link{}
	for _, l := range links {
		of[l.Index] = l
	}
	addrs, err := c.Addresses(ctx, 0)
	out := make([]Addr, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, Addr{of[a.Index].Name, a.Prefix.Addr(), strings.HasPrefix(of[a.Index].Alias, plan.MarkPrefix)})
	}
	return out, err
}
