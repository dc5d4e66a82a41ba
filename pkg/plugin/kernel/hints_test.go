// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// says wants the code, the message and a part of the hint of an error.
func says(t *testing.T, err error, code cnierr.Code, message, hint string) {
	t.Helper()
	var e *cnierr.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(err.Error(), message) || !strings.Contains(e.Hint, hint) {
		t.Errorf("got %+v\nwant %q, code %d, hint %q", err, message, code, hint)
	}
}

// TestWhatIsInTheWayIsNamed: an operator is told what stands where roce needs the place, and
// where that is.
func TestWhatIsInTheWayIsNamed(t *testing.T) {
	t.Parallel()
	link := func(name conf.LinkName) func(plan.Child) plan.Kind {
		return func(c plan.Child) plan.Kind { c.Name = name; return c }
	}
	route := func(r plan.Route) func(plan.Child) plan.Kind {
		return func(plan.Child) plan.Kind { return r }
	}
	v4 := plan.Route{Link: "eth9", Table: 100, Dst: netip.MustParsePrefix("10.7.0.0/24"), Via: netip.MustParseAddr("10.8.0.1")}
	other := v4
	other.Dst, other.Metric = netip.MustParsePrefix("10.7.2.0/24"), 5
	rule := func(plan.Child) plan.Kind {
		return plan.Rule{From: netip.MustParsePrefix("10.8.0.5/32"), Table: 100, Priority: 7}
	}
	const there = "link add eth9 type bridge\nlink set eth9 up\nlink set eth9 address 02:00:00:00:00:09\naddr add 10.8.0.5/24 dev eth9\n"
	for name, tt := range map[string]struct {
		script        string
		op            func(plan.Child) plan.Kind
		place         plan.Place
		code          cnierr.Code
		message, hint string
	}{
		"lo":       {"", link("lo"), plan.Pod, cnierr.BadEnv, `: the pod has a link of kind loopback with address 00:00:00:00:00:00`, "another interface name"},
		"a bridge": {there + "link set eth9 alias theirs", link("eth9"), plan.Pod, cnierr.BadEnv, `: the pod has a link of kind bridge with address 02:00:00:00:00:09 and alias "theirs"`, "another interface name"},
		"a route of the pod": {
			there + "route add 10.7.0.0/24 via 10.8.0.9 dev eth9 table 100 proto 4", route(v4), plan.Pod, cnierr.RouteTaken,
			`add route "10.7.0.0/24 table 100": there is one already: 10.7.0.0/24 through eth9 with protocol 4 via 10.8.0.9`,
			"remove the route from the pod, or choose another routing.table or routing.metric",
		},
		"a route of the host": {
			there + "route add 10.7.0.0/24 via 10.8.0.9 dev eth9 table 100 proto 4", route(v4), plan.Host, cnierr.RouteTaken,
			"there is one already: 10.7.0.0/24 through eth9 with protocol 4 via 10.8.0.9", "remove the route from the host: roce needs",
		},
		"a route to nowhere": {
			there + "route add blackhole 10.7.2.0/24 table 100 metric 5\nroute add 10.7.2.0/24 dev eth9 table 100 metric 4", route(other), plan.Pod, cnierr.RouteTaken,
			`add route "10.7.2.0/24 table 100": there is one already: blackhole 10.7.2.0/24 with protocol 3`, "",
		},
		"a rule of the pod": {
			there + "rule add not from 10.8.0.5 lookup 100 priority 7 protocol 82", rule, plan.Pod, cnierr.RouteTaken,
			`add rule "from 10.8.0.5/32 priority 7": there is another one: one with table 100, action 1 and protocol 82`,
			"remove the rule from the pod, or choose another routing.priority or routing.table",
		},
		"a rule of the host": {
			there + "rule add not from 10.8.0.5 lookup 100 priority 7 protocol 82", rule, plan.Host, cnierr.RouteTaken,
			"there is another one", "remove the rule from the host: roce needs",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node, pod, k := machine(t)
			for line := range strings.Lines(tt.script) {
				if tt.place == plan.Host {
					node.IP(line)
				} else {
					pod.IP(line)
				}
			}
			says(t, k.Do(t.Context(), plan.Op{Place: tt.place, Kind: tt.op(child(t))}), tt.code, tt.message, tt.hint)
		})
	}
}

// answering is a Linux that answers every request for something new so.
type answering struct {
	nlsock.Socket
	errno error
}

