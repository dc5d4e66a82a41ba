// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

func TestAttachmentGetsAnAddressOfEachSubnet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	p.Set(t, "net/ipv6/conf/all/disable_ipv6", "1") // as runtimes do in IPv4 clusters
	p.Set(t, "net/ipv6/conf/default/disable_ipv6", "1")
	before := p.snapshot(t)
	second := map[string]any{"subnet": "10.9.0.0/24", "ranges": []any{"10.9.0.7"}}
	third := map[string]any{"subnet": "fd00:9::/64", "ranges": []any{"fd00:9::7"}}
	c := w.rail(0).With("ipam.subnets", []any{cnitest.Subnet6(0), second, cnitest.Subnet4(0), third}).
		With("args.cni.ips", []any{"172.16.10.70", "fd00:10::70"})
	a := w.attach(c, p, "net1")
	res := a.mustAdd(t)
	var got []string
	for _, ip := range res.IPs {
		got = append(got, fmt.Sprintf("%s via %s", ip.Address.String(), ip.Gateway))
	}
	if diff := cmp.Diff([]string{
		"fd00:10::70/64 via fd00:10::fe", "10.9.0.7/24 via <nil>",
		"172.16.10.70/24 via 172.16.10.254", "fd00:9::7/64 via <nil>",
	}, got); diff != "" {
		t.Errorf("addresses (-want +got)\n%s", diff)
	}
	rules := p.rules(t)
	slices.Sort(rules)
	if diff := cmp.Diff([]string{
		"32000: from 10.9.0.7 lookup 100 proto 82", "32000: from 172.16.10.70 lookup 101 proto 82",
		"32000: from fd00:10::70 lookup 100 proto 82", "32000: from fd00:9::7 lookup 101 proto 82",
		"32001: from 10.9.0.7 unreachable proto 82", "32001: from 172.16.10.70 unreachable proto 82",
		"32001: from fd00:10::70 unreachable proto 82", "32001: from fd00:9::7 unreachable proto 82",
	}, rules); diff != "" {
		t.Errorf("rules (-want +got)\n%s", diff)
	}
	for _, addr := range []string{"172.16.10.70", "fd00:10::70"} {
		w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-w", "10", addr)
	}
	a.mustDel(t)
	p.unchanged(t, before)
}
