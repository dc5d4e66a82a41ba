// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// defaults returns what input("") means.
func defaults() conf.Request {
	return conf.Request{
		CNIVersion: "1.1.0", Network: "rail1", Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Netns: "/run/netns/pod",
		Status: conf.Status{Pool: conf.Require, Rails: conf.AnyRail},
		Rails: []conf.Rail{{
			IfName: "net1", Parent: conf.Parent{Name: "ens1f0"},
			Routing: conf.Routing{Mode: conf.RoutingPolicy, Priority: 32000},
		}},
		MinRails: 1, Mode: conf.Bridge,
		Routing: conf.Routing{Mode: conf.RoutingPolicy, Priority: 32000},
		Probe: conf.Probe{
			Conflict: conf.Conflict{Mode: conf.Require, Probes: 3, Interval: 2 * time.Millisecond, Wait: 4 * time.Millisecond},
			Gateway:  conf.Gateway{Mode: conf.Require, Attempts: 3, Timeout: 100 * time.Millisecond},
		},
		RDMA: conf.RDMA{Mode: conf.RDMAAuto, GID: conf.Require, GIDWait: 10 * time.Second, UVerbs: conf.Warn},
	}
}

func span(s string) netrange.Range {
	r, err := netrange.Parse(s)
	if err != nil {
		panic(err)
	}
	return r
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func mac(s string) conf.MAC {
	m, err := conf.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

// ours sets what ofPool(one) means.
func ours(r *conf.Request) {
	r.IPAM = conf.IPAM{Type: conf.PoolType, Pool: "rail1", Quarantine: 2 * time.Minute}
	r.Rails[0].Subnets = []pool.Subnet{wide("172.16.11.0/24", "172.16.11.254")}
}

// Each case says what differs from the defaults.
func TestMembersMeanWhatTheDesignSays(t *testing.T) {
	t.Parallel()
	seven, main := 7, 254
	for _, c := range []struct {
		members string
		set     func(r *conf.Request)
	}{
		{``, func(*conf.Request) {}},
		{`"type": "roce", "unknown": {"a": [1]}, "deviceID": "17", "pciBusID": "0000:0b:00.2", "capabilities": {"ips": true}, "cniVersions": ["1.0.0"], "isGateway": true`, func(*conf.Request) {}},
		{`"mode": null, "mtu": null, "mac": null, "ipam": null, "routing": null, "probe": {"conflict": null}, "sysctl": null, "log": null, "stateDir": null, "dns": null, "runtimeConfig": null, "args": 5`, func(*conf.Request) {}},
		{`"mode": "", "mac": "", "runtimeConfig": {"mac": "", "portMappings": []}, "ipam": {}`, func(*conf.Request) {}},
		{`"mode": "vepa", "mtu": 9000, "bcqueuelen": 10000, "linkInContainer": true`, func(r *conf.Request) {
			r.Mode, r.MTU, r.BCQueueLen, r.LinkInContainer = conf.VEPA, 9000, 10_000, true
		}},
		{`"mode": "passthru"`, func(r *conf.Request) { r.Mode = conf.Passthru }},
		{`"vlan": 4094`, func(r *conf.Request) { r.VLAN = 4094 }},
		{`"child": "macvlan"`, func(*conf.Request) {}},
		{`"child": "ipvlan"`, func(r *conf.Request) { r.Mode = conf.L2 }},
		{`"child": "ipvlan", "mode": "l2", "bcqueuelen": 0`, func(r *conf.Request) { r.Mode = conf.L2 }},
		{`"routing": "main", "probe": {"conflict": "warn", "gateway": "off"}, "rdma": "off"`, func(r *conf.Request) {
			r.Routing.Mode, r.Rails[0].Routing.Mode = conf.RoutingMain, conf.RoutingMain
			r.Probe.Conflict.Mode, r.Probe.Gateway.Mode, r.RDMA.Mode = conf.Warn, conf.Off, conf.RDMAOff
		}},
		{`"routing": {"table": 1011, "priority": 32764, "defaultRoute": true, "metric": 4294967295}`, func(r *conf.Request) {
			r.Routing = conf.Routing{Mode: conf.RoutingPolicy, Table: 1011, Priority: 32764, DefaultRoute: true, Metric: 1<<32 - 1}
			r.Rails[0].Routing = r.Routing
		}},
		{`"probe": {"conflict": {"mode": "off", "probes": 10, "interval": "1s", "wait": "5s"}, "gateway": {"mode": "warn", "attempts": 1, "timeout": "1ms"}}`, func(r *conf.Request) {
			r.Probe.Conflict = conf.Conflict{Mode: conf.Off, Probes: 10, Interval: time.Second, Wait: 5 * time.Second}
			r.Probe.Gateway = conf.Gateway{Mode: conf.Warn, Attempts: 1, Timeout: time.Millisecond}
		}},
		{`"rdma": {"mode": "exclusive", "gid": "warn", "gidWait": "30s"}`, func(r *conf.Request) {
			r.RDMA = conf.RDMA{Mode: conf.RDMAExclusive, GID: conf.Warn, GIDWait: 30 * time.Second, UVerbs: conf.Warn}
		}},
		{`"rdma": {"mode": "exclusive", "tos": 106}`, func(r *conf.Request) { r.RDMA.Mode, r.RDMA.TOS = conf.RDMAExclusive, new(uint8(106)) }},
		{`"rdma": {"mode": "exclusive", "uverbs": "require", "trafficClass": 96}`, func(r *conf.Request) {
			r.RDMA.Mode, r.RDMA.UVerbs, r.RDMA.TrafficClass = conf.RDMAExclusive, conf.Require, new(uint8(96))
		}},
		{`"rdma": {"mode": "shared", "uverbs": "off", "gid": "off"}`, func(r *conf.Request) {
			r.RDMA.Mode, r.RDMA.UVerbs, r.RDMA.GID = conf.RDMAShared, conf.Off, conf.Off
		}},
		{`"status": {"pool": "off", "rails": "require"}`, func(r *conf.Request) { r.Status = conf.Status{Pool: conf.Off, Rails: conf.Require} }},
		{`"status": {"pool": "require", "rails": "any"}`, func(*conf.Request) {}},
		{`"rdma": {"gidIndex": "equal"}`, func(r *conf.Request) { r.RDMA.GIDIndex = conf.EqualIndex }},
		{`"rdma": {"gidIndex": 7}`, func(r *conf.Request) { r.RDMA.GIDIndex = 7 }},
		{`"rdma": {"gidIndex": "any"}`, func(*conf.Request) {}},
		{`"dns": {"nameservers": ["10.0.0.1"], "domain": "d", "search": ["s"], "options": ["o"], "x": 1}`, func(r *conf.Request) {
			r.DNS = types.DNS{Nameservers: []string{"10.0.0.1"}, Domain: "d", Search: []string{"s"}, Options: []string{"o"}}
		}},
		{`"sysctl": {"net/ipv6/conf/IFNAME/mtu": 1500, "net.ipv4.neigh.IFNAME.gc_stale_time": "60", "net.ipv4.conf.IFNAME.rp_filter": 0, "net.ipv4.conf.IFNAME.arp_filter": "1"}`, func(r *conf.Request) {
			r.Sysctl = []conf.Sysctl{
				{Tree: "ipv4/conf", Key: "arp_filter", Value: "1"},
				{Tree: "ipv4/conf", Key: "rp_filter", Value: "0"},
				{Tree: "ipv4/neigh", Key: "gc_stale_time", Value: "60"},
				{Tree: "ipv6/conf", Key: "mtu", Value: "1500"},
			}
		}},
		{ofPool(one), ours},
		{ofPool(`"pool": "gpu1-net11", "quarantine": "0s", "routes": null, ` + one), func(r *conf.Request) {
			ours(r)
			r.IPAM.Pool, r.IPAM.Quarantine = "gpu1-net11", 0
		}},
		{ofPool(`"subnets": [
			{"subnet": "172.16.11.0/24", "ranges": ["172.16.11.128/25", "172.16.11.9", "172.16.11.1-172.16.11.8"], "exclude": ["172.16.11.7", "172.16.11.2-172.16.11.9", "172.16.11.2"], "gateway": "172.16.11.130"},
			{"subnet": "fd00:11::/64", "gateway": "fd00:11::fffe"}, {"subnet": "172.16.12.0/31"}, {"subnet": "172.16.12.9/32", "gateway": "10.9.9.9"}, {"subnet": "172.16.13.0/24", "gateway": "169.254.1.1"}], "routes": [{"dst": "10.8.0.0/16", "gw": "10.9.9.9"}]`), func(r *conf.Request) {
			ours(r)
			r.IPAM.Routes = []pool.Route{{Dst: prefix("10.8.0.0/16"), Via: addr("10.9.9.9")}}
			r.Rails[0].Routes = r.IPAM.Routes
			r.Rails[0].Subnets = []pool.Subnet{
				{
					Prefix:  prefix("172.16.11.0/24"),
					Ranges:  []netrange.Range{span("172.16.11.1-172.16.11.8"), span("172.16.11.9"), span("172.16.11.128/25")},
					Exclude: []netrange.Range{span("172.16.11.2"), span("172.16.11.2-172.16.11.9"), span("172.16.11.7")},
					Gateway: addr("172.16.11.130"),
				},
				{Prefix: prefix("fd00:11::/64"), Ranges: []netrange.Range{span("fd00:11::/64")}, Gateway: addr("fd00:11::fffe")},
				{Prefix: prefix("172.16.12.0/31"), Ranges: []netrange.Range{span("172.16.12.0-172.16.12.1")}},
				{Prefix: prefix("172.16.12.9/32"), Ranges: []netrange.Range{span("172.16.12.9")}, Gateway: addr("10.9.9.9")},
				wide("172.16.13.0/24", "169.254.1.1"),
			}
		}},
		{ofPool(one + `, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "0.0.0.0/0", "priority": 1}, {"dst": "0.0.0.0/0", "table": 254}, {"dst": "10.0.0.0/8", "gw": "172.16.11.1", "mtu": 1500, "advmss": 1400, "priority": 5, "table": 7}, {"dst": "10.0.0.0/8", "table": 254, "scope": 253}, {"dst": "10.0.0.0/8", "table": 7, "scope": 0}, {"dst": "10.0.0.0/8"}]`), func(r *conf.Request) {
			scope := 253
			ours(r)
			r.IPAM.Routes = []pool.Route{
				{Dst: prefix("0.0.0.0/0")},
				{Dst: prefix("0.0.0.0/0"), Priority: 1},
				{Dst: prefix("0.0.0.0/0"), Table: &main},
				{Dst: prefix("10.0.0.0/8"), Via: addr("172.16.11.1"), MTU: 1500, AdvMSS: 1400, Priority: 5, Table: &seven},
				{Dst: prefix("10.0.0.0/8"), Table: &main, Scope: &scope},
				{Dst: prefix("10.0.0.0/8"), Table: &seven, Scope: new(int)},
				{Dst: prefix("10.0.0.0/8")},
			}
			r.Rails[0].Routes = r.IPAM.Routes
		}},
		{ofPool(`"subnets": [{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}], "routes": [{"dst": "fd01::/64", "gw": "fe80::1"}]`) + `, "runtimeConfig": {"ips": ["fd00::5", "10.0.0.5/24"]}, "args": {"cni": {"ips": ["10.0.0.5"], "x": 1}}`, func(r *conf.Request) {
			ours(r)
			r.Rails[0].Subnets = []pool.Subnet{
				{Prefix: prefix("10.0.0.0/24"), Ranges: []netrange.Range{span("10.0.0.0/24")}},
				{Prefix: prefix("fd00::/64"), Ranges: []netrange.Range{span("fd00::/64")}},
			}
			r.IPAM.Routes = []pool.Route{{Dst: prefix("fd01::/64"), Via: addr("fe80::1")}}
			r.Rails[0].Routes = r.IPAM.Routes
			r.IPAM.Requested = []netip.Addr{addr("fd00::5"), addr("10.0.0.5")}
			r.Rails[0].Requested = []netip.Addr{addr("10.0.0.5"), addr("fd00::5")}
		}},
	} {
		want := defaults()
		c.set(&want)
		got, err := conf.Parse(input(c.members))
		if err != nil {
			t.Errorf("%s: %v", c.members, err)
		} else if d := diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.members, d)
		}
	}
}

