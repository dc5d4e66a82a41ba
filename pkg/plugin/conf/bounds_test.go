// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// listed returns the members that format makes of the numbers below n.
func listed(n int, format string) string {
	out := make([]string, 0, n)
	for i := range n {
		out = append(out, fmt.Sprintf(format, i))
	}
	return strings.Join(out, ", ")
}

// prefixes returns so many subnets.
func prefixes(n int) string {
	out := make([]string, 0, n)
	for i := range n {
		out = append(out, fmt.Sprintf(`{"subnet": "10.%d.%d.0/24"}`, i/256, i%256))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func TestLongInputIsRefused(t *testing.T) {
	t.Parallel()
	const rest = `{"cniVersion": "1.1.0", "name": "rail1", "type": "roce", "master": "ens1f0", `
	one := `"subnet": "10.0.0.0/16", `
	for subject, c := range map[string]struct {
		most int
		in   func(n int) string
	}{
		"ipam.subnets": {64, func(n int) string { return `"ipam": {"type": "roce-ipam", "subnets": ` + prefixes(n) + `}}` }},
		"ipam.subnets[0].ranges": {256, func(n int) string {
			return `"ipam": {"type": "roce-ipam", "subnets": [{` + one + `"ranges": [` + listed(n, `"10.0.%d.1"`) + `]}]}}`
		}},
		"ipam.subnets[1].ranges": {256, func(n int) string {
			return `"ipam": {"type": "roce-ipam", "subnets": [{"subnet": "10.1.0.0/16"}, {` + one + `"ranges": [` + listed(n, `"10.0.%d.1"`) + `]}]}}`
		}},
		"rails[1].subnets": {64, func(n int) string {
			return `"rails": [{"master": "a"}, {"master": "b", "subnets": ` + prefixes(n) + `}]}`
		}},
		"runtimeConfig.ips": {64, func(n int) string {
			return `"ipam": {"type": "roce-ipam"}, "runtimeConfig": {"ips": [` + listed(n, `"10.0.0.%d"`) + `]}}`
		}},
		"args.cni.ips": {64, func(n int) string {
			return `"ipam": {"type": "roce-ipam"}, "args": {"cni": {"ips": [` + listed(n, `"10.0.0.%d"`) + `]}}}`
		}},
		"ipam.subnets[0].exclude": {256, func(n int) string {
			return `"ipam": {"type": "roce-ipam", "subnets": [{` + one + `"exclude": [` + listed(n, `"10.0.%d.1"`) + `]}]}}`
		}},
		"ipam.routes": {64, func(n int) string {
			return `"ipam": {"type": "roce-ipam", "subnets": ` + prefixes(1) + `, "routes": [` + listed(n, `{"dst": "192.0.%d.0/24"}`) + `]}}`
		}},
		"hostLink.routes": {64, func(n int) string {
			return `"ipam": {"type": "roce-ipam", "subnets": [{"subnet": "10.0.0.0/24", "gateway": "10.0.0.1"}]}, "hostLink": {"routes": [` + listed(n, `"100.%d.0.0/16"`) + `]}}`
		}},
		"sysctl": {64, func(n int) string { return `"sysctl": {` + listed(n, `"net.ipv4.conf.IFNAME.a%d": "1"`) + `}}` }},
		"JSON":   {256<<10 - len(rest) - len(`"x": ""}`), func(n int) string { return `"x": "` + strings.Repeat("x", n) + `"}` }},
	} {
		for n, want := range map[int]bool{c.most: true, c.most + 1: false} {
			in := strings.ReplaceAll(rest+c.in(n), "10.0.256.1", "10.0.255.9")
			_, err := conf.Parse(call(in))
			told := err != nil && strings.Contains(err.Error(), fmt.Sprintf("%q: ", subject)) && strings.Contains(err.Error(), "the limit is")
			if told == want || told && cnierr.CodeOf(err) != cnierr.BadConfig {
				t.Errorf("%s, %d: %v", subject, n, err)
			}
		}
	}
}

func TestTheLongestNamesAreAccepted(t *testing.T) {
	t.Parallel()
	in := call(`{"cniVersion": "1.1.0", "name": "` + strings.Repeat("n", 253) + `", "master": "ens1f0"}`)
	in.ContainerID = strings.Repeat("c", 200)
	if _, err := conf.Parse(in); err != nil {
		t.Error(err)
	}
	_, err := conf.Parse(call(`{"cniVersion": "1.1.0", "name": "` + strings.Repeat("n", 254) + `", "master": "ens1f0"}`))
	bad{"254", cnierr.BadConfig, `"name": 254 characters, at most 253`, `shorter`}.check(t, err)
}

func TestFaultsAreReportedInShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1000)
	for _, in := range []string{
		`{"cniVersion": "1.1.0", "name": "rail1", "master": "ens1f0", "routing": {` + listed(10_000, `"key%d": 1`) + `}}`,
		`{"cniVersion": "1.1.0", "name": "rail1", "master": "ens1f0", "mode": "` + long + `"}`,
		`{"cniVersion": "1.1.0", "name": "rail1", "master": "ens1f0", "routing": {"` + long + `": 1}}`,
		`{"cniVersion": "1.1.0", "name": "rail1", "master": "ens1f0", "dns": {"search": [` + listed(10_000, "%d") + `]}}`,
	} {
		_, err := conf.Parse(call(in))
		e := cnierr.CNI("roce", err)
		if e.Code != uint(cnierr.CodeOf(err)) || len(e.Msg)+len(e.Details) > 8000 || strings.Contains(e.Msg+e.Details, strings.Repeat("x", 200)) {
			t.Errorf("%d characters: %.3000s", len(e.Msg)+len(e.Details), e.Msg)
		}
	}
}
