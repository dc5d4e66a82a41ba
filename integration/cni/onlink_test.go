// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// outside are gateways outside of the subnet of the pod's address.
var outside = []struct {
	name    string
	family  string // for ip(8)
	subnet  map[string]any
	gateway string
	leaf    string // what gives the leaf the gateway's address
	beyond  string // a host behind the gateway
	route   string // the default route of the address's table
}{
	{
		name:    "link-local, IPv6",
		family:  "-6",
		subnet:  map[string]any{"subnet": "fd00:10::/64", "ranges": []any{"fd00:10::64-fd00:10::7f"}},
		gateway: "fe80::1",
		leaf:    "addr add fe80::1/64 dev leaf0 nodad",
		beyond:  "2001:db8::1",
		route:   "default via fe80::1 dev net1 proto 82 src fd00:10::",
	},
	{
		name:    "of a single address",
		family:  "-4",
		subnet:  map[string]any{"subnet": "172.16.10.77/32"},
		gateway: "172.31.1.1",
		leaf:    "addr add 172.31.1.1/32 dev leaf0",
		beyond:  "198.51.100.1",
		route:   "default via 172.31.1.1 dev net1 proto 82 src 172.16.10.77 onlink",
	},
	{
		name:    "on the link, IPv6",
		family:  "-6",
		subnet:  map[string]any{"subnet": "fd00:10::/64", "ranges": []any{"fd00:10::64-fd00:10::7f"}, "onLink": true},
		gateway: "fd00:99::1",
		leaf:    "addr add fd00:99::1/128 dev leaf0 nodad",
		beyond:  "2001:db8::1",
		route:   "default via fd00:99::1 dev net1 proto 82 src fd00:10::",
	},
}

func TestGatewaysOutsideOfTheSubnet(t *testing.T) {
	t.Parallel()
	for _, tt := range outside {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			before := p.snapshot(t)
			tt.subnet["gateway"] = tt.gateway
			a := w.attach(w.rail(0).With("ipam.subnets", []any{tt.subnet}), p, "net1")
			if err := a.mustFail(t, 106); !strings.Contains(err.Msg, tt.gateway) {
				t.Errorf("without the gateway: %v, want it to name %s", err, tt.gateway)
			}
			p.unchanged(t, before)

			w.leaf.IP(t, fmt.Sprintf("link set dev lo up\n%s\naddr add %s dev lo", tt.leaf, tt.beyond))
			res := a.mustAdd(t)
			addr := addrs(res)[0].String()
			if got := res.IPs[0].Gateway.String(); got != tt.gateway {
				t.Errorf("the result has the gateway %s, want %s", got, tt.gateway)
			}
			table := strings.Join(p.routes(t, "100"), "\n")
			if !strings.Contains(table, tt.route) {
				t.Errorf("table 100 is\n%s\nwant %q in it", table, tt.route)
			}
			reach := func() { p.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", "-I", addr, tt.beyond) }
			reach()
			a.mustCheck(t)
			if diff := cmp.Diff(res, a.mustAdd(t)); diff != "" {
				t.Errorf("result (-first +second ADD)\n%s", diff)
			}

			p.MustRun(t, "ip", tt.family, "route", "flush", "table", "100")
			if err := a.check(t); err == nil || err.Code != 110 {
				t.Errorf("CHECK without routes: %v, want error 110", err)
			}
			w.mustRocectl(t, "repair", "--yes")
			reach()
			a.mustCheck(t)
			a.mustDel(t)
			p.unchanged(t, before)
			w.mustBeClean(t)
		})
	}
}
