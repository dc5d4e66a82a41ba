// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package settings

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

const limited = `{"version": 1, "namespaces": {
	"*": {"masters": {"ifNames": ["enp*"], "vendors": ["15b3"]}, "modes": ["bridge", "private"], "ipamTypes": ["roce-ipam"],
		"pools": ["shared-*"], "railPools": ["compute"], "requestAddresses": false, "requestMAC": false, "hostLink": false,
		"sysctl": ["net.ipv4.conf.IFNAME.arp_filter"], "probe": "required", "bcqueuelen": 1000, "vlans": [120, "200-299"]},
	"nothing": {"ipamTypes": [], "pools": [], "railPools": [], "modes": [], "sysctl": []},
	"infra": {"hostLink": true}}}`

func nodeOf(t *testing.T, document string) Node {
	t.Helper()
	p, err := Parse("/etc/roce/node.json", []byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// allowed is what all namespaces of limited but one may have.
func allowed() conf.Request {
	return conf.Request{
		Attachment: conf.Attachment{ContainerID: "c1"}, Mode: conf.Bridge, Pod: conf.Pod{Namespace: "team-a"}, BCQueueLen: 1000,
		IPAM:   conf.IPAM{Type: conf.PoolType, Pool: "shared-1"},
		Sysctl: []conf.Sysctl{{Tree: "ipv4/conf", Key: "arp_filter", Value: "1"}},
		Probe:  conf.Probe{Conflict: conf.Conflict{Mode: conf.Require}, Gateway: conf.Gateway{Mode: conf.Require}},
	}
}

func TestEachKeyLimitsANamespace(t *testing.T) {
	t.Parallel()
	p := nodeOf(t, limited)
	if err := p.Request(allowed()); err != nil {
		t.Errorf("what is allowed: %v", err)
	}
	ipam := allowed() // a request of roce-ipam has no probe
	ipam.Probe = conf.Probe{}
	if err := p.Request(ipam); err != nil {
		t.Errorf("without probe: %v", err)
	}
	asked := []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	for key, change := range map[string]func(r *conf.Request){
		`"mode": "l2" is not in modes`:                               func(r *conf.Request) { r.Mode = conf.L2 },
		`"mode": "passthru" is not in modes`:                         func(r *conf.Request) { r.Mode = conf.Passthru },
		`"ipam.type": "dhcp" is not in ipamTypes`:                    func(r *conf.Request) { r.IPAM = conf.IPAM{Type: "dhcp"} },
		`"ipam.pool": "team-b" is not in pools`:                      func(r *conf.Request) { r.IPAM.Pool = "team-b" },
		`"ipam.railPool": "compute-2" is not in railPools`:           func(r *conf.Request) { r.IPAM.RailPool = &pool.RailPool{Name: "compute-2"} },
		`"ipam.pool": "my-shared-1" is not in pools`:                 func(r *conf.Request) { r.IPAM.Pool = "my-shared-1" },
		`"ipam.railPool": "storage" is not in railPools`:             func(r *conf.Request) { r.IPAM.RailPool = &pool.RailPool{Name: "storage"} },
		`"sysctl": "net.ipv6.neigh.IFNAME.retrans" is not in sysctl`: func(r *conf.Request) { r.Sysctl = []conf.Sysctl{{Tree: "ipv6/neigh", Key: "retrans"}} },
		`"hostLink": hostLink is false`:                              func(r *conf.Request) { r.HostLink = &conf.HostLink{} },
		`"mac": requestMAC is false`:                                 func(r *conf.Request) { r.MAC = conf.MAC{2} },
		`"requested address": requestAddresses is false`:             func(r *conf.Request) { r.IPAM.Requested = asked },
		`"bcqueuelen": 1001 is more than bcqueuelen`:                 func(r *conf.Request) { r.BCQueueLen = 1001 },
		`"probe.conflict.mode": "warn" is not in probe`:              func(r *conf.Request) { r.Probe.Conflict.Mode = conf.Warn },
		`"probe.gateway.mode": "off" is not in probe`:                func(r *conf.Request) { r.Probe.Gateway.Mode = conf.Off },
	} {
		r := allowed()
		change(&r)
		err := p.Request(r)
		if cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), `namespace "team-a"`) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", key, err)
		}
		r.Pod.Namespace = "infra"
		if err := p.Request(r); err != nil {
			t.Errorf("%s in a namespace without limits: %v", key, err)
		}
		r.ContainerID = ""
		r.Pod.Namespace = ""
		if err := p.Request(r); err != nil {
			t.Errorf("%s: STATUS: %v", key, err)
		}
	}
}

