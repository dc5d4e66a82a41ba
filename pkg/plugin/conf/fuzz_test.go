// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// Whatever comes in, Parse either returns a request that is as request.go
// says, or an error that fits into one line and has one of our codes. The
// three parsers agree on what they all read. Seeds are in testdata.
func FuzzParse(f *testing.F) {
	f.Fuzz(func(t *testing.T, stdin []byte, args, id, ifName, netns string) {
		in := conf.Input{ContainerID: id, IfName: ifName, Netns: netns, Args: args, Stdin: stdin}
		r, err := conf.Parse(in)
		again, errAgain := conf.Parse(in)
		if d := diff(r, again); d != "" || (err == nil) != (errAgain == nil) {
			t.Fatalf("parsed again it differs: %v, %v\n%s", err, errAgain, d)
		}
		if err != nil {
			sayable(t, err)
			return
		}
		valid(t, r, stdin)
		d, err := conf.ParseDel(in)
		if want := (conf.Del{Network: r.Network, Attachment: r.Attachment, Netns: r.Netns, IPAM: r.IPAM.Type, Raw: string(in.Stdin), Pod: r.Pod}); err != nil || d != want {
			t.Errorf("DEL got %v, %v, want %v", d, err, want)
		}
		if r.IPAM.Type != conf.PoolType {
			return
		}
		i, err := conf.ParseIPAM(in)
		if len(r.Rails) > 1 || r.Match != nil || r.IPAM.FromMaster != nil || r.IPAM.Table || hasRails(t, stdin) { // roce's alone
			return
		}
		rail := r.Rails[0]
		rail.Parent, rail.Routing = conf.Parent{}, conf.Routing{}
		want := conf.Request{CNIVersion: r.CNIVersion, Network: r.Network, Attachment: r.Attachment, Netns: r.Netns, Pod: r.Pod, Status: r.Status, IPAM: r.IPAM, Rails: []conf.Rail{rail}, MinRails: 1}
		if d := diff(want, i); d != "" || err != nil {
			t.Errorf("roce-ipam: %v (-want +got):\n%s", err, d)
		}
	})
}

// hasRails says whether a configuration has the key rails.
func hasRails(t *testing.T, stdin []byte) bool {
	var keys struct{ Rails json.RawMessage }
	if err := json.Unmarshal(stdin, &keys); err != nil {
		t.Errorf("accepted, but %v", err)
	}
	return keys.Rails != nil && string(keys.Rails) != "null"
}

func sayable(t *testing.T, err error) {
	e := cnierr.CNI("roce", err)
	if !slices.Contains([]uint{1, 2, 4, 6, 7}, e.Code) || e.Details == "" {
		t.Errorf("code %d, hint %q", e.Code, e.Details)
	}
	for _, s := range []string{e.Msg, e.Details} {
		if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' }) {
			t.Errorf("control characters: %q", s)
		}
	}
}

// check reports a broken promise of request.go.
func check(t *testing.T, ok bool, promise string, got any) {
	t.Helper()
	if !ok {
		t.Errorf("want %s, got %+v", promise, got)
	}
}

func between[T cmp.Ordered](v, lo, hi T) bool { return lo <= v && v <= hi }

