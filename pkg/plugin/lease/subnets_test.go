// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// nic returns the facts of a NIC with these addresses.
func nic(name string, addrs ...string) plan.RailFacts {
	l := plan.Link{Name: conf.LinkName(name)}
	for _, a := range addrs {
		l.Addrs = append(l.Addrs, netip.MustParsePrefix(a))
	}
	return plan.RailFacts{Facts: plan.Facts{Parent: l}}
}

// got returns the subnets of the rails of a claim, with the gateways, or the error.
func got(c *lease.Claim, err error) string {
	if err != nil {
		return cnierr.CNI("roce", err).Msg
	}
	var out []string
	for _, r := range c.Rails() {
		for _, s := range r.Subnets {
			out = append(out, fmt.Sprint(s.Prefix, " ", s.Ranges, " ", s.Gateway))
		}
	}
	return strings.Join(out, "; ")
}

func TestASingleInterfaceIsOnOneRailOfItsRailPool(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{})
	var rails [][]pool.Subnet
	for i := range 3 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 7, byte(i), 0}), 24)
		r := netrange.Of(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 7, byte(i), 32}), 29))
		rails = append(rails, []pool.Subnet{{Prefix: p, Ranges: []netrange.Range{r}}})
	}
	must(t, n.files().Write(nodefile.File{Pool: "gpu", Quarantine: time.Minute, Rails: rails}))
	rail := func(i int) string { return fmt.Sprintf("10.7.%[1]d.0/24 [10.7.%[1]d.32-10.7.%[1]d.39] invalid IP", i) }
	const find = `roce[7] find rail of RailPool "gpu": it has 3 rails, `
	for _, c := range []struct{ said, own, want string }{
		{`, "rail": 0`, "", rail(0)},
		{`, "rail": 2`, "10.7.1.9/24", rail(2)},
		{`, "rail": 3`, "", find + "but ipam.rail is 3"},
		{"", "172.16.11.3/24 10.7.1.9/24", rail(1)},
		{"", "10.7.1.9/24 172.16.11.3/24", rail(1)},
		{"", "172.16.11.3/24", find + "and the NIC's own addresses [172.16.11.3/24] are on none of them"},
		{"", "10.7.1.9/24 10.7.2.9/24", find + "and the NIC's own addresses [10.7.1.9/24 10.7.2.9/24] are on several of them: [1 2]"},
	} {
		n.config = `"master": "ens1", "ipam": {"type": "roce-ipam", "railPool": "gpu"` + c.said + `}`
		if diff := cmp.Diff(c.want, got(n.allocator().Claim(n.request("pod-0", ""), []plan.RailFacts{nic("ens1", strings.Fields(c.own)...)}))); diff != "" {
			t.Errorf("%s, NIC %s (-want +got):\n%s", c.said, c.own, diff)
		}
	}
	must(t, n.files().Write(nodefile.File{Pool: "gpu", Quarantine: time.Minute, Rails: rails[:1]}))
	for said, want := range map[string]string{"": rail(0), `, "rail": 1`: `roce[7] find rail of RailPool "gpu": it has 1 rails, but ipam.rail is 1`} {
		n.config = `"master": "ens1", "ipam": {"type": "roce-ipam", "railPool": "gpu"` + said + `}`
		if diff := cmp.Diff(want, got(n.allocator().Claim(n.request("pod-0", ""), []plan.RailFacts{nic("ens1")}))); diff != "" {
			t.Errorf("%s of one rail (-want +got):\n%s", said, diff)
		}
	}
	must(t, n.files().Write(nodefile.File{Pool: "gpu", Quarantine: time.Minute, Rails: rails}))
	n.config = `"rails": [{"master": "ens1"}, {"master": "ens2"}, {"master": "ens3"}], "minRails": 1, "ipam": {"type": "roce-ipam", "railPool": "gpu"}`
	facts := make([]plan.RailFacts, 3)
	facts[1].Fault = errors.New("no carrier")
	if diff := cmp.Diff(rail(0)+"; "+rail(2), got(n.allocator().Claim(n.request("pod-0", ""), facts))); diff != "" {
		t.Errorf("of all rails but the second (-want +got):\n%s", diff)
	}
	for ips, code := range map[string]cnierr.Code{`"10.7.0.33", "10.7.2.33"`: 0, `"10.7.0.33", "10.7.2.40"`: cnierr.BadConfig} {
		_, err := n.allocator().Claim(n.request("pod-0", `, "runtimeConfig": {"ips": [`+ips+`]}`), make([]plan.RailFacts, 3))
		if (err == nil) != (code == 0) || err != nil && (cnierr.CodeOf(err) != code || !strings.Contains(err.Error(), "10.7.2.40")) {
			t.Errorf("with %s requested: got %v, want code %d", ips, err, code)
		}
	}
	if lease.CheckNICs(n.request("pod-0", ""), facts); facts[0].Fault != nil {
		t.Errorf("the NICs have no part in the subnets, and the fault is %v", facts[0].Fault)
	}
	rails[1] = append(rails[1], pool.Subnet{Prefix: netip.MustParsePrefix("fd07::/64"), Ranges: []netrange.Range{netrange.Of(netip.MustParsePrefix("fd07::/120"))}})
	must(t, n.files().Write(nodefile.File{Pool: "gpu", Quarantine: time.Minute, Rails: rails}))
	n.config = `"master": "ens1", "ipam": {"type": "roce-ipam", "railPool": "gpu"}`
	if diff := cmp.Diff(rail(1)+"; fd07::/64 [fd07::-fd07::ff] invalid IP", got(n.allocator().Claim(n.request("pod-0", ""), []plan.RailFacts{nic("ens1", "fd07::9/64")}))); diff != "" {
		t.Errorf("of the second family of a rail (-want +got):\n%s", diff)
	}
	must(t, n.files().Remove("gpu"))
	if _, err := n.allocator().Claim(n.request("pod-0", ""), facts); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("of a node without blocks: %v", err)
	}
}