// TestHintsNameTheEntryThatLimits: an entry of its own would free the namespace of all
// other limits of "*", and a pod outside of Kubernetes has no namespace.
func TestHintsNameTheEntryThatLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ document, namespace, want string }{
		{limited, "team-a", "namespaces.*.modes"},
		{limited, "", "namespaces.*.modes"},
		{limited, "nothing", "namespaces.nothing.modes"},
		{`{"version": 1}`, "team-a", "namespaces.team-a.vlans"},
		{`{"version": 1}`, "", "namespaces.*.vlans"},
	} {
		r := allowed()
		r.Mode, r.VLAN, r.Pod.Namespace = conf.Passthru, 77, c.namespace
		if got := cnierr.CNI("roce", nodeOf(t, c.document).Request(r)); got == nil || !strings.Contains(got.Details, c.want) {
			t.Errorf("%s, namespace %q: got %v, want %s", c.document, c.namespace, got, c.want)
		}
	}
}

func TestSTATUSFailsForWhatNoNamespaceMayHave(t *testing.T) {
	t.Parallel()
	r := conf.Request{Mode: conf.VEPA}
	err := nodeOf(t, `{"version": 1, "namespaces": {"*": {"modes": ["bridge"]}, "infra": {"modes": ["l2"]}}}`).Request(r)
	if err == nil || !strings.Contains(err.Error(), `"mode": "vepa" is not in modes of namespace "*": bridge`) {
		t.Error(err)
	}
}

