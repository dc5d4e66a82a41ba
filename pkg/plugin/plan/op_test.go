// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func TestTablesOfGIDsAreFilledFromTheFirstAddressToTheLastGID(t *testing.T) {
	t.Parallel()
	up, address, route := plan.InPod(plan.Up{})[0], plan.InPod(plan.Address{})[0], plan.InPod(plan.Route{})[0]
	gid, align, moved := plan.OnHost(plan.GID{})[0], plan.InPod(plan.Align{})[0], plan.InPod(plan.GID{})[0]
	for name, c := range map[string]struct {
		ops  plan.Ops
		want string
	}{
		"one device":              {plan.Ops{up, address, address, route, gid, up}, "1 5 false"},
		"two devices":             {plan.Ops{up, address, address, gid, route, gid}, "1 6 true"},
		"a promise":               {plan.Ops{up, address, align, route, gid, up}, "1 5 true"},
		"a promise alone":         {plan.Ops{up, address, align, route, moved}, "1 3 true"},
		"an adopted interface":    {plan.Ops{up, route, gid}, "2 3 false"},
		"a device that moves":     {plan.Ops{up, address, route, moved}, "1 1 false"},
		"neither address nor GID": {plan.Ops{up, route}, "2 2 false"},
	} {
		if got := fmt.Sprintln(c.ops.Registration()); got != c.want+"\n" {
			t.Errorf("%s: got %s want %s", name, got, c.want)
		}
	}
}

// TestAPodWithoutADefaultRouteIsIsolated if its first interface is ours.
func TestAPodWithoutADefaultRouteIsIsolated(t *testing.T) {
	t.Parallel()
	to := func(dst string, table uint32) plan.Route {
		return plan.Route{Dst: netip.MustParsePrefix(dst), Table: table}
	}
	for name, c := range map[string]struct {
		ops    plan.Ops
		ifName conf.LinkName
		before *current.Result
		want   bool
	}{
		"no route":                         {nil, "eth0", nil, true},
		"another route":                    {plan.InPod(to("10.0.0.0/8", plan.MainTable)), "eth0", nil, true},
		"a default route in another table": {plan.InPod(to("0.0.0.0/0", 100)), "eth0", nil, true},
		"a default route on the node":      {plan.OnHost(to("0.0.0.0/0", plan.MainTable)), "eth0", nil, true},
		"a default route":                  {plan.InPod(to("10.0.0.0/8", 100), to("::/0", plan.MainTable)), "eth0", nil, false},
		"another network is first":         {nil, "net1", nil, false},
		"another plugin is first":          {nil, "eth0", &current.Result{}, false},
	} {
		req := conf.Request{Attachment: conf.Attachment{IfName: c.ifName}, Before: c.before}
		if why := (plan.Plan{Ops: c.ops}).Isolated(req); strings.Contains(why, "docs/default-network.md") != c.want {
			t.Errorf("%s: got %q", name, why)
		}
	}
}

func TestANodeMayHaveManyAddresses(t *testing.T) {
	t.Parallel()
	req := parse(t, []byte(`{"cniVersion": "1.1.0", "name": "rail", "master": "ens1", "hostLink": {"routes": []}, "routing": "main",
		"ipam": {"type": "roce-ipam", "subnets": [{"subnet": "172.16.11.0/24", "gateway": "172.16.11.254"}]}}`))
	lease := plan.Lease{Addresses: []plan.LeasedAddress{{Prefix: netip.MustParsePrefix("172.16.11.9/24"), Gateway: netip.MustParseAddr("172.16.11.254")}}}
	var addrs []netip.Addr
	for i := range 256 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
	}
	p, err := plan.Make(req, []plan.Rail{{Rail: req.Rails[0], Facts: plan.Facts{HostAddrs: addrs}, Lease: lease}})
	routes := 0
	for r := range plan.All[plan.Route](p.Ops.At(plan.Pod)) {
		if r.Dst.IsSingleIP() {
			routes++
		}
	}
	if err != nil || routes != len(addrs)+1 { // to local DNS, too
		t.Errorf("%d routes, %v", routes, err)
	}
}
