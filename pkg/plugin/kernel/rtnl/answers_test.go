// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// answering is a socket with the answer to a dump, and one to each request.
type answering struct {
	rows    [][]byte
	err     error // of a dump, and of a whole exchange
	replies []nlsock.Reply
}

func (answering) Close() {}

func (a answering) Dump(context.Context, nlsock.Request) ([][]byte, error) { return a.rows, a.err }

func (a answering) Exchange(context.Context, ...nlsock.Request) ([]nlsock.Reply, error) {
	return a.replies, a.err
}

// bytesOf returns an address as attributes have it.
func bytesOf(s string) []byte { return netip.MustParseAddr(s).AsSlice() }

// TestEachAnswerAboutLinksIsRead also says what a name is.
func TestEachAnswerAboutLinksIsRead(t *testing.T) {
	t.Parallel()
	head := slices.Concat([]byte{0, 0}, u16(unix.ARPHRD_INFINIBAND), u32(6), u32(unix.IFF_UP), u32(0))
	row := slices.Concat(head, nested(unix.IFLA_PROP_LIST, nested(unix.IFLA_ALT_IFNAME, []byte("other\x00\x00\x00"))), nested(unix.IFLA_IFNAME, []byte("ib0\x00")))
	want := Link{Index: 6, Name: "ib0", AltNames: []string{"other"}, Flags: unix.IFF_UP, Type: unix.ARPHRD_INFINIBAND, Lower: Lower{NSID: NoNSID}}
	c := New(answering{rows: [][]byte{row, row}, replies: []nlsock.Reply{{Rows: [][]byte{row}}}})
	all, err := c.Links(t.Context())
	one, errOne := c.LinkByIndex(t.Context(), 6)
	named, errNamed := c.LinkByName(t.Context(), "other")
	if diff := cmp.Diff([]Link{want, want, want, want}, append(all, one, named)); diff != "" || errors.Join(err, errOne, errNamed) != nil {
		t.Errorf("%v (-want +got)\n%s", errors.Join(err, errOne, errNamed), diff)
	}
	if !want.Has("ib0") || !want.Has("other") || want.Has("ib") || want.Encap() != "infiniband" {
		t.Errorf("%+v has %t, %t and %t, and is %s", want, want.Has("ib0"), want.Has("other"), want.Has("ib"), want.Encap())
	}
}

func TestRowsOfAddresses(t *testing.T) {
	t.Parallel()
	row := func(family, bits, flags, scope byte, index uint32, more ...[]byte) []byte {
		return slices.Concat([]byte{family, bits, flags, scope}, u32(index), slices.Concat(more...))
	}
	local, peer := nested(unix.IFA_LOCAL, bytesOf("10.0.0.3")), nested(unix.IFA_ADDRESS, bytesOf("10.0.0.4"))
	broadcast := nested(unix.IFA_BROADCAST, bytesOf("10.0.0.255"))
	c := New(answering{rows: [][]byte{
		row(unix.AF_INET, 24, 0x80, unix.RT_SCOPE_UNIVERSE, 6, broadcast, peer, local, broadcast),
		row(unix.AF_INET, 32, 0x80, unix.RT_SCOPE_HOST, 7, local, peer, nested(unix.IFA_FLAGS, u32(0x280))),
		row(unix.AF_INET6, 64, 0x80, unix.RT_SCOPE_LINK, 6, nested(unix.IFA_ADDRESS, bytesOf("fe80::3"))),
		row(unix.AF_INET, 24, 0x80, unix.RT_SCOPE_UNIVERSE, 6), // none at all
	}})
	want := []Address{
		{Index: 6, Prefix: netip.MustParsePrefix("10.0.0.3/24"), Flags: 0x80},
		{Index: 7, Prefix: netip.MustParsePrefix("10.0.0.3/32"), Flags: 0x280, Scope: unix.RT_SCOPE_HOST},
		{Index: 6, Prefix: netip.MustParsePrefix("fe80::3/64"), Flags: 0x80, Scope: unix.RT_SCOPE_LINK},
	}
	got, err := c.Addresses(t.Context(), 0)
	if diff := cmp.Diff(want, got, values()); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	got, err = c.Addresses(t.Context(), 6) // kernels before 4.20 list all
	if diff := cmp.Diff([]Address{want[0], want[2]}, got, values()); diff != "" || err != nil {
		t.Errorf("of one link: %v (-want +got)\n%s", err, diff)
	}
}