func valid(t *testing.T, r conf.Request, stdin []byte) {
	t.Helper()
	check(t, r.Network != "" && r.ContainerID != "" && len(r.ContainerID) <= 200 && between(len(r.IfName), 1, 15), "names", r)
	check(t, filepath.IsAbs(r.Netns), "an absolute path", r)
	check(t, slices.Contains([]conf.Mode{conf.Bridge, conf.Private, conf.VEPA, conf.Passthru}, r.Mode), "a mode", r.Mode)
	check(t, r.MTU >= 0, "an MTU", r.MTU)
	check(t, r.MAC.IsZero() || r.Mode != conf.Passthru && r.MAC[0]&1 == 0, "a unicast MAC unless passthru", r)
	less := func(a, b conf.Sysctl) int { return cmp.Or(cmp.Compare(a.Tree, b.Tree), cmp.Compare(a.Key, b.Key)) }
	check(t, slices.IsSortedFunc(r.Sysctl, less), "sorted", r.Sysctl)
	for i, s := range r.Sysctl {
		check(t, slices.Contains([]string{"ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh"}, s.Tree), "a tree", s)
		check(t, s.Key != "" && !strings.ContainsAny(s.Key, "./") && s.Value != "", "key and value", s)
		check(t, i == 0 || less(r.Sysctl[i-1], s) < 0, "each once", r.Sysctl)
	}
	check(t, slices.Contains([]conf.RoutingMode{conf.RoutingPolicy, conf.RoutingMain, conf.RoutingNone}, r.Routing.Mode), "a mode", r.Routing)
	check(t, !between(r.Routing.Table, 253, 255) && r.Routing.Table < 1<<31 && between(r.Routing.Priority, 1, 32764), "table and priority", r.Routing)
	c, g := r.Probe.Conflict, r.Probe.Gateway
	check(t, between(c.Probes, 1, 10) && between(c.Interval, time.Millisecond, time.Second) && between(c.Wait, time.Millisecond, 5*time.Second), "bounds", c)
	check(t, between(g.Attempts, 1, 10) && between(g.Timeout, time.Millisecond, 5*time.Second), "bounds", g)
	for _, s := range []conf.Severity{c.Mode, g.Mode, r.RDMA.GID} {
		check(t, s == conf.Require || s == conf.Warn || s == conf.Off, "a severity", s)
	}
	check(t, slices.Contains([]conf.RDMAMode{conf.RDMAAuto, conf.RDMAShared, conf.RDMAExclusive, conf.RDMAOff}, r.RDMA.Mode), "a mode", r.RDMA)
	validRails(t, r)
	for _, one := range r.Rails {
		switch r.IPAM.Type {
		case conf.PoolType:
			validPool(t, r.IPAM, one)
		case "":
			check(t, r.IPAM.Raw == nil && one.Subnets == nil, "nothing", r.IPAM)
		default:
			check(t, len(r.Rails) == 1 && string(r.IPAM.Raw) == string(stdin) && one.Subnets == nil, "the whole input", r.IPAM)
		}
	}
}

// validRails checks what the interfaces of an attachment are to each other.
func validRails(t *testing.T, r conf.Request) {
	t.Helper()
	each := r.Rails
	check(t, between(len(each), 1, 32) && between(r.MinRails, 1, len(each)), "rails", r)
	check(t, len(each) == 1 || r.IPAM.Raw == nil && r.MAC.IsZero() && r.Prev == nil, "nothing that is one rail's", r)
	check(t, r.Match == nil || r.Match.Count == len(each) && !r.Match.Parent.Default() && r.Match.Parent.Name == "", "a rule", r.Match)
	for i, one := range each {
		p := one.Parent
		selects := p.RDMA != "" || p.PCI != "" || p.Subnet.IsValid() || len(p.IfNames)+len(p.Vendors)+len(p.DeviceIDs)+len(p.Drivers)+len(p.LinkTypes) > 0
		check(t, p.Name == "" || !selects, "a name or a selector", p)
		check(t, one.Number == i && between(len(one.IfName), 1, 15), "a number and a name", one)
		check(t, len(each) == 1 || p.Default() == (r.Match != nil), "a NIC", one)
		check(t, !between(one.Routing.Table, 253, 255) && one.Routing.Table < 1<<31, "a table", one.Routing)
		for _, other := range each[:i] {
			check(t, one.IfName != other.IfName, "names of their own", r.Rails)
			for _, s := range one.Subnets {
				clash := func(o pool.Subnet) bool { return o.Prefix != s.Prefix && o.Prefix.Overlaps(s.Prefix) }
				check(t, !slices.ContainsFunc(other.Subnets, clash), "subnets equal or apart", r.Rails)
			}
			for _, a := range one.Requested {
				check(t, !slices.Contains(other.Requested, a), "each address once", a)
			}
		}
	}
}

