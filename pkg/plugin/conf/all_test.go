// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// subjects returns the places of all faults of err, in order.
func subjects(t *testing.T, err error) []string {
	t.Helper()
	var out []string
	for _, e := range faults(t, err) {
		out = append(out, e.Subject)
	}
	return out
}

// wrong has members with one fault each, in three parts, and the paths of these faults.
var wrong = []struct {
	members string
	env     bool // the environment too
	want    []string
}{
	{`"cniVersion": "2.0.0", "name": "a b", "master": {"pci": "0b", "rmda": "mlx5_0"}, "mode": "x", "mtu": "big",
		"linkInContainer": 0, "bcqueuelen": -1, "stateDir": "run", "rails": [],
		"sysctl": {"kernel.panic": "1"}, "log": {"file": "f", "level": "l"}, "dns": {"search": 1}`, true, []string{
		"CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS",
		"cniVersion", "name", "stateDir", "log", "dns.search", "rails", "master",
		"master.pci", "master.rmda", "linkInContainer", "mode", "mtu", "bcqueuelen", "sysctl.kernel.panic",
	}},
	{`"mac": "nope", "runtimeConfig": {"mac": "no"}, "routing": {"mode": "m", "table": 254, "priority": 40000},
		"probe": {"conflict": {"probes": 0, "wait": "1h"}, "gateway": 1, "dad": {}}, "rdma": "q"`, false, []string{
		"routing.mode", "routing.priority", "routing.table",
		"probe.conflict.probes", "probe.conflict.wait", "probe.gateway", "probe.dad", "rdma", "mac", "runtimeConfig.mac",
	}},
	{`"ipam": {"type": "roce-ipam", "pool": "/", "quarantine": 5, "mtu": 1,
			"subnets": [{"subnet": "10.0.0.1/24", "ranges": ["x"], "exclude": [1], "gateway": "y", "rangeEnd": "z"}, 7],
			"routes": [{"dst": "w", "gw": "v"}, {"dst": "w"}]}, "args": {"cni": {"ips": [[]]}}`, false, []string{
		"ipam.pool", "ipam.subnets[0].subnet", "ipam.subnets[0].ranges[0]", "ipam.subnets[0].exclude[0]",
		"ipam.subnets[0].gateway", "ipam.subnets[0].rangeEnd", "ipam.subnets[1]", "ipam.quarantine",
		"args.cni.ips[0]", "ipam.routes[0].dst", "ipam.routes[0].gw", "ipam.routes[1].dst", "ipam.mtu",
	}},
}

func TestAllFaultsAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	told := ""
	for _, part := range wrong {
		in := input(part.members)
		if part.env {
			in = call("{" + part.members + "}")
			in.ContainerID, in.IfName, in.Netns = "", "a/b", "ns"
		}
		_, err := conf.Parse(in)
		if d := cmp.Diff(part.want, subjects(t, err)); d != "" {
			t.Errorf("places of faults (-want +got):\n%s", d)
		}
		e := cnierr.CNI("roce", err)
		if e.Code != uint(cnierr.BadConfig) {
			t.Errorf("got code %d and %s", e.Code, e.Msg)
		}
		for _, s := range part.want {
			if !strings.Contains(e.Msg, `"`+s+`": `) {
				t.Errorf("the message does not name %s: %s", s, e.Msg)
			}
		}
		told += e.Details
	}
	for _, s := range []string{`"master.rmda": did you mean "rdma"?`, `"ipam.subnets[0].subnet": did you mean "10.0.0.0/24"?`, `"rails": write a list such as [{"master"`} {
		if !strings.Contains(told, s) {
			t.Errorf("the hint lacks %s: %s", s, told)
		}
	}
}

func TestOfManyFaultsTwentyAreReported(t *testing.T) {
	t.Parallel()
	_, err := conf.Parse(call("{" + wrong[0].members + ", " + wrong[1].members + ", " + wrong[2].members + "}"))
	e := cnierr.CNI("roce", err)
	if n := strings.Count(e.Msg, "; "); n != 20 || !strings.HasSuffix(e.Msg, "more faults") || !strings.Contains(e.Msg, `"cniVersion"`) {
		t.Errorf("%d faults: %s", n, e.Msg)
	}
}

func TestCodeIsTheOneThatAllFaultsShare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		members, args string
		want          cnierr.Code
	}{
		{`"mtu": "a", "mode": 1`, ``, cnierr.Decode},
		{`"mtu": -1, "mode": "x"`, ``, cnierr.BadConfig},
		{`"mtu": -1, "mode": 1`, ``, cnierr.BadConfig},
		{``, `FOO=1;MAC=x`, cnierr.BadEnv},
		{`"mtu": -1`, `FOO=1`, cnierr.BadConfig},
	} {
		in := input(c.members)
		in.Args = c.args
		_, err := conf.Parse(in)
		if got := cnierr.CodeOf(err); got != c.want {
			t.Errorf("%s %s: got code %d, want %d: %v", c.members, c.args, got, c.want, err)
		}
	}
}

func TestMTUMustBeEnoughForTheFamilies(t *testing.T) {
	t.Parallel()
	const v4, v6 = `"subnets": [{"subnet": "10.0.0.0/24"}]`, `"subnets": [{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]`
	for _, c := range []struct {
		members string
		want    []string
	}{
		{`"mtu": 0, ` + ofPool(v6), nil},
		{`"mtu": 1280, ` + ofPool(v6), nil},
		{`"mtu": 1279, ` + ofPool(v6), []string{"mtu"}},
		{`"mtu": 1279, ` + ofPool(v4), nil},
		{`"mtu": 67, ` + ofPool(v4), []string{"mtu"}},
		{`"mtu": 67, ` + ofPool(v6), []string{"mtu", "mtu"}},
		{`"mtu": 67`, nil},
	} {
		_, err := conf.Parse(input(c.members))
		if err == nil {
			if c.want != nil {
				t.Errorf("%s: accepted", c.members)
			}
			continue
		}
		if d := cmp.Diff(c.want, subjects(t, err)); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.members, d)
		}
	}
}

func TestFaultsHaveOneOrder(t *testing.T) {
	t.Parallel()
	for range 20 {
		_, err := conf.Parse(input(`"rdma": {"mode": "shared", "trafficClass": 96, "tos": 96}`))
		if diff := cmp.Diff([]string{"rdma.tos", "rdma.trafficClass"}, subjects(t, err)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}
