// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
)

// behind returns the attachment of a pod to rail i by a list of plugins: one of
// upstream's, with host-local, then tuning, then roce, which adopts.
func (w *world) behind(t testing.TB, p *pod, i int, maker map[string]any) attachment {
	t.Helper()
	dir := upstream(t)
	data := t.TempDir()
	roce := network{"cniVersion": "1.0.0", "name": fmt.Sprintf("chain%d", i), "type": "roce", "rdma": "off"}
	a := w.attach(roce, p, fmt.Sprintf("net%d", i+1))
	a.path = append(a.path, dir)
	maker["ipam"] = map[string]any{
		"type": "host-local", "dataDir": data,
		"ranges": []any{
			[]any{map[string]any{"subnet": fmt.Sprintf("172.16.%d.0/24", 10+i), "rangeStart": fmt.Sprintf("172.16.%d.130", 10+i), "gateway": fmt.Sprintf("172.16.%d.254", 10+i)}},
		},
		"routes": []any{map[string]any{"dst": fmt.Sprintf("10.%d.0.0/16", i)}},
	}
	a.before = []any{maker, map[string]any{"type": "tuning", "sysctl": map[string]any{"net.ipv4.conf.IFNAME.arp_filter": "1"}}}
	return a
}

func macvlanOn(rail int) map[string]any {
	return map[string]any{"type": "macvlan", "master": fmt.Sprintf("rail%d", rail), "mode": "bridge"}
}

// withIPv6 gives a plugin's pod an address of rail i's IPv6 subnet, too. That
// plugin then waits for the end of duplicate address detection.
func withIPv6(i int, a attachment) attachment {
	maker := network(a.before[0].(map[string]any))
	ranges := append(maker["ipam"].(map[string]any)["ranges"].([]any), []any{
		map[string]any{"subnet": fmt.Sprintf("fd00:%d::/64", 10+i), "rangeStart": fmt.Sprintf("fd00:%d::130", 10+i), "gateway": fmt.Sprintf("fd00:%d::fe", 10+i)},
	})
	a.before = []any{map[string]any(maker.With("ipam.ranges", ranges)), a.before[1]}
	return a
}

// alone returns the result of the list without roce.
func (a attachment) alone(t testing.TB) *current.Result {
	t.Helper()
	last := len(a.before) - 1
	other := a
	other.network, other.before = network(a.before[last].(map[string]any)), a.before[:last]
	other.network = other.network.With("name", a.network["name"]).With("cniVersion", a.network["cniVersion"])
	defer other.mustDel(t)
	return other.mustAdd(t)
}

func TestChainedRoceRoutesWhatAnotherPluginMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.pod(t)
	w.leaf.IP(t, `
		addr add 198.51.100.1/32 dev lo
		addr add 2001:db8::1/128 dev lo nodad
		link set dev lo up`)
	before := p.snapshot(t)
	for i := range 2 {
		a := withIPv6(i, w.behind(t, p, i, macvlanOn(i)))
		without := a.alone(t)
		res := a.mustAdd(t)
		// host-local gives the next address each time.
		for j := range res.IPs {
			without.IPs[j].Address.IP = res.IPs[j].Address.IP
		}
		without.Interfaces[0].Mac = res.Interfaces[0].Mac
		if diff := cmp.Diff(without, res); diff != "" {
			t.Errorf("the result is not that of the plugins before roce (-without +with)\n%s", diff)
		}
		v4, v6 := addrs(res)[0], addrs(res)[1]
		table := fmt.Sprint(100 + i)
		all(t, "rules", p.rules(t), []string{
			fmt.Sprintf("32000: from %s lookup %s proto 82", v4, table), fmt.Sprintf("32001: from %s unreachable proto 82", v4),
			fmt.Sprintf("32000: from %s lookup %s proto 82", v6, table), fmt.Sprintf("32001: from %s unreachable proto 82", v6),
		})
		all(t, "table "+table, p.routes(t, table), []string{
			fmt.Sprintf("default via 172.16.%d.254 dev %s proto 82 src %s", 10+i, a.ifName, v4),
			fmt.Sprintf("10.%d.0.0/16 via 172.16.%d.254 dev %s proto 82 src %s", i, 10+i, a.ifName, v4),
			fmt.Sprintf("default via fd00:%d::fe dev %s proto 82 src %s metric 1024 pref medium", 10+i, a.ifName, v6),
		})
		all(t, "main", p.routes(t, "main"), []string{
			"default via 10.244.1.1 dev eth0", fmt.Sprintf("10.%d.0.0/16 via 172.16.%d.254 dev %s", i, 10+i, a.ifName),
		})
		// The default route in main is eth0's, so that an answer to a host
		// beyond the gateway shows which table it took.
		w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", "-I", "198.51.100.1", v4.String())
		w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", "-I", "2001:db8::1", v6.String())
		if got := p.setting(t, "net/ipv4/conf/"+a.ifName+"/rp_filter"); got != "2" {
			t.Errorf("rp_filter is %s", got)
		}
		defer func() {
			a.mustCheck(t)
			p.IP(t, fmt.Sprintf("rule del from %s lookup %s priority 32000", v4, table))
			if err := a.check(t); err == nil || !strings.HasPrefix(err.Msg, "roce[110] ") {
				t.Errorf("CHECK without a rule: got %v, want roce's finding", err)
			}
			for range 2 {
				a.mustDel(t)
			}
			if i == 0 { // the last of the two
				p.unchanged(t, before)
				w.noRecords(t)
			}
		}()
	}
}