// routeRow returns a struct rtmsg of a family with attributes behind it.
func routeRow(family byte, change func(head []byte), more ...[]byte) []byte {
	head := make([]byte, unix.SizeofRtMsg)
	head[0] = family
	if change != nil {
		change(head)
	}
	return slices.Concat(head, slices.Concat(more...))
}

func TestRowsOfRoutes(t *testing.T) {
	t.Parallel()
	hop := func(length uint16, index uint32, more ...[]byte) []byte {
		return slices.Concat(u16(length), []byte{0, 0}, u32(index), slices.Concat(more...))
	}
	via, other := nested(unix.RTA_GATEWAY, bytesOf("10.0.0.1")), nested(unix.RTA_GATEWAY, bytesOf("10.0.0.2"))
	whole := routeRow(unix.AF_INET, func(head []byte) {
		copy(head[1:], []byte{16, 0, 4, 252, 82, unix.RT_SCOPE_LINK, unix.RTN_UNICAST})
		copy(head[8:], u32(unix.RTNH_F_ONLINK))
	}, nested(unix.RTA_TABLE, u32(1000)), nested(unix.RTA_DST, bytesOf("10.2.0.0")), nested(unix.RTA_PREFSRC, bytesOf("10.0.0.9")),
		nested(unix.RTA_PRIORITY, u32(7)), nested(unix.RTA_METRICS, nested(unix.RTAX_MTU, u32(4200)), nested(unix.RTAX_ADVMSS, u32(4100)), nested(unix.RTAX_HOPLIMIT, u32(9))),
		nested(unix.RTA_OIF, u32(6)), via)
	c := New(answering{rows: [][]byte{
		whole,
		routeRow(unix.AF_INET6, func(head []byte) { head[4] = unix.RT_TABLE_MAIN }),
		routeRow(unix.AF_INET6, func(head []byte) { head[2] = 64 }),
		routeRow(unix.AF_INET, nil, nested(unix.RTA_MULTIPATH, hop(16, 6, via), hop(16, 7, other))),
		routeRow(unix.AF_INET, nil, nested(unix.RTA_MULTIPATH, []byte{1, 2, 3})),
		routeRow(unix.AF_INET, nil, nested(unix.RTA_MULTIPATH, hop(2, 6, via))),
		routeRow(unix.AF_INET, nil, nested(unix.RTA_MULTIPATH, hop(200, 6, via))),
		routeRow(unix.AF_INET, nil, nested(unix.RTA_MULTIPATH, hop(8, 6))),
		routeRow(unix.AF_INET, func(head []byte) { copy(head[8:], u32(unix.RTM_F_CLONED)) }),
		routeRow(unix.AF_MPLS, nil),
		routeRow(128, nil), // RTNL_FAMILY_IPMR
	}})
	all, all6 := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")
	want := []Route{
		{
			Table: 1000, Dst: netip.MustParsePrefix("10.2.0.0/16"), Via: netip.MustParseAddr("10.0.0.1"), Src: netip.MustParseAddr("10.0.0.9"), Index: 6, Metric: 7,
			MTU: 4200, AdvMSS: 4100, Protocol: 82, Scope: unix.RT_SCOPE_LINK, Type: unix.RTN_UNICAST, TOS: 4, OnLink: true,
		},
		{Table: unix.RT_TABLE_MAIN, Dst: all6},
		{Dst: all6, Odd: true},
		{Dst: all, Odd: true, Index: 6, Via: netip.MustParseAddr("10.0.0.1")},
		{Dst: all, Odd: true},
		{Dst: all, Odd: true, Index: 6},
		{Dst: all, Odd: true, Index: 6, Via: netip.MustParseAddr("10.0.0.1")},
		{Dst: all, Odd: true, Index: 6},
	}
	got, err := c.Routes(t.Context())
	if diff := cmp.Diff(want, got, values()); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	for _, of := range []struct {
		family uint8
		table  uint32
		want   []Route
	}{{unix.AF_INET, 1000, want[:1]}, {unix.AF_INET6, unix.RT_TABLE_MAIN, want[1:2]}, {unix.AF_INET, unix.RT_TABLE_MAIN, []Route{}}} {
		got, err := c.RoutesOf(t.Context(), of.family, of.table)
		if diff := cmp.Diff(of.want, got, values()); diff != "" || err != nil {
			t.Errorf("of family %d in table %d: %v (-want +got)\n%s", of.family, of.table, err, diff)
		}
	}
	one, err := New(answering{replies: []nlsock.Reply{{Rows: [][]byte{whole}}}}).RouteTo(t.Context(), want[0].Src, want[0].Via)
	if diff := cmp.Diff(want[0], one, values()); diff != "" || err != nil {
		t.Errorf("the route to an address: %v (-want +got)\n%s", err, diff)
	}
	none, err := New(answering{err: unix.ENOENT}).RoutesOf(t.Context(), unix.AF_INET, 1000)
	if len(none) != 0 || err != nil {
		t.Errorf("a table without routes: %v, %v", none, err)
	}
}