func TestAnEmptyListAllowsNothing(t *testing.T) {
	t.Parallel()
	r := allowed()
	r.Pod.Namespace = "nothing"
	err := nodeOf(t, limited).Request(r)
	for _, key := range []string{"mode", "ipam.type", "ipam.pool", "sysctl"} {
		if err == nil || !strings.Contains(err.Error(), `"`+key+`": `) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestMastersOfANamespace(t *testing.T) {
	t.Parallel()
	p := nodeOf(t, strings.Replace(limited, `"infra":`, `"names": {"masters": {"ifNames": ["enp*"]}}, "vendors": {"masters": {"vendors": ["15b3"]}}, "none": {"masters": {"vendors": []}}, "infra":`, 1))
	for _, c := range []struct {
		namespace string
		nic       conf.LinkName
		vendors   []string
		ok        bool
	}{
		{"team-a", "enp1s0", []string{"15b3"}, true},
		{"team-a", "enp1s0", []string{"15b3", "15b3"}, true}, // a bond
		{"team-a", "enp1s0", []string{"15b3", "8086"}, false},
		{"team-a", "enp1s0", nil, false},
		{"team-a", "eth0", []string{"15b3"}, false},
		{"infra", "eth0", nil, true},
		{"names", "enp1s0", []string{"8086"}, true},
		{"names", "enp1s0", nil, true},
		{"names", "eth0", []string{"15b3"}, false},
		{"vendors", "eth0", []string{"15b3"}, true},
		{"vendors", "eth0", []string{"8086"}, false},
		{"none", "eth0", []string{"15b3"}, false},
		{"none", "eth0", nil, false},
	} {
		if err := p.Master(c.namespace, c.nic, c.vendors); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestFaultsOfLimits(t *testing.T) {
	t.Parallel()
	_, err := Parse("/etc/roce/node.json", []byte(`{"version": 1, "namespaces": {"a": {"pool": [], "modes": ["x"], "pools": ["[", ""], "probe": "off",
		"bcqueuelen": -1, "vlans": [0, "9-8", "1-4095", 1.5, "x", true, {}], "masters": {"vendor": 1}, "requestMAC": "no"}, "b": 5}}`))
	for _, text := range []string{
		`"namespaces.a.pool": unknown key`, `"namespaces.a.modes[0]": "x"`, `"namespaces.a.pools[0]": "["`, `"namespaces.a.pools[1]": ""`, `"namespaces.a.probe": "off"`,
		`"namespaces.a.vlans[0]": 0 is neither`, `"namespaces.a.vlans[1]": "9-8"`, `"namespaces.a.vlans[2]": "1-4095"`, `"namespaces.a.vlans[3]": 1.5`,
		`"namespaces.a.vlans[4]": "x"`, `"namespaces.a.vlans[5]": true`, `"namespaces.a.vlans[6]": {}`,
		`"namespaces.a.bcqueuelen": -1`, `"namespaces.a.masters.vendor": unknown key`, `"namespaces.a.requestMAC": want true or false`, `"namespaces.b": want an object`,
	} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("want %s: %v", text, err)
		}
	}
}

// What is true, and what a request is not about, is no limit.
func TestWhatIsTrueLimitsNothing(t *testing.T) {
	t.Parallel()
	r := allowed()
	r.MAC, r.IPAM.Requested, r.HostLink = conf.MAC{2}, []netip.Addr{netip.MustParseAddr("10.0.0.1")}, &conf.HostLink{}
	for _, yes := range []bool{true, false} {
		n := nodeOf(t, fmt.Sprintf(`{"version": 1, "namespaces": {"*": {"requestAddresses": %[1]t, "requestMAC": %[1]t, "hostLink": %[1]t}}}`, yes))
		err := n.Request(r)
		if (err == nil) != yes || err != nil && len(cnierr.Each(err.(*cnierr.Error).Err)) != 3 { //nolint:errorlint // the joined faults
			t.Errorf("%t: %v", yes, err)
		}
	}
	r = allowed()
	r.Mode, r.Prev = conf.L2, &conf.Prev{} // another plugin has made the interface
	if err := nodeOf(t, limited).Request(r); err != nil {
		t.Errorf("the mode of an interface that is adopted: %v", err)
	}
	if _, err := Parse("/n", []byte(`{"version": 1, "namespaces": {"*": {"pools": [5]}}}`)); err == nil || strings.Contains(err.Error(), "neither a name") {
		t.Errorf("one fault of one text: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(limited))
	f.Add([]byte(`{"version": 1, "stateDir": "/run/roce", "log": {"file": "/x"}, "ipamPaths": ["/y"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse("/etc/roce/node.json", b)
		if err == nil {
			_ = p.Request(allowed())
			_ = p.Master("team-a", "enp1s0", nil)
		}
		for _, path := range append(p.IPAMPaths, p.StateDir, p.Log.File, p.Table) {
			if path == "/" || path != "" && !strings.HasPrefix(path, "/") {
				t.Errorf("%q is a path", path)
			}
		}
	})
}

func TestALinkToTheNodeNeedsAddressesOfAnAdministrator(t *testing.T) {
	t.Parallel()
	own, pooled := conf.IPAM{Type: conf.PoolType, Pool: "mine"}, conf.IPAM{Type: conf.PoolType, RailPool: &pool.RailPool{Name: "compute"}}
	for _, c := range []struct {
		name, limits string
		ipam         conf.IPAM
		want         bool
	}{
		{"own addresses", `{}`, own, false},
		{"addresses of another plugin", `{}`, conf.IPAM{Type: "static"}, false},
		{"addresses of a RailPool", `{}`, pooled, true},
		{"own addresses, allowed", `{"hostLink": true}`, own, true},
		{"addresses of a RailPool, forbidden", `{"hostLink": false}`, pooled, false},
	} {
		p := nodeOf(t, `{"version": 1, "namespaces": {"*": `+c.limits+`}}`)
		r := allowed()
		r.IPAM, r.HostLink = c.ipam, &conf.HostLink{}
		if err := p.Request(r); (err == nil) != c.want {
			t.Errorf("%s: got %v, want it allowed: %v", c.name, err, c.want)
		}
		r.HostLink = nil
		if err := p.Request(r); err != nil {
			t.Errorf("%s, without hostLink: %v", c.name, err)
		}
	}
}

func TestTheCredentialsOfTheNodeMustBeAllowed(t *testing.T) {
	t.Parallel()
	for route, leads := range map[string]bool{
		"169.254.169.254/32": true, "169.254.0.0/16": true, "169.254.169.0/24": true, "168.0.0.0/5": true, "fd00:ec2::254/128": true, "fd00::/16": true,
		"fd20:ce::254/128": true, "100.100.100.200/32": true, "100.64.0.0/10": true, "168.63.129.16/32": true, "169.254.0.23/32": true,
		"169.254.25.10/32": false, "10.96.0.0/12": false, "fd00:96::/108": false,
	} {
		for _, yes := range []bool{false, true} {
			p := nodeOf(t, fmt.Sprintf(`{"version": 1, "namespaces": {"*": {"hostLink": true, "metadata": %t}}}`, yes))
			r := allowed()
			r.HostLink = &conf.HostLink{Routes: []netip.Prefix{netip.MustParsePrefix(route)}}
			if err := p.Request(r); (err == nil) != (yes || !leads) {
				t.Errorf("%s, metadata %t: %v", route, yes, err)
			}
		}
	}
}

func TestVLANsMustBeAllowed(t *testing.T) {
	t.Parallel()
	other := allowed()
	other.VLAN = 300
	if err := nodeOf(t, limited).Request(other); err == nil || !strings.Contains(err.Error(), `"vlan": "300" is not in vlans of namespace "team-a": 120, 200-299`) {
		t.Errorf("got %v, want the VLANs that are allowed", err)
	}
	for _, id := range []int{1, conf.MaxVLAN} {
		r := allowed()
		r.VLAN = id
		if err := nodeOf(t, fmt.Sprintf(`{"version": 1, "namespaces": {"*": {"vlans": [%d]}}}`, id)).Request(r); err != nil {
			t.Errorf("VLAN %d: %v", id, err)
		}
	}
	for id, want := range map[int]bool{0: true, 119: false, 120: true, 121: false, 199: false, 200: true, 250: true, 299: true, 300: false} {
		r := allowed()
		r.VLAN = id
		if err := nodeOf(t, limited).Request(r); (err == nil) != want {
			t.Errorf("VLAN %d: %v", id, err)
		}
		for _, without := range []string{`{"version": 1}`, `{"version": 1, "namespaces": {"*": {"vlans": []}}}`, `{"version": 1, "namespaces": {"*": {}}}`} {
			err := nodeOf(t, without).Request(r)
			if (err == nil) != (id == 0) || err != nil && !strings.HasSuffix(err.Error(), `is not in vlans of namespace "team-a": none`) {
				t.Errorf("VLAN %d with %s: %v", id, without, err)
			}
		}
	}
}