func TestARequestedAddressOfARailPoolIsOneOfTheNode(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["a RailPool"])
	for _, sticky := range []bool{false, true} {
		n.own(sticky)
		for addr, want := range map[string]string{
			"10.7.0.32": "", "10.7.0.39": "",
			"10.7.0.31": "it is an address of RailPool gpu, but not of this node's blocks",
			"10.7.0.40": "it is an address of RailPool gpu, but not of this node's blocks",
			"10.8.0.1":  "10.8.0.1 is in none of the pool's subnets",
		} {
			_, err := n.allocator().Claim(n.request("pod-0", `, "runtimeConfig": {"ips": ["`+addr+`"]}`), []plan.RailFacts{nic("ens1")})
			var e *cnierr.Error
			switch {
			case want == "" && err == nil:
			case !errors.As(err, &e) || e.Code != cnierr.BadConfig || !strings.Contains(err.Error(), want):
				t.Errorf("%s: got %v, want %q", addr, err, want)
			case strings.Contains(want, "RailPool") && strings.Contains(e.Hint, "RailLease") != sticky:
				t.Errorf("%s: the pool is sticky: %t, and the hint is %s", addr, sticky, e.Hint)
			}
		}
	}
}

// What a NIC that is gone would have given is unknown, so what was requested of it is left out.
func TestARailWhoseNICIsGoneTakesNoOtherRailsSubnet(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: `"rails": [{"master": "ens1"}, {"master": "ens2"}], "minRails": 1, ` +
		`"ipam": {"type": "roce-ipam", "fromMaster": true, "gateway": "last"}`})
	req := n.request("pod-0", `, "runtimeConfig": {"ips": ["10.1.0.7", "10.2.0.7"]}`)
	gone := errors.New("no such link")
	facts := []plan.RailFacts{{Fault: gone}, nic("ens2", "10.2.0.3/24")}
	lease.CheckNICs(req, facts)
	if !errors.Is(facts[0].Fault, gone) || facts[1].Fault != nil {
		t.Errorf("faults are %v, %v", facts[0].Fault, facts[1].Fault)
	}
	c, err := n.allocator().Claim(req, facts)
	if diff := cmp.Diff("10.2.0.0/24 [10.2.0.0-10.2.0.255] 10.2.0.254", got(c, err)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if rails, err := c.Acquire(t.Context()); err != nil || len(rails) != 1 || addrs(rails)[0] != netip.MustParseAddr("10.2.0.7") {
		t.Errorf("got %v, %v", addrs(rails), err)
	}
	facts = []plan.RailFacts{nic("ens1"), nic("ens2", "10.2.0.3/24")}
	if _, err := n.allocator().Claim(req, facts); cnierr.CodeOf(err) != cnierr.BadParent {
		t.Errorf("a NIC without address: got %v", err)
	}
	if lease.CheckNICs(req, facts); cnierr.CodeOf(facts[0].Fault) != cnierr.BadParent || facts[1].Fault != nil {
		t.Errorf("faults are %v, %v", facts[0].Fault, facts[1].Fault)
	}
	facts = []plan.RailFacts{nic("ens1", "10.1.0.3/24"), nic("ens2", "10.2.0.3/24")}
	n.acquireAll(t, req, facts, "10.1.0.7 10.2.0.7")
	req = n.request("pod-1", `, "runtimeConfig": {"ips": ["10.3.0.7"]}`)
	if _, err := n.allocator().Claim(req, facts); cnierr.CodeOf(err) != cnierr.BadConfig {
		t.Errorf("both NICs are there, and none has the requested address: got %v", err)
	}
}

func (n *node) acquireAll(t *testing.T, req conf.Request, facts []plan.RailFacts, want string) {
	t.Helper()
	c, err := n.allocator().Claim(req, facts)
	must(t, err)
	rails, err := c.Acquire(t.Context())
	if got := strings.Trim(fmt.Sprint(addrs(rails)), "[]"); err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestATableGivesEachNodeItsOwnSubnets(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["a table of the nodes"])
	a := n.allocator()
	a.Table = "/etc/roce/rails.json"
	if diff := cmp.Diff("10.5.0.0/29 [10.5.0.0-10.5.0.7] 10.5.0.6", got(a.Claim(n.request("pod-0", ""), []plan.RailFacts{nic("ens1")}))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	a.NodeName = "gpu-02"
	if _, err := a.Claim(n.request("pod-0", ""), []plan.RailFacts{nic("ens1")}); cnierr.CodeOf(err) != cnierr.BadConfig ||
		!strings.Contains(err.Error(), a.Table) || !strings.Contains(err.Error(), `no node "gpu-02", only gpu-01`) {
		t.Errorf("of a node that is not in it: %v", err)
	}
}
