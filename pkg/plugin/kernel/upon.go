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

// upon returns a link of another program that stands on a link of the host, in any
// namespace of the node, and says where it is. It returns "" if fn accepts none. lower is the
// index of the link below.
func (k *Kernel) upon(ctx context.Context, fn func(lower int32, l rtnl.Link) bool) (is rtnl.Link, at string) {
	found := func(links []rtnl.Link, host int32) bool {
		i := slices.IndexFunc(links, func(l rtnl.Link) bool {
			return l.Lower.Index != 0 && l.Lower.NSID == host && !strings.HasPrefix(l.Alias, plan.MarkPrefix) && fn(l.Lower.Index, l)
		})
		if i >= 0 {
			is = links[i]
		}
		return i >= 0
	}
	if links, err := k.host.Links(ctx); err == nil && found(links, rtnl.NoNSID) {
		return is, "host"
	}
	look := func(ctx context.Context, path string, c *rtnl.Conn) (more bool, err error) {
		links, err := c.Links(ctx)
		if err != nil {
			return true, nil //nolint:nilerr // what cannot be read has nothing
		}
		if host, err := c.NSID(ctx, k.hostNS.FD()); err == nil && host != rtnl.NoNSID && found(links, host) {
			at = path
		}
		return at == "", nil
	}
	if k.pod != nil {
		_, _ = look(ctx, k.path, k.pod)
	}
	if at == "" {
		_ = k.eachNamespace(ctx, look)
	}
	return is, at
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
	if is, at := k.upon(ctx, func(lower int32, _ rtnl.Link) bool { return lower == l.Index }); at != "" {
		return fmt.Errorf("%w: %q in the namespace %s stands on it", ErrInUse, is.Name, at)
	}
	return nil
}

// keepModes refuses ipvlans on a NIC with one of another program that has another mode. All
// ipvlans of a NIC have one mode, and the kernel would give ours to the other one
// (ipvlan_set_port_mode).
func (k *Kernel) keepModes(ctx context.Context, rails []plan.RailFacts) {
	for i := range rails {
		r := &rails[i]
		if r.Fault != nil || r.Parent.Index == 0 {
			continue
		}
		is, at := k.upon(ctx, func(lower int32, l rtnl.Link) bool {
			return lower == r.Parent.Index && l.Kind == conf.L2.Kind() && l.Mode != string(conf.L2)
		})
		if at != "" {
			r.Fault = cnierr.New(cnierr.BadParent, "use master", string(r.Parent.Name),
				"set mode l2 in the network of the other interface, or use another NIC",
				"the ipvlan %q in the namespace %s has mode %s, and all ipvlans of a NIC have one mode", is.Name, at, is.Mode)
		}
	}
}
