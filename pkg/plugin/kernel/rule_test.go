// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// TestARuleOfAnotherProgramIsDeletedAlone also has how a rule is written.
func TestARuleOfAnotherProgramIsDeletedAlone(t *testing.T) {
	t.Parallel()
	all := prefix("0.0.0.0/0")
	look := rtnl.Rule{From: prefix("10.7.0.0/24"), Table: 77, Priority: 5, Action: unix.FR_ACT_TO_TBL, Protocol: 8}
	any5 := rtnl.Rule{From: all, Table: 77, Priority: 5, Action: unix.FR_ACT_TO_TBL}
	with := func(change func(*rtnl.Rule)) rtnl.Rule {
		r := look
		change(&r)
		return r
	}
	const similar = "ip rule show priority 5 shows similar rules: delete this one with all that its line says"
	for name, c := range map[string]struct {
		rule   rtnl.Rule
		beside []rtnl.Rule
		want   string
	}{
		"of a source":           {look, nil, "restore it: ip rule del from 10.7.0.0/24 lookup 77 priority 5 protocol 8"},
		"of all":                {any5, nil, "restore it: ip rule del from 0.0.0.0/0 lookup 77 priority 5"},
		"IPv6":                  {with(func(r *rtnl.Rule) { r.From = prefix("fd00::/64") }), nil, "restore it: ip -6 rule del from fd00::/64 lookup 77 priority 5 protocol 8"},
		"to a rule":             {rtnl.Rule{From: all, Priority: 5, Action: unix.FR_ACT_GOTO, Goto: 900}, nil, "restore it: ip rule del from 0.0.0.0/0 goto 900 priority 5"},
		"nowhere":               {rtnl.Rule{From: all, Priority: 5, Action: unix.FR_ACT_PROHIBIT}, nil, "restore it: ip rule del from 0.0.0.0/0 prohibit priority 5"},
		"a blackhole":           {rtnl.Rule{From: all, Priority: 5, Action: unix.FR_ACT_BLACKHOLE}, nil, "restore it: ip rule del from 0.0.0.0/0 blackhole priority 5"},
		"not of a source":       {with(func(r *rtnl.Rule) { r.Inverted = true }), nil, "restore it: ip rule del not from 10.7.0.0/24 lookup 77 priority 5 protocol 8"},
		"beside its twin":       {look, []rtnl.Rule{look}, similar},
		"of all, beside others": {any5, []rtnl.Rule{look}, similar},
		"another source":        {look, []rtnl.Rule{with(func(r *rtnl.Rule) { r.From = prefix("10.8.0.0/24") })}, "restore it: ip rule del from 10.7.0.0/24 lookup 77 priority 5 protocol 8"},
		"another protocol":      {look, []rtnl.Rule{with(func(r *rtnl.Rule) { r.Protocol = 9 })}, "restore it: ip rule del from 10.7.0.0/24 lookup 77 priority 5 protocol 8"},
		"another table":         {look, []rtnl.Rule{with(func(r *rtnl.Rule) { r.Table = 78 })}, "restore it: ip rule del from 10.7.0.0/24 lookup 77 priority 5 protocol 8"},
		"another priority":      {look, []rtnl.Rule{with(func(r *rtnl.Rule) { r.Priority = 6 })}, "restore it: ip rule del from 10.7.0.0/24 lookup 77 priority 5 protocol 8"},
		"another action":        {look, []rtnl.Rule{with(func(r *rtnl.Rule) { r.Action = unix.FR_ACT_GOTO })}, "restore it: ip rule del from 10.7.0.0/24 lookup 77 priority 5 protocol 8"},
	} {
		p := rule{namespace: namespace{place: plan.Host}}
		if got := p.deletion(c.rule, append(append([]rtnl.Rule{{Priority: 1}}, c.beside...), c.rule)); got != c.want {
			t.Errorf("%s: got %s\nwant %s", name, got, c.want)
		}
	}
}