func validPool(t *testing.T, p conf.IPAM, rail conf.Rail) {
	t.Helper()
	check(t, between(len(p.Pool), 1, 63) && !strings.Contains(p.Pool, "/") && p.Pool != ".." && p.Pool != ".", "a pool", p.Pool)
	later := p.FromMaster != nil || p.Table || p.RailPool != nil
	check(t, between(p.Quarantine, 0, 24*time.Hour) && (len(rail.Subnets) > 0) != later && p.Raw == nil, "quarantine and subnets", p)
	check(t, !p.Table || p.FromMaster == nil, "one source of subnets", p)
	check(t, p.RailPool == nil || p.FromMaster == nil && !p.Table && p.Pool == p.RailPool.Name && len(p.Pool) <= 40, "a RailPool alone", p)
	for i, s := range rail.Subnets {
		validSubnet(t, s)
		for _, o := range rail.Subnets[:i] {
			check(t, !s.Prefix.Overlaps(o.Prefix), "subnets apart", rail.Subnets)
		}
		asked := slices.DeleteFunc(slices.Clone(rail.Requested), func(a netip.Addr) bool { return !s.Prefix.Contains(a) })
		check(t, len(asked) <= 1, "one address of each subnet", rail.Requested)
		for _, a := range asked {
			check(t, a != s.Gateway && netrange.Unusable(s.Prefix)[a] == "" && !inAny(a, s.Exclude), "an address for a pod", a)
		}
	}
	inSubnet := func(a netip.Addr) bool {
		return slices.ContainsFunc(rail.Subnets, func(s pool.Subnet) bool { return s.Prefix.Contains(a) })
	}
	for _, a := range rail.Requested {
		check(t, !later && inSubnet(a) && slices.Contains(p.Requested, a), "an address of a subnet", a)
	}
	for _, r := range rail.Routes {
		check(t, r.Dst.IsValid() && r.Dst == r.Dst.Masked(), "a destination", r)
		check(t, !r.Via.IsValid() || inSubnet(r.Via) && r.Via.Is4() == r.Dst.Addr().Is4(), "a gateway of a subnet", r)
		check(t, r.MTU >= 0 && r.AdvMSS >= 0 && r.Priority >= 0, "metrics", r)
		check(t, r.Table == nil || *r.Table > 0 && *r.Table != 255, "a table", r)
		check(t, r.Scope == nil || between(*r.Scope, 0, 254), "a scope", r)
	}
}

func validSubnet(t *testing.T, s pool.Subnet) {
	t.Helper()
	check(t, s.Prefix.IsValid() && s.Prefix == s.Prefix.Masked() && !s.Prefix.Addr().Is4In6(), "a masked prefix", s)
	check(t, len(s.Ranges) > 0, "ranges", s)
	for i, r := range s.Ranges {
		check(t, r.Within(netrange.Of(s.Prefix)) && !r.Last.Less(r.First), "a range inside", s)
		check(t, i == 0 || s.Ranges[i-1].Last.Less(r.First), "sorted ranges apart", s)
	}
	for i, r := range s.Exclude {
		check(t, r.Within(netrange.Of(s.Prefix)), "an exclusion inside", s)
		check(t, i == 0 || !r.First.Less(s.Exclude[i-1].First), "sorted exclusions", s)
	}
	check(t, !s.Gateway.IsValid() || s.Prefix.Contains(s.Gateway) && netrange.Unusable(s.Prefix)[s.Gateway] == "", "a gateway inside", s)
	unusable := netrange.Unusable(s.Prefix)
	left := slices.ContainsFunc(s.Ranges, func(r netrange.Range) bool {
		// The check does not walk through more than 2^16 addresses: a gap among
		// the first ones is enough.
		a := r.First
		for range 1 << 16 {
			if !r.Contains(a) {
				return false
			}
			if a != s.Gateway && unusable[a] == "" && !inAny(a, s.Exclude) {
				return true
			}
			a = a.Next()
		}
		return true
	})
	check(t, left, "an address for a pod", s)
}

func inAny(a netip.Addr, ranges []netrange.Range) bool {
	return slices.ContainsFunc(ranges, func(r netrange.Range) bool { return r.Contains(a) })
}