func TestOnlyAUnicastRouteOfTheMainTableToAllIsTheDefault(t *testing.T) {
	t.Parallel()
	is := Route{Table: unix.RT_TABLE_MAIN, Dst: netip.MustParsePrefix("0.0.0.0/0"), Type: unix.RTN_UNICAST}
	for what, change := range map[string]func(*Route){
		"another table": func(r *Route) { r.Table = 100 }, "another type": func(r *Route) { r.Type = unix.RTN_BLACKHOLE },
		"another destination": func(r *Route) { r.Dst = netip.MustParsePrefix("0.0.0.0/1") },
	} {
		r := is
		if change(&r); r.IsDefault() || !is.IsDefault() {
			t.Errorf("%s: %t, and without it %t", what, r.IsDefault(), is.IsDefault())
		}
	}
}

func TestRowsOfRules(t *testing.T) {
	t.Parallel()
	c := New(answering{rows: [][]byte{
		routeRow(unix.AF_INET, func(head []byte) {
			copy(head[1:], []byte{0, 16, 0, 252, 0, 0, unix.FR_ACT_TO_TBL})
			copy(head[8:], u32(unix.FIB_RULE_INVERT))
		}, nested(unix.FRA_SRC, bytesOf("10.4.0.0")), nested(unix.FRA_TABLE, u32(1000)), nested(unix.FRA_PRIORITY, u32(5)), nested(unix.FRA_PROTOCOL, []byte{82}), []byte{0, 0, 0},
			nested(unix.FRA_SUPPRESS_PREFIXLEN, u32(^uint32(0))), nested(unix.FRA_SUPPRESS_IFGROUP, u32(^uint32(0)))),
		routeRow(unix.AF_INET6, func(head []byte) { head[4], head[7] = unix.RT_TABLE_MAIN, unix.FR_ACT_UNREACHABLE }),
		routeRow(unix.AF_INET, nil, nested(unix.FRA_SUPPRESS_PREFIXLEN, u32(0)), nested(unix.FRA_SUPPRESS_IFGROUP, u32(^uint32(0)))),
		routeRow(unix.AF_INET, nil, nested(unix.FRA_SUPPRESS_IFGROUP, u32(3)), nested(unix.FRA_PROTOCOL)),
		routeRow(unix.AF_INET, func(head []byte) { head[1] = 8 }),
		routeRow(unix.AF_INET, func(head []byte) { head[3] = 4 }),
		routeRow(128, nil),
	}})
	all := netip.MustParsePrefix("0.0.0.0/0")
	want := []Rule{
		{From: netip.MustParsePrefix("10.4.0.0/16"), Table: 1000, Priority: 5, Action: unix.FR_ACT_TO_TBL, Protocol: 82, Inverted: true},
		{From: netip.MustParsePrefix("::/0"), Table: unix.RT_TABLE_MAIN, Action: unix.FR_ACT_UNREACHABLE},
		{From: all, Odd: true},
		{From: all, Odd: true},
		{From: all, Narrow: true},
		{From: all, Narrow: true},
	}
	got, err := c.Rules(t.Context(), unix.AF_UNSPEC)
	if diff := cmp.Diff(want, got, values()); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

func TestANeighbourIsThereOnlyIfAllOfItIs(t *testing.T) {
	t.Parallel()
	mac := []byte{2, 0, 0, 0, 0, 9, 0, 0} // as long as an attribute is padded
	row := func(index uint32, state uint16, dst string, lladdr []byte) []byte {
		return slices.Concat([]byte{unix.AF_INET, 0, 0, 0}, u32(index), u16(state), []byte{0, 1}, nested(unix.NDA_DST, bytesOf(dst)), nested(unix.NDA_LLADDR, lladdr))
	}
	n := Neighbour{Index: 6, Addr: netip.MustParseAddr("10.0.0.1"), Address: mac}
	for what, tt := range map[string]struct {
		row  []byte
		want bool
	}{
		"it":                 {row(6, unix.NUD_PERMANENT, "10.0.0.1", mac), true},
		"on another link":    {row(7, unix.NUD_PERMANENT, "10.0.0.1", mac), false},
		"learned":            {row(6, unix.NUD_REACHABLE, "10.0.0.1", mac), false},
		"another address":    {row(6, unix.NUD_PERMANENT, "10.0.0.2", mac), false},
		"another link layer": {row(6, unix.NUD_PERMANENT, "10.0.0.1", mac[1:5]), false},
	} {
		other := row(9, unix.NUD_PERMANENT, "10.0.0.1", mac)
		got, err := New(answering{rows: [][]byte{other, tt.row}}).HasNeighbour(t.Context(), n)
		if got != tt.want || err != nil {
			t.Errorf("%s: %t, %v", what, got, err)
		}
	}
}

func TestTheNumberOfANamespace(t *testing.T) {
	t.Parallel()
	has := nlsock.Reply{Rows: [][]byte{slices.Concat(make([]byte, sizeofGenMsg), nested(unix.NETNSA_FD, u32(17)), nested(unix.NETNSA_NSID, u32(3)))}}
	without := nlsock.Reply{Rows: [][]byte{make([]byte, sizeofGenMsg)}}
	for what, tt := range map[string]struct {
		given error
		is    nlsock.Reply
		want  int32
		err   error
	}{
		"it has one":                {is: has, want: 3},
		"another process gave one":  {given: unix.EEXIST, is: has, want: 3},
		"it has none":               {is: without, want: NoNSID},
		"the kernel gives none":     {given: unix.EPERM, is: has, err: unix.EPERM},
		"the kernel does not tell":  {is: nlsock.Reply{Err: unix.EIO}, err: unix.EIO},
		"the kernel says nothing":   {err: unix.ENODATA},
		"the file is no namespace":  {given: unix.EINVAL, is: nlsock.Reply{Err: unix.EINVAL}, err: unix.EINVAL},
		"a process gave one, again": {given: unix.EEXIST, is: nlsock.Reply{Err: unix.EIO}, err: unix.EIO},
	} {
		got, err := New(answering{replies: []nlsock.Reply{{Err: tt.given}, tt.is}}).GiveNSID(t.Context(), 17)
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: got %d, %v", what, got, err)
		}
		if tt.given != nil {
			continue
		}
		got, err = New(answering{replies: []nlsock.Reply{tt.is}}).NSID(t.Context(), 17)
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s, not given: got %d, %v", what, got, err)
		}
	}
}