// TestResultsOfTheFirstFormHaveAnAddressOfEachFamily, and no second one.
func TestResultsOfTheFirstFormHaveAnAddressOfEachFamily(t *testing.T) {
	t.Parallel()
	in := call(`{"cniVersion": "0.2.0", "name": "n", "master": "a", ` + ofPool(`"subnets": [{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]`) + `}`)
	if r := mustParse(t, in); len(r.Rails[0].Subnets) != 2 {
		t.Errorf("got %+v", r.Rails)
	}
}

func TestMasterSelects(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]conf.Parent{
		`null`: {}, `""`: {},
		`"ens1f0"`:                   {Name: "ens1f0"},
		`"a-rather-long-altname.10"`: {Name: "a-rather-long-altname.10"},
		`{"function": "physical", "drivers": ["bnxt_en", "Mlx5-core"], "linkTypes": ["loopback6", "none/x"]}`: {
			Function: conf.Physical, Drivers: []string{"bnxt_en", "Mlx5-core"}, LinkTypes: []string{"loopback6", "none/x"},
		},
		`{"rdma": "` + strings.Repeat("r", 63) + `"}`:   {RDMA: strings.Repeat("r", 63)},
		`{"function": "scalable"}`:                      {Function: conf.Scalable},
		`{"rdma": "mlx5_bond_0"}`:                       {RDMA: "mlx5_bond_0"},
		`{"pci": "0000:0B:00.0"}`:                       {PCI: "0000:0b:00.0"},
		`{"pci": "10000:01:00.7"}`:                      {PCI: "10000:01:00.7"},
		`{"ifNames": ["enp*np0"], "vendors": ["15b3"]}`: {IfNames: []string{"enp*np0"}, Vendors: []string{"15b3"}},
		`{"subnet": "172.16.11.0/24", "ifNames": ["enp*np0", "ens[0-9]f?"], "vendors": ["15B3"], "deviceIDs": ["101b"], "drivers": ["mlx5_core"], "linkTypes": ["ether"]}`: {
			Subnet: prefix("172.16.11.0/24"), IfNames: []string{"enp*np0", "ens[0-9]f?"}, Vendors: []string{"15b3"},
			DeviceIDs: []string{"101b"}, Drivers: []string{"mlx5_core"}, LinkTypes: []string{"ether"},
		},
	} {
		got, err := conf.Parse(call(`{"cniVersion": "0.3.1", "name": "n", "master": ` + in + `}`))
		if err != nil {
			t.Errorf("%s: %v", in, err)
		} else if p := got.Rails[0].Parent; diff(want, p) != "" || p.Default() != (in == `null` || in == `""`) {
			t.Errorf("%s selects nothing: %t (-want +got):\n%s", in, p.Default(), diff(want, p))
		}
	}
}

