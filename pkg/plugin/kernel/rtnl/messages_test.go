// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

var update = flag.Bool("update", false, "rewrite the golden in testdata")

// writer is a socket that writes down what it is sent: a line for each message with its fixed
// part, and a line for each attribute.
type writer struct{ bytes.Buffer }

func (w *writer) Close() { w.WriteString("close\n") }

func (w *writer) Dump(_ context.Context, req nlsock.Request) ([][]byte, error) {
	w.write("dump", req)
	return nil, nil
}

func (w *writer) Exchange(_ context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	for _, req := range reqs {
		w.write("send", req)
	}
	return make([]nlsock.Reply, len(reqs)), nil
}

func (w *writer) write(how string, req nlsock.Request) {
	sizes := map[uint16]int{
		unix.RTM_NEWLINK: unix.SizeofIfInfomsg, unix.RTM_NEWADDR: unix.SizeofIfAddrmsg, unix.RTM_NEWROUTE: unix.SizeofRtMsg,
		unix.RTM_NEWNEIGH: unix.SizeofNdMsg, unix.RTM_NEWRULE: unix.SizeofRtMsg, unix.RTM_NEWNSID: sizeofGenMsg,
	}
	end := sizes[req.Type&^3]
	fmt.Fprintf(w, "%s type %d flags %#x: %x\n", how, req.Type, req.Flags, req.Body[:end])
	for typ, v := range nlsock.Attributes(req.Body[end:]) {
		fmt.Fprintf(w, "    %d: %x\n", typ, v)
	}
}

