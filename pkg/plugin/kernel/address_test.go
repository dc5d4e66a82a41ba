// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// TestTheRouteToTheSubnetIsMissedWhereTheKernelMakesOne: where another program has moved it to
// a table of its own, as sbr does, it is no damage but changed.
func TestTheRouteToTheSubnetIsMissedWhereTheKernelMakesOne(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	do(t, k, plan.InPod(child(t), plan.Up{Link: "net1"})...)
	address := func(p string) plan.Op {
		return plan.Op{Kind: plan.Address{Link: "net1", Prefix: netip.MustParsePrefix(p)}}
	}
	pod.IP("addr add 10.8.0.7/24 dev net1 noprefixroute")
	do(t, k, address("10.7.0.7/32"), address("fd00:7::7/128"), address("10.9.0.5/24"))
	do(t, k, rules()...)
	for _, p := range []string{"10.8.0.7/24", "10.7.0.7/32", "fd00:7::7/128", "10.9.0.5/24"} {
		if err := k.Check(t.Context(), address(p)); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	pod.IP("route del 10.9.0.0/24 dev net1")
	pod.IP("link add eth9 type bridge")
	pod.IP("addr add 10.9.0.9/32 dev eth9")
	for rule, moved := range map[string]bool{"": false, "from 10.9.0.5": true, "from 10.8.0.7": true, "from 10.9.0.0/24": false, "from 10.9.0.9": false, "from 10.9.0.5 protocol 82": false} {
		if rule != "" {
			pod.IP("rule add " + rule + " lookup 99 priority 7")
		}
		err := k.Check(t.Context(), address("10.9.0.5/24"))
		var changed *kernel.ChangedError
		if errors.As(err, &changed) != moved || errors.Is(err, kernel.ErrNoSubnetRoute) == moved || cnierr.CodeOf(err) != cnierr.Damaged {
			t.Errorf("with the rule %q: got %v, moved: %v", rule, err, moved)
		}
		says(t, err, cnierr.Damaged, "", "restore it: "+plan.IP(plan.NetnsName(pod.Path))+" route append 10.9.0.0/24 dev net1 proto kernel scope link src 10.9.0.5")
		lacks := plan.Route{Link: "net1", Table: plan.MainTable, Dst: netip.MustParsePrefix("10.6.0.0/16")}
		if err := k.Check(t.Context(), plan.Op{Kind: lacks}); errors.As(err, &changed) != moved || cnierr.CodeOf(err) != cnierr.Damaged {
			t.Errorf("a route with the rule %q: got %v, moved: %v", rule, err, moved)
		}
		if rule != "" {
			pod.IP("rule del priority 7")
		}
	}
	pod.IP("route add 10.9.0.0/24 via 10.8.0.1 dev net1 onlink")
	if err := k.Check(t.Context(), address("10.9.0.5/24")); !errors.Is(err, kernel.ErrNoSubnetRoute) {
		t.Errorf("through a gateway: %v", err)
	}
	pod.IP("link set net1 down") // Up reports it
	if err := k.Check(t.Context(), address("10.9.0.5/24")); err != nil {
		t.Errorf("of a link that is down: %v", err)
	}
}

// rules are those of an address of ours.
func rules() plan.Ops {
	return plan.InPod(plan.Rule{From: netip.MustParsePrefix("10.9.0.5/32"), Table: 100, Priority: 32000})
}
