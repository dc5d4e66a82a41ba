// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// previous is the result of a plugin that has made the pod's interface.
const previous = `{"cniVersion": "1.0.0", "interfaces": [{"name": "ens1f0"}, {"name": "net1", "mac": "02:00:00:00:00:07", "sandbox": "/run/netns/pod"}],
	"ips": [{"address": "172.16.11.7/24", "gateway": "172.16.11.254", "interface": 1}]}`

// behind returns the call of a roce behind another plugin, with a result and
// more members of the configuration.
func behind(result, members string) conf.Input {
	if members != "" {
		members = ", " + members
	}
	in := call(`{"cniVersion": "1.0.0", "name": "rail1", "prevResult": ` + result + members + `}`)
	in.Command = "ADD"
	return in
}

func TestPrevResultWithoutMasterIsAdopted(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]string{
		"1.0.0":  previous,
		"0.4.0":  `{"cniVersion": "0.4.0", "interfaces": [{"name": "ens1f0"}, {"name": "net1", "mac": "02:00:00:00:00:07", "sandbox": "/x"}], "ips": [{"version": "4", "address": "172.16.11.7/24", "gateway": "172.16.11.254", "interface": 1}]}`,
		"1.1.0":  `{"cniVersion": "1.1.0", "interfaces": [{"name": "net1"}, {"name": "net1", "mac": "02:00:00:00:00:07", "mtu": 9000, "sandbox": "/x"}], "ips": [{"address": "172.16.11.7/24", "gateway": "172.16.11.254", "interface": 1}]}`,
		"empty":  `{"cniVersion": "", "interfaces": [{"name": "ens1f0"}, {"name": "net1", "mac": "02:00:00:00:00:07", "sandbox": "/x"}], "ips": [{"address": "172.16.11.7/24", "gateway": "172.16.11.254", "interface": 1}]}`,
		"unsaid": `{"interfaces": [{"name": "ens1f0"}, {"name": "net1", "mac": "02:00:00:00:00:07", "sandbox": "/x"}], "ips": [{"address": "172.16.11.7/24", "gateway": "172.16.11.254", "interface": 1}]}`,
	} {
		r, err := conf.Parse(behind(result, `"master": "", "rdma": "exclusive"`))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p := r.Prev
		if p == nil || p.Interface != 1 || p.Result.Interfaces[1].Mac != "02:00:00:00:00:07" || len(p.Result.IPs) != 1 || p.Result.IPs[0].Gateway.String() != "172.16.11.254" {
			t.Errorf("%s: got %+v", name, p)
		}
	}
}

func TestAnAdoptedInterfaceGetsNoLease(t *testing.T) {
	t.Parallel()
	in := behind(`{"cniVersion": "1.0.0", "interfaces": [{"name": "net1", "mac": "80:00", "sandbox": "/x"}]}`, `"ipam": {}, "runtimeConfig": {"mac": "02:00:00:00:00:01", "ips": ["172.16.11.9"]}`)
	in.Args = "MAC=02:00:00:00:00:02;IP=172.16.11.8"
	r, err := conf.Parse(in)
	must(t, err)
	if r.Prev == nil || r.IPAM.Type != "" || r.IPAM.Requested != nil {
		t.Errorf("got %+v, ipam %+v", r.Prev, r.IPAM)
	}
}

func TestAPluginThatMakesTheInterfaceAdoptsNone(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"CHECK", "STATUS"} {
		in := behind(`{"interfaces": []}`, `"mtu": 9000`)
		in.Command = command
		if r, err := conf.Parse(in); err != nil || r.Prev != nil {
			t.Errorf("%s: got %v, %v", command, r.Prev, err)
		}
	}
	in := input(`"prevResult": {}, "mtu": 9000`)
	in.Command = "ADD"
	if r, err := conf.Parse(in); err != nil || r.Prev != nil {
		t.Errorf("ADD with a master: got %v, %v", r.Prev, err)
	}
}

func TestCheckKnowsTheMACsOfThePodAtLast(t *testing.T) {
	t.Parallel()
	in := behind(`{"cniVersion": "1.0.0", "interfaces": [{"name": "ens1f0", "mac": "02:00:00:00:00:01"},
		{"name": "net1", "mac": "02:00:00:00:00:07", "sandbox": "/x"}, {"name": "net2", "sandbox": "/x"}]}`, "")
	in.Command = "CHECK"
	r, err := conf.Parse(in)
	if want := (map[conf.LinkName]conf.MAC{"net1": {2, 0, 0, 0, 0, 7}}); err != nil || !maps.Equal(r.MACs, want) {
		t.Errorf("got %v, %v, want %v", r.MACs, err, want)
	}
	in = behind(`{"interfaces": 5}`, "")
	in.Command = "CHECK"
	_, err = conf.Parse(in)
	bad{"5", cnierr.Decode, `"prevResult": not the result of a CNI plugin`, "the plugin before roce in the list"}.check(t, err)
}