// TestMessagesAreAsInTheGolden: what is not in a message, the kernel chooses.
func TestMessagesAreAsInTheGolden(t *testing.T) {
	t.Parallel()
	const file = "testdata/messages.txt"
	var w writer
	c, ctx := New(&w), t.Context()
	below, far := Lower{Index: 4, NSID: NoNSID}, Lower{Index: 5, NSID: 3}
	mac := []byte{2, 0, 0, 0, 0, 9}
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	neighbour := Neighbour{Index: 6, Addr: addr("10.0.0.1"), Address: mac}
	route := Route{
		Table: 1000, Dst: prefix("10.2.0.0/16"), Via: addr("10.1.0.1"), Src: addr("10.1.0.9"), Index: 6, Metric: 7, MTU: 4200, AdvMSS: 4100,
		Protocol: 82, Scope: unix.RT_SCOPE_LINK, Type: unix.RTN_UNICAST, TOS: 4, OnLink: true,
	}
	for _, m := range []struct {
		what   string
		change Change
	}{
		{"a macvlan", AddChild(Child{Kind: "macvlan", Name: "net1", Lower: below, Address: mac, MTU: 4200, Mode: "bridge", BCQueueLen: 1000})},
		{"a macvlan of which the kernel chooses all", AddChild(Child{Kind: "macvlan", Name: "net1", Lower: below})},
		{"an ipvlan on a link of another namespace", AddChild(Child{Kind: "ipvlan", Name: "net1", Lower: far, MTU: 1500, Mode: "l3s", Address: mac})},
		{"a macvlan on a link of the first other namespace", AddChild(Child{Kind: "macvlan", Name: "net1", Lower: Lower{Index: 5}, Address: mac, Mode: "vepa"})},
		{"a macvlan with a mode of an ipvlan", AddChild(Child{Kind: "macvlan", Name: "net1", Lower: below, Mode: "l3"})},
		{"a VLAN", AddVLAN("eth0.120", 4, 120)},
		{"a veth", AddVeth(VethEnd{Name: "host0", Address: mac, MTU: 1500}, VethEnd{Name: "net1", Address: mac[1:], MTU: 1400}, 17)},
		{"a veth of which the kernel chooses the MTU", AddVeth(VethEnd{Name: "host0", Address: mac}, VethEnd{Name: "net1", Address: mac}, 17)},
		{"an alias", SetAlias("net1", "mine")},
		{"up", SetUp("net1", 0)},
		{"up, with an MTU", SetUp("net1", 4200)},
		{"another name", Rename(6, "net1", "mine")},
		{"no link of an index", DeleteLink(6)},
		{"no link of a name", DeleteNamed("net1")},
		{"a group", setGroup(6, 9)},
		{"no links of a group", deleteGroup(9)},
		{"an address", AddAddress(6, prefix("10.1.2.3/20"))},
		{"an address of IPv4 alone", AddAddress(6, prefix("10.1.2.3/32"))},
		{"an address of a pair", AddAddress(6, prefix("10.1.2.2/31"))},
		{"an address of four", AddAddress(6, prefix("10.1.2.2/30"))},
		{"an address of IPv6", AddAddress(6, prefix("fd00::3/64"))},
		{"an address of IPv6 in a large subnet", AddAddress(6, prefix("fd00::3/20"))},
		{"an address of the link", AddAddress(6, prefix("fe80::3/64"))},
		{"an address of the link, of IPv4", AddAddress(6, prefix("169.254.0.5/16"))},
		{"no address", DeleteAddress(6, prefix("10.1.2.3/20"))},
		{"a neighbour", SetNeighbour(neighbour)},
		{"no neighbour", DeleteNeighbour(neighbour)},
		{"a route", AddRoute(route)},
		{"a route of which the kernel chooses much", AddRoute(Route{Table: 254, Dst: prefix("::/0"), Index: 6, AdvMSS: 1400, Type: unix.RTN_UNICAST})},
		{"no route", DeleteRoute(route)},
		{"a rule", AddRule(Rule{From: prefix("10.1.2.3/32"), Table: 1000, Priority: 100, Action: unix.FR_ACT_TO_TBL, Protocol: 82})},
		{"a rule without a table", AddRule(Rule{From: prefix("fd00::/64"), Priority: 101, Action: unix.FR_ACT_UNREACHABLE})},
		{"no rule", DeleteRule(Rule{From: prefix("10.1.2.3/32"), Table: 1000, Priority: 100, Action: unix.FR_ACT_TO_TBL, Protocol: 82})},
	} {
		fmt.Fprintf(&w, "# %s\n", m.what)
		_ = c.Do(ctx, m.change)
	}
	for _, q := range []struct {
		what string
		ask  func()
	}{
		{"links", func() { _, _ = c.Links(ctx) }},
		{"link by index", func() { _, _ = c.LinkByIndex(ctx, 6) }},
		{"links by name", func() { c.LinksByName(ctx, "net1", "a-name-of-15-by", "an-altname-of-16") }},
		{"VFs", func() { _, _ = c.VFs(ctx, "eth0") }},
		{"addresses of one", func() { _, _ = c.Addresses(ctx, 6) }},
		{"routes", func() { _, _ = c.Routes(ctx) }},
		{"routes of one", func() { _, _ = c.RoutesOf(ctx, unix.AF_INET6, 1000) }},
		{"route to, IPv4", func() { _, _ = c.RouteTo(ctx, addr("10.1.0.9"), addr("10.2.0.9")) }},
		{"route to, IPv6", func() { _, _ = c.RouteTo(ctx, addr("fd00::9"), addr("fd01::9")) }},
		{"a neighbour", func() { _, _ = c.HasNeighbour(ctx, neighbour) }},
		{"rules", func() { _, _ = c.Rules(ctx, unix.AF_INET6) }},
		{"the NSID", func() { _, _ = c.NSID(ctx, 17) }},
		{"the given NSID", func() { _, _ = c.GiveNSID(ctx, 17) }},
		{"no links", func() { c.DeleteLinks(ctx, nil, nil) }},
		{"one link removed", func() { c.DeleteLinks(ctx, []Link{{Index: 6}}, nil) }},
		{"two links removed", func() { c.DeleteLinks(ctx, []Link{{Index: 6}, {Index: 7}}, []Link{{Group: firstGroup}}) }},
		{"several changes", func() { c.Batch(ctx, SetUp("a", 0), SetUp("b", 0), DeleteLink(3)) }},
		{"the end", c.Close},
	} {
		fmt.Fprintf(&w, "# %s\n", q.what)
		q.ask()
	}
	if *update {
		if err := os.WriteFile(file, w.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if diff := cmp.Diff(string(want), w.String()); err != nil || diff != "" {
		t.Errorf("%v; if a message should differ, run make golden (-want +got)\n%s", err, diff)
	}
}