// A namespace that does not answer is not an empty one.
func TestWhatTheKernelRefusesIsAnError(t *testing.T) {
	t.Parallel()
	link := make([]byte, unix.SizeofIfInfomsg)
	for _, q := range questions() {
		refused := nlsock.Reply{Err: unix.EPERM, Rows: [][]byte{link}}
		if err := q.ask(t.Context(), New(answering{err: unix.EPERM, rows: [][]byte{link}, replies: []nlsock.Reply{refused, refused}})); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v", q.message, err)
		}
	}
	refused := New(answering{err: unix.EPERM})
	errs := refused.DeleteLinks(t.Context(), []Link{{Index: 1}, {Index: 2}}, nil)
	if len(errs) != 2 || !errors.Is(errs[0], unix.EPERM) || !errors.Is(errs[1], unix.EPERM) {
		t.Errorf("links that are not removed: %v", errs)
	}
}

// A link that has gone is removed.
func TestALinkThatHasGoneIsRemoved(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3} {
		replies := make([]nlsock.Reply, n, n+1)
		replies[0].Err = unix.ENODEV
		if n > 1 { // and the removal of their group
			replies = append(replies, nlsock.Reply{})
		}
		errs := New(answering{replies: replies}).DeleteLinks(t.Context(), make([]Link, n), nil)
		if len(errs) != n || errors.Join(errs...) != nil {
			t.Errorf("of %d: %v", n, errs)
		}
	}
}