func TestDeviceIDIsTakenOnlyInTheFormOfADevice(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`"deviceID": "0000:0b:00.2"`:                                                "0000:0b:00.2",
		`"deviceID": "10000:0B:00.2"`:                                               "10000:0b:00.2",
		`"deviceID": "mlx5_core.sf.4"`:                                              "mlx5_core.sf.4",
		`"runtimeConfig": {"deviceID": "0000:0b:00.3"}`:                             "0000:0b:00.3",
		`"deviceID": "17", "runtimeConfig": {"deviceID": "0000:0b:00.3"}`:           "0000:0b:00.3",
		`"deviceID": "0000:0b:00.2", "runtimeConfig": {"deviceID": "0000:0b:00.3"}`: "0000:0b:00.2",
		`"deviceID": "17"`:                                                          "",
		`"deviceID": 17`:                                                            "",
		`"deviceID": null`:                                                          "",
		`"deviceID": "0b:00.2"`:                                                     "",
		`"deviceID": "000000000:0b:00.2"`:                                           "",
		`"deviceID": "0000:0b:00.8"`:                                                "",
		`"deviceID": "../0000:0b:00.2"`:                                             "",
		`"deviceID": "0000:0b:00.2\n"`:                                              "",
		`"deviceID": "mlx5_core.sf"`:                                                "",
		`"deviceID": "mlx5/core.sf.4"`:                                              "",
		`"deviceID": ["0000:0b:00.2"]`:                                              "",
		`"deviceID": {"a": "0000:0b:00.2"}`:                                         "",
	} {
		r, err := conf.Parse(behind(previous, in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
		} else if r.Prev.Device != want {
			t.Errorf("%s: got %q, want %q", in, r.Prev.Device, want)
		}
	}
}

func TestFaultsOfAnAdoptedInterface(t *testing.T) {
	t.Parallel()
	const elsewhere, put = "without master, roce adopts the interface in prevResult", "set it in the configuration of the plugin that makes the interface"
	for _, b := range []bad{
		{`"mode": "bridge"`, cnierr.BadConfig, `"mode": has no effect: ` + elsewhere, put},
		{`"mtu": 0`, cnierr.BadConfig, `"mtu": has no effect`, put},
		{`"mac": "02:00:00:00:00:01"`, cnierr.BadConfig, `"mac": has no effect`, put},
		{`"bcqueuelen": 100`, cnierr.BadConfig, `"bcqueuelen": has no effect`, put},
		{`"linkInContainer": false`, cnierr.BadConfig, `"linkInContainer": has no effect`, put},
		{ofPool(one), cnierr.BadConfig, `"ipam.type": has no effect`, put},
		{`"ipam": {"type": "host-local"}`, cnierr.BadConfig, `"ipam.type": has no effect`, `set master`},
		{`"vlan": 7`, cnierr.BadConfig, `"vlan": the plugin before roce makes the interface`, `in the plugin before roce`},
		{`"rdma": {"gidIndex": 3}`, cnierr.BadConfig, `"rdma.gidIndex": roce does not set the addresses`, `remove it`},
		{`"hostLink": {"routes": []}`, cnierr.BadConfig, `"hostLink": another plugin makes the interface`, `set master`},
	} {
		_, err := conf.Parse(behind(previous, b.in))
		b.check(t, err)
	}
	_, err := conf.Parse(behind(previous, `"linkInContainer": true, "mtu": 1, "ipam": {"type": "dhcp"}, "mac": "02:00:00:00:00:01", "mode": "vepa", "bcqueuelen": 1, "routing": "none"`))
	if d := cmp.Diff([]string{"ipam.type", "mode", "mtu", "mac", "bcqueuelen", "linkInContainer"}, subjects(t, err)); d != "" {
		t.Errorf("all at once (-want +got):\n%s", d)
	}
}

func TestFaultsOfPrevResult(t *testing.T) {
	t.Parallel()
	const none, put = `"prevResult": it lists no interface "net1" of the pod`, "put roce behind the plugin that makes the pod's interface"
	for _, b := range []bad{
		{`{"cniVersion": "1.0.0"}`, cnierr.BadConfig, none, put},
		{`{"cniVersion": "1.0.0", "interfaces": []}`, cnierr.BadConfig, none, put},
		{`{"cniVersion": "1.0.0", "interfaces": [null, {"name": "net1"}]}`, cnierr.Decode, `"prevResult": not the result of a CNI plugin: interfaces has null`, "the plugin before roce in the list"},
		{`{"cniVersion": "0.4.0", "interfaces": [null]}`, cnierr.Decode, `interfaces has null`, "the plugin before roce in the list"},
		{`{"cniVersion": "1.0.0", "interfaces": [{"name": "net2", "sandbox": "/x"}]}`, cnierr.BadConfig, none, put},
		{`{"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.1/24"}}`, cnierr.BadConfig, none, put},
		{`{"cniVersion": "9.9.9", "interfaces": []}`, cnierr.Decode, `"prevResult": not the result of a CNI plugin`, "the plugin before roce in the list"},
		{`{"cniVersion": "1.0.0", "ips": [{"address": "x"}]}`, cnierr.Decode, `"prevResult": not the result of a CNI plugin`, "the plugin before roce in the list"},
		{`{"cniVersion": "1.0.0", "ips": [null]}`, cnierr.Decode, `ips has null`, "the plugin before roce in the list"},
		{`[]`, cnierr.Decode, `"prevResult": not the result of a CNI plugin`, "the plugin before roce in the list"},
	} {
		_, err := conf.Parse(behind(b.in, ""))
		b.check(t, err)
	}
}

// What Multus and the runtime add to a configuration does not change its digest.
func TestDigestIsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	digest := func(more string) string {
		r, err := conf.Parse(conf.Input{
			Command: "ADD", ContainerID: "c1", Netns: "/run/netns/c1", IfName: "net1",
			Stdin: []byte(`{"cniVersion": "1.0.0", "name": "n", "type": "roce"` + more + `, "rails": [{"master": "a", "ifName": "r0"}]}`),
		})
		must(t, err)
		return r.Digest
	}
	plain := digest("")
	if again := digest(`, "prevResult": {"cniVersion": "1.0.0"}, "runtimeConfig": {"deviceID": "1"}`); again != plain {
		t.Errorf("prevResult and runtimeConfig change it: %s, %s", plain, again)
	}
	if other := digest(`, "rdma": "off"`); other == plain {
		t.Errorf("another configuration has the same: %s", other)
	}
}
