// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

func addrs(s string) []netip.Prefix {
	var out []netip.Prefix
	for _, f := range strings.Fields(s) {
		out = append(out, netip.MustParsePrefix(f))
	}
	return out
}

func TestSubnetsFollowFromTheAddressesOfANIC(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		own  string
		from pool.FromMaster
		want string // subnet, ranges, gateway of each
	}{
		"the whole subnet":        {"10.0.0.5/24", pool.FromMaster{Gateway: pool.LastHost}, "10.0.0.0/24 [10.0.0.0-10.0.0.255] 10.0.0.254"},
		"the first address":       {"10.0.0.5/24", pool.FromMaster{Gateway: pool.FirstHost}, "10.0.0.0/24 [10.0.0.0-10.0.0.255] 10.0.0.1"},
		"no gateway":              {"10.0.0.5/24", pool.FromMaster{Gateway: pool.NoGateway}, "10.0.0.0/24 [10.0.0.0-10.0.0.255] invalid IP"},
		"both families":           {"10.0.0.5/24 fd00::5/64", pool.FromMaster{Gateway: pool.NoGateway}, "10.0.0.0/24 [10.0.0.0-10.0.0.255] invalid IP; fd00::/64 [fd00::-fd00::ffff:ffff:ffff:ffff] invalid IP"},
		"a subnet of two hosts":   {"10.0.0.5/30", pool.FromMaster{Gateway: pool.LastHost}, "10.0.0.4/30 [10.0.0.4-10.0.0.7] 10.0.0.6"},
		"two of one subnet":       {"10.0.0.5/24 10.0.0.6/24", pool.FromMaster{Gateway: pool.NoGateway}, "10.0.0.0/24 [10.0.0.0-10.0.0.255] invalid IP"},
		"a single address beside": {"10.9.9.9/32 10.0.0.5/24", pool.FromMaster{Gateway: pool.NoGateway}, "10.0.0.0/24 [10.0.0.0-10.0.0.255] invalid IP"},
		"derived":                 {"10.0.0.133/25", pool.FromMaster{Gateway: pool.LastHost, Derive: &pool.Derive{Base: 64, PerHost: 4}}, "10.0.0.128/25 [10.0.0.212-10.0.0.215] 10.0.0.254"},
		"derived, one for a host": {"10.0.0.0/24", pool.FromMaster{Gateway: pool.NoGateway, Derive: &pool.Derive{Base: 64, PerHost: 1}}, "10.0.0.0/24 [10.0.0.64] invalid IP"},
		"derived from IPv6":       {"fd00::5/64", pool.FromMaster{Gateway: pool.NoGateway, Derive: &pool.Derive{Base: 4096, PerHost: 16}}, "fd00::/64 [fd00::1050-fd00::105f] invalid IP"},
	} {
		got, err := c.from.Subnets("ens1", addrs(c.own))
		var lines []string
		for _, s := range got {
			lines = append(lines, fmt.Sprint(s.Prefix, " ", s.Ranges, " ", s.Gateway))
		}
		if diff := cmp.Diff(c.want, strings.Join(lines, "; ")); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestWhatDoesNotFollowFromTheAddressesOfANIC(t *testing.T) {
	t.Parallel()
	derive := &pool.Derive{Base: 64, PerHost: 8}
	for name, c := range map[string]struct {
		own  string
		from pool.FromMaster
		code cnierr.Code
		says string
	}{
		"no address":                  {"", pool.FromMaster{}, cnierr.BadParent, "no address with a subnet"},
		"a single address":            {"10.0.0.5/32", pool.FromMaster{}, cnierr.BadParent, "no address with a subnet"},
		"point to point":              {"10.0.0.0/31", pool.FromMaster{Gateway: pool.LastHost}, cnierr.BadParent, "and the NIC has it"},
		"two subnets":                 {"10.0.0.5/24 10.1.0.5/24", pool.FromMaster{}, cnierr.BadParent, "10.1.0.5/24"},
		"two to derive from":          {"10.0.0.5/24 10.0.0.6/24", pool.FromMaster{Derive: derive}, cnierr.BadParent, "10.0.0.6/24"},
		"it is the gateway":           {"10.0.0.254/24", pool.FromMaster{Gateway: pool.LastHost}, cnierr.BadConfig, "the gateway would be"},
		"host number at the base":     {"10.0.0.64/24", pool.FromMaster{Derive: derive}, cnierr.BadConfig, "host index 64"},
		"derived past the end":        {"10.0.0.30/24", pool.FromMaster{Derive: derive}, cnierr.BadConfig, "host indexes 304 to 311"},
		"derived to one past the end": {"10.0.0.1/28", pool.FromMaster{Derive: &pool.Derive{Base: 3, PerHost: 7}}, cnierr.BadConfig, "host indexes 10 to 16"},
		"an IPv6 address by its MAC":  {"fd00::5054:ff:fe00:1/64", pool.FromMaster{Derive: derive}, cnierr.BadConfig, "has host index"},
	} {
		got, err := c.from.Subnets("ens1", addrs(c.own))
		if cnierr.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "ens1") {
			t.Errorf("%s: got %v, %v; want code %d with %q", name, got, err, c.code, c.says)
		}
	}
}