func (s answering) Exchange(ctx context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	if reqs[0].Flags&(unix.NLM_F_CREATE|unix.NLM_F_EXCL) != unix.NLM_F_CREATE|unix.NLM_F_EXCL {
		return s.Socket.Exchange(ctx, reqs...)
	}
	out := make([]nlsock.Reply, len(reqs))
	for i := range out {
		out[i].Err = s.errno
	}
	return out, nil
}

// keeping is a Linux that removes no link.
type keeping struct{ nlsock.Socket }

func (s keeping) Exchange(ctx context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	if !slices.ContainsFunc(reqs, func(r nlsock.Request) bool { return r.Type == unix.RTM_DELLINK }) {
		return s.Socket.Exchange(ctx, reqs...)
	}
	return slices.Repeat([]nlsock.Reply{{Err: unix.EBUSY}}, len(reqs)), nil
}

func TestALinkThatLinuxDoesNotRemoveIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	ops := steps(t)
	do(t, k, ops...)
	node.IP("link set veth1 down")
	node.IP("link set veth1 name other1")
	pod.IP("link set net1 mtu 1400")
	if err := k.Through(func(s nlsock.Socket) nlsock.Socket { return keeping{s} }); err != nil {
		t.Fatal(err)
	}
	before := node.IP("-br link") + pod.IP("-br link")
	for _, op := range ops {
		switch op.Kind.(type) {
		case plan.Veth:
			says(t, k.Do(t.Context(), op), cnierr.IO, `delete veth pair "veth1": device or resource busy`, "")
		case plan.Child:
			if op.Link() == "net1" {
				says(t, k.Do(t.Context(), op), cnierr.IO, `delete interface "net1": device or resource busy`, "")
			}
		}
	}
	for name, undone := range map[string]plan.Kind{
		"net1":   plan.Carriers{Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.5")}},
		"net1-1": plan.Orphans{Link: "net1", Mark: ops[0].Kind.(plan.Child).Mark},
	} {
		says(t, k.Undo(t.Context(), plan.Op{Kind: undone}), cnierr.IO, `delete interface "`+name+`": device or resource busy`, "")
	}
	says(t, k.Undo(t.Context(), ops.Runs()[0]...), cnierr.IO, `delete interface "net1-1": device or resource busy`, "")
	if now := node.IP("-br link") + pod.IP("-br link"); now != before {
		t.Errorf("was\n%s\nis\n%s", before, now)
	}
}