// What upstream's macvlan takes, with its type changed, as Multus sends it.
func TestUpstreamMacvlanConfigurationsKeepTheirMeaning(t *testing.T) {
	t.Parallel()
	for _, ipam := range []string{
		`{"type": "host-local", "ranges": [[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9"}]], "routes": [{"dst": "0.0.0.0/0"}], "subnets": 5}`,
		`{"type": "static", "addresses": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1"}]}`,
		`{"type": "dhcp"}`,
		`{"type": "whereabouts", "range": "10.1.2.0/24", "exclude": ["10.1.2.0/28"]}`,
	} {
		in := call(`{"cniVersion": "0.3.1", "name": "macvlan-conf", "type": "roce", "master": "eth0", "mode": "private", "mtu": 1500,
			"mac": "02:00:00:00:00:01", "capabilities": {"mac": true, "ips": true}, "runtimeConfig": {"mac": "c2:b0:57:49:47:f1", "ips": ["10.1.2.3/24"]},
			"deviceID": "17", "pciBusID": "17", "ipam": ` + ipam + `}`)
		in.Args = "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=f1a6;MAC=c2:b0:57:49:47:f1;IP=10.1.2.3/24,fd00::3"
		want := defaults()
		want.CNIVersion, want.Network, want.Rails[0].Parent.Name, want.Mode, want.MTU = "0.3.1", "macvlan-conf", "eth0", conf.Private, 1500
		want.MAC = mac("c2:b0:57:49:47:f1")
		want.Pod = conf.Pod{Namespace: "default", Name: "pod-0", UID: "f1a6"}
		got, err := conf.Parse(in)
		if err != nil {
			t.Errorf("%s: %v", ipam, err)
			continue
		}
		want.IPAM = conf.IPAM{Type: got.IPAM.Type, Raw: in.Stdin}
		if d := diff(want, got); d != "" || got.IPAM.Type == "" {
			t.Errorf("%s: type %q (-want +got):\n%s", ipam, got.IPAM.Type, d)
		}
	}
}