func TestOnlyARouteThatLeadsElsewhereIntrudes(t *testing.T) {
	t.Parallel()
	dst := prefix("10.7.0.0/24")
	ours := rtnl.Route{Dst: dst, Index: 3, Metric: 10, Protocol: plan.Protocol, Type: unix.RTN_UNICAST}
	for name, c := range map[string]struct {
		change func(*rtnl.Route)
		want   bool
	}{
		"through another link":              {func(r *rtnl.Route) { r.Index = 4 }, true},
		"through ours":                      {func(*rtnl.Route) {}, false},
		"nowhere":                           {func(r *rtnl.Route) { r.Type = unix.RTN_BLACKHOLE }, true},
		"behind ours":                       {func(r *rtnl.Route) { r.Index, r.Metric = 4, 11 }, false},
		"with the metric of ours":           {func(r *rtnl.Route) { r.Index, r.Metric = 4, 10 }, true},
		"nowhere, behind ours":              {func(r *rtnl.Route) { r.Type, r.Metric = unix.RTN_PROHIBIT, 11 }, false},
		"behind ours, for a TOS":            {func(r *rtnl.Route) { r.Index, r.Metric, r.TOS = 4, 11, 8 }, true},
		"behind ours, to somewhere else":    {func(r *rtnl.Route) { r.Index, r.Metric, r.Dst = 4, 11, prefix("10.8.0.0/24") }, true},
		"ours itself, through another link": {func(r *rtnl.Route) { r.Index, r.Protocol = 4, plan.Protocol }, false},
	} {
		r := ours
		r.Protocol, r.Metric = 4, 0
		c.change(&r)
		other := rtnl.Route{Dst: dst, Index: 4, Protocol: 4, Type: unix.RTN_UNICAST}
		if got := intrudes(r, []rtnl.Route{other, r, ours}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestTheRuleThatCaughtAPacketIsFound(t *testing.T) {
	t.Parallel()
	a, b, narrow := rtnl.Rule{Table: 1}, rtnl.Rule{Table: 2}, rtnl.Rule{Table: 2, Narrow: true}
	for name, c := range map[string]struct {
		before []rtnl.Rule
		want   rtnl.Rule
	}{
		"the one with the table":     {[]rtnl.Rule{a, b}, b},
		"one that looks at no more":  {[]rtnl.Rule{a, narrow, b}, b},
		"one that looks at more":     {[]rtnl.Rule{a, narrow}, narrow},
		"the first if none is known": {[]rtnl.Rule{a, {Table: 3}}, a},
	} {
		if got := winner(c.before, func(r rtnl.Rule) bool { return r.Table == 2 }); got != c.want {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	p := rule{op: plan.Rule{Priority: 100}}
	to := func(action uint8, goal uint32) rtnl.Rule { return rtnl.Rule{Action: action, Goto: goal} }
	for name, c := range map[string]struct {
		by   rtnl.Rule
		all  []rtnl.Rule
		want bool
	}{
		"behind ours":             {to(unix.FR_ACT_GOTO, 200), []rtnl.Rule{{Priority: 5}, {Priority: 200}}, true},
		"to ours":                 {to(unix.FR_ACT_GOTO, 100), []rtnl.Rule{{Priority: 100}}, false},
		"before ours":             {to(unix.FR_ACT_GOTO, 50), []rtnl.Rule{{Priority: 50}}, false},
		"to a rule that is not":   {to(unix.FR_ACT_GOTO, 200), []rtnl.Rule{{Priority: 201}}, false},
		"no rule that leads away": {to(unix.FR_ACT_TO_TBL, 200), []rtnl.Rule{{Priority: 200}}, false},
	} {
		if got := p.skipped(c.by, c.all); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	for dst, want := range map[string]string{
		"10.7.0.0/24": "10.7.0.1", "10.7.0.9/32": "10.7.0.9", "0.0.0.0/0": "203.0.113.1", "::/0": "2001:db8::1", "fd00::/64": "fd00::1", "fd00::9/128": "fd00::9",
	} {
		if got := someHost(rtnl.Route{Dst: prefix(dst)}); got.String() != want {
			t.Errorf("a host of %s: got %s, want %s", dst, got, want)
		}
	}
}

// TestWhatAPlanNeedsToKnowOfAPod has the rules that the kernel makes, and those of programs.
func TestWhatAPlanNeedsToKnowOfAPod(t *testing.T) {
	t.Parallel()
	all, some := prefix("0.0.0.0/0"), prefix("10.7.0.9/24")
	rules := []rtnl.Rule{
		{From: all, Table: unix.RT_TABLE_LOCAL, Priority: 7, Action: unix.FR_ACT_TO_TBL},
		{From: all, Table: unix.RT_TABLE_MAIN, Priority: 32766, Action: unix.FR_ACT_TO_TBL},
		{From: all, Table: unix.RT_TABLE_DEFAULT, Priority: 32767, Action: unix.FR_ACT_TO_TBL},
		{From: all, Table: unix.RT_TABLE_MAIN, Priority: 5, Action: unix.FR_ACT_TO_TBL},
		{From: all, Table: unix.RT_TABLE_DEFAULT, Priority: 6, Action: unix.FR_ACT_TO_TBL},
		{From: some, Table: unix.RT_TABLE_LOCAL, Priority: 8, Action: unix.FR_ACT_TO_TBL, Protocol: 4},
		{From: some, Table: 77, Priority: 9, Action: unix.FR_ACT_TO_TBL, Inverted: true},
		{From: some, Table: 78, Priority: 10, Action: unix.FR_ACT_TO_TBL, Narrow: true},
		{From: some, Priority: 11, Action: unix.FR_ACT_NOP},
		{From: all, Priority: 12, Action: unix.FR_ACT_UNREACHABLE},
		{From: all, Table: unix.RT_TABLE_LOCAL, Priority: 13, Action: unix.FR_ACT_UNREACHABLE},
	}
	routes := []rtnl.Route{
		{Table: 300, Dst: all, Type: unix.RTN_UNICAST},
		{Table: 77},
		{Table: unix.RT_TABLE_DEFAULT - 1},
		{Table: unix.RT_TABLE_DEFAULT},
		{Table: unix.RT_TABLE_LOCAL},
		{Table: unix.RT_TABLE_MAIN, Dst: all, Type: unix.RTN_UNICAST, Via: netip.MustParseAddr("10.0.0.1"), Metric: 7, Index: 2},
		{Table: unix.RT_TABLE_MAIN, Dst: prefix("::/0"), Type: unix.RTN_UNICAST, Index: 9},
		{Table: unix.RT_TABLE_MAIN, Dst: all, Type: unix.RTN_BLACKHOLE},
		{Table: unix.RT_TABLE_LOCAL + 1},
	}
	got := plan.PodFacts{
		Tables: tablesOf(routes, rules), Rules: foreignRules(rules), Defaults: defaultsOf(routes, []rtnl.Link{{Index: 1, Name: "lo"}, {Index: 2, Name: "eth0"}}),
	}
	want := plan.PodFacts{
		Tables: []uint32{77, 78, 252, 256, 300},
		Rules: []plan.ForeignRule{
			{From: all, Table: unix.RT_TABLE_MAIN, Priority: 5},
			{From: all, Table: unix.RT_TABLE_DEFAULT, Priority: 6},
			{From: prefix("10.7.0.0/24"), Table: unix.RT_TABLE_LOCAL, Priority: 8, Protocol: 4},
			{From: all, Table: 77, Priority: 9},
			{From: all, Priority: 12},
			{From: all, Table: unix.RT_TABLE_LOCAL, Priority: 13},
		},
		Defaults: []plan.DefaultRoute{{Via: netip.MustParseAddr("10.0.0.1"), Metric: 7, Link: "eth0"}, {IPv6: true}},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	view := podView{links: []rtnl.Link{{Name: "eth0", AltNames: []string{"other0"}}}}
	for name, taken := range map[conf.LinkName]bool{"eth0": true, "other0": true, "net1": false} {
		if view.of(name).Taken != taken {
			t.Errorf("the name %s is taken: %t", name, !taken)
		}
	}
	for _, r := range rules {
		from := netip.MustParseAddr("10.7.0.5")
		catches := r.Priority == 5 || r.Priority == 6 || r.Priority >= 8 && r.Priority <= 10 || r.Priority == 12 || r.Priority == 13
		if mayCatch(r, from) != catches || mayCatch(r, netip.MustParseAddr("10.8.0.5")) != (catches && r.Priority != 8 && r.Priority != 10) {
			t.Errorf("%+v can catch a packet: %t", r, !catches)
		}
	}
}

func TestARouteOfOursHasWhatTheKernelAdds(t *testing.T) {
	t.Parallel()
	via, src := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.9")
	full := routing{op: plan.Route{Table: 100, Dst: prefix("10.7.0.0/24"), Via: via, Src: src, Metric: 7, MTU: 4200, AdvMSS: 4100, Scope: unix.RT_SCOPE_LINK, OnLink: true}}
	six := routing{op: plan.Route{Table: 100, Dst: prefix("fd00::/64"), Scope: unix.RT_SCOPE_LINK}}
	want := []rtnl.Route{
		{
			Table: 100, Dst: prefix("10.7.0.0/24"), Via: via, Src: src, Index: 3, Metric: 7, MTU: 4200, AdvMSS: 4100, Protocol: plan.Protocol, Type: unix.RTN_UNICAST,
			Scope: unix.RT_SCOPE_LINK, OnLink: true,
		},
		{Table: 100, Dst: prefix("fd00::/64"), Index: 3, Metric: 1024, Protocol: plan.Protocol, Type: unix.RTN_UNICAST},
	}
	if diff := cmp.Diff(want, []rtnl.Route{full.want(3), six.want(3)}, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for name, c := range map[string]struct {
		change func(*rtnl.Route)
		ours   bool
	}{
		"itself":           {func(*rtnl.Route) {}, true},
		"another MTU":      {func(r *rtnl.Route) { r.MTU, r.AdvMSS, r.Src, r.OnLink = 1, 1, netip.Addr{}, false }, true},
		"another link":     {func(r *rtnl.Route) { r.Index = 4 }, false},
		"another protocol": {func(r *rtnl.Route) { r.Protocol = 4 }, false},
		"another gateway":  {func(r *rtnl.Route) { r.Via = src }, false},
		"another metric":   {func(r *rtnl.Route) { r.Metric = 8 }, false},
		"another TOS":      {func(r *rtnl.Route) { r.TOS = 8 }, false},
		"another subnet":   {func(r *rtnl.Route) { r.Dst = prefix("10.8.0.0/24") }, false},
	} {
		r := want[0]
		if c.change(&r); full.marked(3)(r) != c.ours {
			t.Errorf("%s: ours to remove %t", name, !c.ours)
		}
	}
}

func TestAChangeIsSaidAsItIsShown(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]ChangedError{
		"want 1, got 0":           {Property: "net/ipv4/conf/net1/arp_ignore", Want: "1", Got: "0"},
		"want MTU 1500, got 1400": {Property: MTU, Want: "1500", Got: "1400"},
		"want MTU 1500, got 1400: its NIC had that for a time, or a program set it; rocectl repair raises it": {Property: MTU, Want: "1500", Got: "1400", Raise: 1500},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	const again, root = "wait, and try again (a runtime does so by itself); if the error stays, check the load of the node", needsRoot
	own := meaning{unix.ENODEV, cnierr.BadParent, "look for it"}
	for is, want := range map[error]cnierr.Error{
		context.Canceled: {Code: cnierr.TryAgain, Hint: again}, context.DeadlineExceeded: {Code: cnierr.TryAgain, Hint: again},
		rtnl.ErrInterrupted: {Code: cnierr.TryAgain, Hint: again}, unix.ENOMEM: {Code: cnierr.TryAgain, Hint: again}, unix.ENOBUFS: {Code: cnierr.TryAgain, Hint: again},
		rtnl.ErrTooMuch: {Code: cnierr.IO, Hint: "find the program that makes so many routes, rules or links in the pod"},
		unix.EPERM:      {Code: cnierr.IO, Hint: root}, unix.EACCES: {Code: cnierr.IO, Hint: root}, unix.EIO: {Code: cnierr.IO},
		unix.EAFNOSUPPORT: {Code: cnierr.Unsupported, Hint: "remove the IPv6 addresses, or boot the node without ipv6.disable=1"},
		unix.ENODEV:       {Code: cnierr.BadParent, Hint: "look for it"},
	} {
		want.Op, want.Subject, want.Err = "do", "it", fmt.Errorf("wrapped: %w", is)
		got := classify("do", "it", want.Err, own)
		if e, ok := errors.AsType[*cnierr.Error](got); !ok || *e != want || !errors.Is(classify("again", "other", fmt.Errorf("more: %w", got)), e) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if gone := classify("do", "it", unix.ENODEV); cnierr.CodeOf(gone) != cnierr.IO || classify("do", "it", nil, own) != nil {
		t.Errorf("got %v", gone)
	}
	for _, e := range []error{unix.ENODEV, unix.ESRCH} {
		if got := ignore(e, unix.ENOENT, unix.ENODEV); (got == nil) != errors.Is(e, unix.ENODEV) {
			t.Errorf("%v is %v", e, got)
		}
	}
}