func TestTheRouteInTheWayIsDeletedAlone(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	do(t, k, kerneltest.Attachment(kerneltest.Container(t), nic)...)
	ours := plan.Op{Kind: plan.Route{Link: "net1", Table: 100, Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.9.0.1")}}
	for route, want := range map[string]string{
		"prohibit default table 100":                                                    "prohibit 0.0.0.0/0 table 100 metric 0 proto 3",
		"default via 10.9.0.9 dev net1 table 100 proto 4":                               "0.0.0.0/0 via 10.9.0.9 dev net1 table 100 metric 0 proto 4",
		"default dev net1 table 100":                                                    "0.0.0.0/0 dev net1 table 100 metric 0 proto 3",
		"default table 100 nexthop via 10.9.0.1 dev net1 nexthop via 10.9.0.2 dev net1": "0.0.0.0/0 table 100 metric 0 proto 3",
		"default tos 0x10 dev net1 table 100":                                           "", // it is not in the way
	} {
		pod.IP("route flush table 100")
		pod.IP("route add " + route)
		del := ""
		if want != "" {
			del = plan.IP(plan.NetnsName(pod.Path)) + " route del " + want + " && "
		}
		says(t, k.Check(t.Context(), ours), cnierr.Damaged, "", "restore it: "+del+strings.Join(ours.Commands(plan.NetnsName(pod.Path)), " && "))
	}
}

// TestWhatLinuxDoesNotMakeHasItsReason has the answers that Linux gives.
func TestWhatLinuxDoesNotMakeHasItsReason(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	ipvlan, pair := child(t), steps(t)
	ipvlan.Mode, ipvlan.MAC = conf.L2, conf.MAC{}
	var veth plan.Op
	for _, op := range pair {
		if _, is := op.Kind.(plan.Veth); is {
			veth = op
		}
	}
	vlan := theVLAN(t, k)[0]
	address := plan.Op{Kind: plan.Address{Link: "lo", Prefix: netip.MustParsePrefix("fd00:9::5/64")}}
	route := plan.Op{Kind: plan.Route{Link: "lo", Table: 100, Dst: netip.MustParsePrefix("10.7.0.0/24")}}
	rule := plan.Op{Kind: plan.Rule{From: netip.MustParsePrefix("fd00:9::5/128"), Table: 100, Priority: 7}}
	in := plan.IP(plan.NetnsName(pod.Path))
	for _, tt := range []struct {
		op            plan.Op
		errno         error
		code          cnierr.Code
		message, hint string
	}{
		{plan.Op{Kind: child(t)}, unix.EOPNOTSUPP, cnierr.Unsupported, `add macvlan "net1": on "nic0"`, "modprobe macvlan"},
		{plan.Op{Kind: ipvlan}, unix.EOPNOTSUPP, cnierr.Unsupported, `add ipvlan "net1": on "nic0"`, "modprobe ipvlan"},
		{plan.Op{Kind: child(t)}, unix.EBUSY, cnierr.BadParent, `on "nic0"`, "either macvlans or ipvlans"},
		{plan.Op{Kind: child(t)}, unix.EINVAL, cnierr.BadParent, `on "nic0"`, "an MTU of at most the master's"},
		{plan.Op{Kind: child(t)}, unix.ENODEV, cnierr.BadParent, `on "nic0"`, "ip link shows"},
		{plan.Op{Kind: child(t)}, unix.EEXIST, cnierr.TryAgain, `on "nic0"`, "another process made a link"},
		{plan.Op{Kind: child(t)}, unix.ENOMEM, cnierr.TryAgain, `on "nic0"`, "the load of the node"},
		{plan.Op{Kind: child(t)}, unix.EPERM, cnierr.IO, `on "nic0"`, "root"},
		{plan.Op{Kind: child(t)}, unix.EIO, cnierr.IO, `on "nic0"`, ""},
		{veth, unix.EOPNOTSUPP, cnierr.Unsupported, `add veth pair "veth1": `, "modprobe veth"},
		{veth, unix.EEXIST, cnierr.BadEnv, `add veth pair "veth1": `, `the pod has another interface "host0"`},
		{vlan, unix.EOPNOTSUPP, cnierr.Unsupported, `add VLAN "nic0.7": on "nic0"`, "modprobe 8021q"},
		{vlan, unix.EEXIST, cnierr.BadParent, `on "nic0"`, "the NIC has this VLAN already"},
		{vlan, unix.EBUSY, cnierr.BadParent, `on "nic0"`, "a port of a bridge"},
		{address, unix.EADDRINUSE, cnierr.AddressTaken, `add address "fd00:9::5/64": another ipvlan`, "find the ipvlan of the same NIC"},
		{address, unix.EACCES, cnierr.IO, `add address "fd00:9::5/64": permission`, "set net/ipv6/conf/lo/disable_ipv6 to 0 in the pod"},
		{address, unix.EAFNOSUPPORT, cnierr.Unsupported, `add address "fd00:9::5/64": `, "remove the IPv6 addresses"},
		{address, unix.EEXIST, cnierr.IO, `add address "fd00:9::5/64": lo has 127.0.0.1/8, ::1/128`, "remove the address that is there"},
		{route, unix.ENETUNREACH, cnierr.BadConfig, `add route "10.7.0.0/24 table 100": `, "the gateway must lie"},
		{route, unix.EHOSTUNREACH, cnierr.BadConfig, `add route "10.7.0.0/24 table 100": `, "the gateway must lie"},
		{route, unix.ENETDOWN, cnierr.IO, `add route "10.7.0.0/24 table 100": `, in + " link set dev lo up"},
		{route, unix.EEXIST, cnierr.TryAgain, `add route "10.7.0.0/24 table 100": a conflicting route was removed`, "wait"},
		{rule, unix.EPERM, cnierr.IO, `add rule "from fd00:9::5/128 priority 7": `, "root"},
		{rule, unix.EEXIST, cnierr.RouteTaken, `add rule "from fd00:9::5/128 priority 7": there is another one: none`, "choose another"},
	} {
		if err := k.Through(func(s nlsock.Socket) nlsock.Socket { return answering{s, tt.errno} }); err != nil {
			t.Fatal(err)
		}
		err := k.Do(t.Context(), tt.op)
		says(t, err, tt.code, tt.message, tt.hint)
		if has := (*kernel.AddressInUseError)(nil); errors.As(err, &has) && *has != (kernel.AddressInUseError{Link: "lo", Addr: netip.MustParseAddr("fd00:9::5")}) {
			t.Errorf("got %+v", has)
		}
	}
}