// Keys of the CNI specification, libcni, Multus and other plugins: a list for one of them
// can be a list for roce.
func TestKeysOfOthersAreIgnored(t *testing.T) {
	t.Parallel()
	for _, key := range strings.Fields(`$schema allmulti attachments bandwidth bridge cni.dev/attachments cni.dev/valid-attachments
		capabilities chained cleanup confDir conditionsV4 dataDir delegates description device deviceID deviceName dhcp
		disableCheck disableGC disabledInterfaces egressRate enabledad externalSetMarkChain firewalld_zone forceAddress hairpinMode hwaddr
		health ib_kubernetes_enabled ibKubernetesEnabled ingressRate interfaces ipMasq ipMasqBackend isDefaultGateway isGateway kernelpath
		kubeconfig kubernetes link link_state loadOnlyInlinedPlugins log_file log_level logFile logLevel macspoofchk markMasqBit masqAll
		max_tx_rate min_tx_rate multiQueue namespace ovs pciBusID pciID pkey plugins policy portIsolation portMappings preserveDefaultVlan promisc
		promiscMode rdmaIsolation resourceName routes snat socketPath spoofchk stateful sysctlPrefix table tag trunk trust txQLen
		vlanProto vlanQoS vlanTrunk vrfname xdpMode`) {
		if _, err := conf.Parse(input(fmt.Sprintf("%q: 1", key))); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestArgumentsAskForAddressesOfThePool(t *testing.T) {
	t.Parallel()
	in := input(ofPool(one) + `, "runtimeConfig": {"ips": ["172.16.11.9/24"]}`)
	in.Args = "IP=172.16.11.9, 172.16.11.9/24"
	got, err := conf.Parse(in)
	must(t, err)
	if d := diff([]netip.Addr{addr("172.16.11.9")}, got.Rails[0].Requested); d != "" {
		t.Errorf("requested (-want +got):\n%s", d)
	}
}

func TestRequestSharesNoMemoryWithTheInput(t *testing.T) {
	t.Parallel()
	in := input(`"ipam": {"type": "dhcp"}, "dns": {"domain": "example"}`)
	before := bytes.Clone(in.Stdin)
	r, err := conf.Parse(in)
	must(t, err)
	clear(in.Stdin)
	if !bytes.Equal(r.IPAM.Raw, before) || r.DNS.Domain != "example" {
		t.Errorf("after the input was overwritten: %q, %q", r.IPAM.Raw, r.DNS.Domain)
	}
}

func TestExamplesAreAccepted(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../conf-examples/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		must(t, err)
		if _, err := conf.Parse(call(string(b))); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
