// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// ErrInUse is in the error of Undo about a link on the host that stays, because something of
// another program stands on it.
var ErrInUse = errors.New("another program uses it")

// upon calls fn for each link of another program that stands on a link of the host, in any
// namespace of the node, until fn returns true. at says where the link is.
func (k *Kernel) upon(ctx context.Context, fn func(l rtnl.Link, at string) (stop bool)) {
	visit := func(links []rtnl.Link, host int32, at string) bool {
		return slices.ContainsFunc(links, func(l rtnl.Link) bool {
			return l.Lower.Index != 0 && l.Lower.NSID == host && !strings.HasPrefix(l.Alias, plan.MarkPrefix) && fn(l, at)
		})
	}
	if links, err := k.host.Links(ctx); err == nil && visit(links, rtnl.NoNSID, "host") {
		return
	}
	look := func(ctx context.Context, path string, c *rtnl.Conn) (more bool, err error) {
		links, err := c.Links(ctx)
		if err != nil {
			return true, nil //nolint:nilerr // what cannot be read has nothing
		}
		host, err := c.NSID(ctx, k.hostNS.FD())
		return err != nil || host == rtnl.NoNSID || !visit(links, host, path), nil
	}
	if k.pod != nil {
		if more, _ := look(ctx, k.path, k.pod); !more {
			return
		}
	}
	_ = k.eachNamespace(ctx, look)
}

// unused returns ErrInUse if a link of the host has an address, is a port of another link,
// or carries a link of another program.
func (k *Kernel) unused(ctx context.Context, l rtnl.Link) error {
	addrs, err := k.host.Addresses(ctx, l.Index)
	if err != nil {
		return err
	}
	addrs = slices.DeleteFunc(addrs, func(a rtnl.Address) bool { return a.Prefix.Addr().IsLinkLocalUnicast() })
	if len(addrs) > 0 {
		return fmt.Errorf("%w: it has %s", ErrInUse, list(addrs))
	}
	if l.Master != 0 {
		return fmt.Errorf("%w: it is a port of a %s", ErrInUse, l.SlaveKind)
	}
	k.upon(ctx, func(on rtnl.Link, at string) bool {
		if on.Lower.Index == l.Index {
			err = fmt.Errorf("%w: %q in the namespace %s stands on it", ErrInUse, on.Name, at)
		}
		return err != nil
	})
	return err
}

// keepModes refuses ipvlans on a NIC with one of another program that has another mode. All
// ipvlans of a NIC have one mode, and the kernel would give ours to the other one
// (ipvlan_set_port_mode).
func (k *Kernel) keepModes(ctx context.Context, rails []plan.RailFacts) {
	k.upon(ctx, func(l rtnl.Link, at string) bool {
		i := slices.IndexFunc(rails, func(r plan.RailFacts) bool { return r.Fault == nil && r.Parent.Index == l.Lower.Index })
		if i >= 0 && l.Kind == conf.L2.Kind() && l.Mode != string(conf.L2) {
			rails[i].Fault = cnierr.New(cnierr.BadParent, "use master", string(rails[i].Parent.Name),
				"set mode l2 in the network of the other interface, or use another NIC",
				"the ipvlan %q in the namespace %s has mode %s, and all ipvlans of a NIC have one mode", l.Name, at, l.Mode)
		}
		return false
	})
}
