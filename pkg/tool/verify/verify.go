// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package verify tests whether the rails of pods work: in one pod, and between pods.
// Each answer names the rail, and where it can the node, that has the fault.
//
// It changes nothing in a pod, and it sends only small tests: ARP and UDP, and by RDMA
// if the caller asks for it. It opens every socket through Pod.Enter. A server answers
// only callers with its token, and trusts them. Read this file first, then local.go for one
// pod, pair.go and rdma.go for two, server.go and wire.go for the protocol between them,
// schedule.go, invite.go, blame.go and tally.go for many.
package verify

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Pod is a pod to test.
type Pod struct {
	// Name is what answers call it: the name of its node.
	Name string
	// Enter runs fn in the pod's network namespace, on a locked thread.
	Enter func(fn func() error) error
	// Control runs fn where the servers of other pods are reached; nil: Enter.
	Control func(fn func() error) error
	// Inside tests what only programs in the pod can: RDMA devices and locked memory. It
	// gets the pod with the name that the answers must have.
	Inside func(p Pod) []report.Answer
	// RDMA returns the ports and GIDs of the rails that have one, by their interfaces; nil:
	// the pod makes no tests by RDMA.
	RDMA func(ctx context.Context) (map[conf.LinkName]gids.Rail, error)
}

// Rail is an interface of a pod that roce made or adopted, with its first address.
type Rail struct {
	Number  int           `json:"rail"`
	Link    conf.LinkName `json:"interface"`
	MAC     conf.MAC      `json:"mac"`
	MTU     int           `json:"mtu"`
	Addr    netip.Addr    `json:"address"`
	Subnet  netip.Prefix  `json:"subnet"`
	Gateway netip.Addr    `json:"gateway,omitzero"`
	// Reaches are the destinations for which the rail has a route.
	Reaches []netip.Prefix `json:"reaches"`
	// UDP is the port of its echo, if the pod serves.
	UDP uint16 `json:"udp,omitempty"`

	index int32
	table uint32
	up    bool
	fails bool // it has the rule that makes traffic fail visibly
}

// view is what the namespace of a pod contains.
type view struct {
	links  []rtnl.Link
	addrs  []rtnl.Address
	routes []rtnl.Route
	rules  []rtnl.Rule
}

func (p Pod) look(ctx context.Context) (v view, err error) {
	var c *rtnl.Conn
	if err = p.Enter(func() (err error) { c, err = rtnl.Dial(); return err }); err != nil {
		return view{}, failed(err)
	}
	defer c.Close()
	if v.links, err = c.Links(ctx); err != nil {
		return view{}, failed(err)
	}
	if v.addrs, err = c.Addresses(ctx, 0); err != nil {
		return view{}, failed(err)
	}
	if v.routes, err = c.Routes(ctx); err != nil {
		return view{}, failed(err)
	}
	if v.rules, err = c.Rules(ctx, unix.AF_UNSPEC); err != nil {
		return view{}, failed(err)
	}
	return v, nil
}

func failed(err error) error {
	return cnierr.New(cnierr.IO, "look at", "pod", "run it in the pod, or as root on the node", "%w", err)
}

// Rails returns the rails of the pod in the order of their names. Errors: cnierr.IO,
// and BadConfig if the pod has none.
func (p Pod) Rails(ctx context.Context) ([]Rail, error) {
	v, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	rails := v.rails()
	if len(rails) == 0 {
		return nil, cnierr.New(cnierr.BadConfig, "look for", "rails", "run it in a pod with a network of roce, or name the pod with --pid or --netns",
			"the namespace has no interface of roce with an address")
	}
	return rails, nil
}

// rails finds the interfaces with the mark of roce, and those with an address that
// has a rule of roce. Numbers are positions in the order of the names.
func (v view) rails() []Rail {
	var out []Rail
	for _, l := range v.links {
		marked := strings.HasPrefix(l.Alias, "roce:")
		for _, a := range v.addrs {
			if a.Index != l.Index || a.Prefix.Addr().IsLinkLocalUnicast() || a.Prefix.Addr().IsLoopback() {
				continue
			}
			table, fails := v.rule(a.Prefix.Addr())
			if !marked && table == 0 {
				continue
			}
			r := Rail{
				Link: conf.LinkName(l.Name), MTU: l.MTU, Addr: a.Prefix.Addr(), Subnet: a.Prefix.Masked(),
				index: l.Index, table: table, fails: fails, up: l.Flags&unix.IFF_LOWER_UP != 0 && l.Flags&unix.IFF_UP != 0,
			}
			copy(r.MAC[:], l.Address)
			r.Gateway, r.Reaches = v.reaches(r)
			out = append(out, r)
			break
		}
	}
	slices.SortFunc(out, func(a, b Rail) int { return parent.Natural(string(a.Link), string(b.Link)) })
	for i := range out {
		out[i].Number = i
	}
	return out
}

// rule returns the table for packets from an address, 0 if no rule of roce has it, and
// whether a second rule makes them fail where the table has no route.
func (v view) rule(addr netip.Addr) (table uint32, fails bool) {
	for _, r := range v.rules {
		if r.Protocol != plan.Protocol || r.From.Addr() != addr {
			continue
		}
		if r.Action == unix.FR_ACT_TO_TBL {
			table = r.Table
		} else {
			fails = true
		}
	}
	return table, fails
}

// reaches returns the gateway of a rail, and the destinations of its routes: those in
// its table, or in the main table if it has none.
func (v view) reaches(r Rail) (gateway netip.Addr, out []netip.Prefix) {
	table := r.table
	if table == 0 {
		table = unix.RT_TABLE_MAIN
	}
	for _, route := range v.routes {
		if route.Table != table || route.Index != r.index || route.Type != unix.RTN_UNICAST || route.Dst.Addr().Is4() != r.Addr.Is4() {
			continue
		}
		if route.Dst.Bits() == 0 && route.Via.IsValid() {
			gateway = route.Via
		}
		out = append(out, route.Dst)
	}
	return gateway, out
}

// reach says whether the rail has a route to an address.
func (r Rail) reach(a netip.Addr) bool {
	return slices.ContainsFunc(r.Reaches, func(p netip.Prefix) bool { return p.Contains(a) })
}
