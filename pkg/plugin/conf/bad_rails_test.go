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

const (
	two    = `"rails": [{"master": "ens1f0"}, {"master": "ens2f0"}]`
	eight  = `"rails": {"match": {"vendors": ["15b3"]}, "count": 8}`
	byRail = `"subnets": [{"subnet": "172.16.{rail+11}.0/24", "gateway": "172.16.{rail+11}.254"}]`
)

// railed returns a call with a configuration that has no master.
func railed(members string) conf.Input {
	return call(`{"cniVersion": "1.1.0", "name": "rails", ` + members + `}`)
}

// rule returns the rule form with more members than it needs.
func rule(members string) string {
	return `"rails": {"match": {"vendors": ["15b3"]}, ` + members + `}`
}

func TestFaultsOfRails(t *testing.T) {
	t.Parallel()
	const forms, nic = `write a list such as [{"master": "ens1f0"}`, `name the NIC`
	for _, b := range []bad{
		{`"rails": "ens1f0"`, cnierr.Decode, `"rails": want a list or an object, got a string`, forms},
		{`"rails": [], ` + ofPool(`"pool": "p"`), cnierr.BadConfig, `"rails": want 1 to 32 rails, got 0`, forms},
		{`"rails": []`, cnierr.BadConfig, `"rails": want 1 to 32 rails, got 0`, forms},
		{`"rails": [` + strings.Repeat(`{"master": "a"},`, 32) + `{"master": "b"}]`, cnierr.BadConfig, `"rails": want 1 to 32 rails, got 33`, forms},
		{two + `, "master": "ens1f0"`, cnierr.BadConfig, `"master": has no effect with rails`, `rails names the NICs`},
		{two + `, "master": {"pci": "0000:0b:00.0"}`, cnierr.BadConfig, `"master": has no effect with rails`, `rails names the NICs`},
		{eight + `, "master": "ens1f0"`, cnierr.BadConfig, `"master": has no effect with rails`, `rails names the NICs`},
		{`"minRails": 1`, cnierr.BadConfig, `"minRails": has no effect without rails`, `remove the key`},
		{two + `, "minRails": 0`, cnierr.BadConfig, `"minRails": 0 is not in 1 to 2`, ``},
		{two + `, "minRails": 3`, cnierr.BadConfig, `"minRails": 3 is not in 1 to 2`, ``},
		{two + `, "mac": "02:00:00:00:00:01"`, cnierr.BadConfig, `"mac": 2 rails cannot have one MAC`, `leave the MAC out`},
		{eight + `, "runtimeConfig": {"mac": "02:00:00:00:00:01"}`, cnierr.BadConfig, `"runtimeConfig.mac": 8 rails cannot have one MAC`, `leave the MAC out`},
		{two + `, "ipam": {"type": "host-local"}`, cnierr.BadConfig, `"ipam.type": "host-local" gives addresses to one interface, not to rails`, `one network for each rail`},
		{`"rails": [{"master": "a", ` + one + `}], "ipam": {"type": "host-local"}`, cnierr.BadConfig, `"ipam.type": "host-local" gives addresses to one interface`, `set ipam.type`},
		{eight + `, "ipam": {"type": "dhcp"}`, cnierr.BadConfig, `"ipam.type": "dhcp" gives addresses to one`, `set ipam.type to "roce-ipam"`},
		{two + `, "ipam": {"type": "roce"}`, cnierr.BadConfig, `"ipam.type": "roce" is not an IPAM plugin`, `set ipam.type`},

		{`"rails": ["ens1f0"]`, cnierr.Decode, `"rails[0]": want an object, got a string`, forms},
		{`"rails": [{}]`, cnierr.BadConfig, `"rails[0].master": missing`, nic},
		{`"rails": [{"master": "a"}, {"master": ""}]`, cnierr.BadConfig, `"rails[1].master": missing`, nic},
		{`"rails": [{"master": null}]`, cnierr.BadConfig, `"rails[0].master": missing`, nic},
		{`"rails": [{"master": {}}]`, cnierr.BadConfig, `"rails[0].master": the selector is empty`, nic},
		{`"rails": [{"master": {"pci": "0b"}}]`, cnierr.BadConfig, `"rails[0].master.pci": "0b" is not a PCI address`, `lspci -D`},
		{`"rails": [{"master": "a"}, {"master": "b"}, {"master": "a"}]`, cnierr.BadConfig, `"rails[2]": it has the same master as rail 0`, `its own NIC`},
		{`"rails": [{"master": {"pci": "0000:0B:00.0"}}, {"master": {"pci": "0000:0b:00.0"}}]`, cnierr.BadConfig, `"rails[1]": it has the same master as rail 0`, `its own NIC`},
		{`"rails": [{"master": "a", "mastr": "b"}]`, cnierr.BadConfig, `"rails[0].mastr": unknown key`, `did you mean "master"?`},
		{`"rails": [{"master": "a", "mtu": 9000}]`, cnierr.BadConfig, `"rails[0].mtu": unknown key`, `next to rails: it applies to all`},
		{`"rails": [{"master": "a", "subnet": "10.0.0.0/24"}]`, cnierr.BadConfig, `"rails[0].subnet": unknown key`, `write "subnets": [{`},
		{`"rails": [{"master": "a", "colour": "red"}]`, cnierr.BadConfig, `"rails[0].colour": unknown key`, `use one of master, ifName, subnets, routing`},
		{`"rails": [{"master": "a", "routing": {"tabel": 7}}]`, cnierr.BadConfig, `"rails[0].routing.tabel": unknown key`, `did you mean "table"?`},
		{`"rails": [{"master": "a", "routing": {"table": 254}}]`, cnierr.BadConfig, `"rails[0].routing.table": 254 is one of the kernel's`, `1 to 252`},
		{`"rails": [{"master": "a", "subnets": [{"subnet": "10.0.0.0/24"}]}]`, cnierr.BadConfig, `"rails[0].subnets": without ipam.type`, `set ipam.type to "roce-ipam"`},
	} {
		_, err := conf.Parse(railed(b.in))
		b.check(t, err)
	}
	in := railed(`"rails": [{"master": "a"}, 5]`)
	in.IfName = "fifteen-letters" // its rails would have names that are too long
	_, err := conf.Parse(in)
	bad{string(in.Stdin), cnierr.Decode, `"rails[1]": want an object, got a number`, forms}.check(t, err)
}

func TestFaultsOfARule(t *testing.T) {
	t.Parallel()
	for _, b := range []bad{
		{`"rails": {"count": 8}`, cnierr.BadConfig, `"rails.match": missing`, `have in common`},
		{`"rails": {"count": 8, "match": {}}`, cnierr.BadConfig, `"rails.match": the selector is empty`, `such as vendors`},
		{`"rails": {"count": 8, "match": {"vendors": ["15b3"], "name": "ens1f0"}}`, cnierr.BadConfig, `"rails.match.name": unknown key`, `"rails": [{"master": "ens1f0"}]`},
		{`"rails": {"count": 8, "match": {"vendors": []}}`, cnierr.BadConfig, `"rails.match.vendors": the list is empty`, `select by the others`},
		{`"rails": {"match": {"vendors": ["15b3"]}}`, cnierr.BadConfig, `"rails.count": missing`, `how many NICs`},
		{rule(`"count": 0`), cnierr.BadConfig, `"rails.count": 0 is not in 1 to 32`, ``},
		{rule(`"count": 33`), cnierr.BadConfig, `"rails.count": 33 is not in 1 to 32`, ``},
		{rule(`"count": 33`) + `, "minRails": 5, ` + ofPool(byRail), cnierr.BadConfig, `"rails.count": 33 is not in`, ``},
		{rule(`"count": 8, "order": "pcie"`), cnierr.BadConfig, `"rails.order": "pcie" is none of pci, rdma`, `did you mean "pci"?`},
		{rule(`"count": 8, "oder": "pci"`), cnierr.BadConfig, `"rails.oder": unknown key`, `did you mean "order"?`},
		{rule(`"count": 8, "subnets": []`), cnierr.BadConfig, `"rails.subnets": unknown key`, `{rail} in ipam.subnets`},
		{rule(`"count": 8, "ifName": ""`), cnierr.BadConfig, `"rails.ifName": the name is empty`, `remove the key`},
		{rule(`"count": 8, "ifName": "rail"`), cnierr.BadConfig, `"rails.ifName": "rail" would be the name of all 8 rails`, `such as "rail{rail}"`},
		{rule(`"count": 8, "ifName": "rail{rail}{"`), cnierr.BadConfig, `"rails.ifName": "rail{rail}{" has a brace`, `write {rail}, {rail+N}`},
		{rule(`"count": 8, "ifName": "rail{n}"`), cnierr.BadConfig, `"rails.ifName": "rail{n}" has a brace outside of a placeholder`, `write {rail}`},
		{rule(`"count": 8, "ifName": "rail{rail*0}"`), cnierr.BadConfig, `"rails.ifName": rail 1: "rail0" is the name of rail 0`, `set ifName`},
		{rule(`"count": 8, "ifName": "a/{rail}"`), cnierr.BadConfig, `"rails.ifName": rail 0: "a/0" has a character`, `set ifName`},
		{rule(`"count": 8, "ifName": "-{rail}"`), cnierr.BadConfig, `"rails.ifName": rail 0: "-0" has a character other than`, `set ifName`},
		{rule(`"count": 12, "ifName": "fourteen-chars{rail}"`), cnierr.BadConfig, `"rails.ifName": rail 10: "fourteen-chars10" has 16 characters, at most 15`, `set ifName`},
		{rule(`"count": 1, "ifName": "lo"`), cnierr.BadConfig, `"rails.ifName": rail 0: "lo" is the loopback interface`, `set ifName`},
		{rule(`"count": 1, "ifName": "all"`), cnierr.BadConfig, `"rails.ifName": rail 0: "all" is reserved`, `set ifName`},
		{`"rails": [{"master": "a", "range": "10.0.0.0/24"}]`, cnierr.BadConfig, `"rails[0].range": unknown key`, `write "subnets": [{"subnet": `},
		{`"rails": [7, {"master": "b", "ifName": "net1"}]`, cnierr.Decode, `"rails[0]": want an object, got a number`, `write a list such as`},
		{`"rails": [{"master": "a", "ifName": "x"}, {"master": "b"}, {"master": "c", "ifName": "x"}]`, cnierr.BadConfig, `"rails[2].ifName": rail 2: "x" is the name of rail 0`, `set ifName`},
		{`"rails": [{"master": "a"}, {"master": "b", "ifName": "net1"}]`, cnierr.BadConfig, `"rails[1].ifName": rail 1: "net1" is the name of rail 0`, `set ifName`},
		{`"rails": [{"master": "a", "ifName": "net1-1"}, {"master": "b"}]`, cnierr.BadConfig, `"rails[1].ifName": rail 1: "net1-1", which follows from CNI_IFNAME "net1", is the name of rail 0`, `set ifName`},
		{`"rails": [{"master": "a", "ifName": "lo"}]`, cnierr.BadConfig, `"rails[0].ifName": rail 0: "lo" is the loopback`, `set ifName`},
		{`"rails": [{"master": "a", "ifName": "r{rail-1}"}]`, cnierr.BadConfig, `"rails[0].ifName": "r{rail-1}" has a brace`, `write {rail}`},
	} {
		_, err := conf.Parse(railed(b.in))
		b.check(t, err)
	}
}

func TestFaultsOfRailsAddresses(t *testing.T) {
	t.Parallel()
	const asHere, same, keep = `write "subnets": [{`, `subnets that do not overlap`, `keep one of the two`
	lists := func(a, b string) string {
		return `"rails": [{"master": "a", "subnets": [` + a + `]}, {"master": "b", "subnets": [` + b + `]}], "ipam": {"type": "roce-ipam"}`
	}
	for _, b := range []bad{
		{eight + `, ` + ofPool(`"pool": "p"`), cnierr.BadConfig, `"ipam.subnets": no subnet`, asHere},
		{`"rails": [{"master": "a"}, {"master": "b", "subnets": [{"subnet": "10.0.0.0/24"}]}], ` + ofPool(`"pool": "p"`), cnierr.BadConfig, `"rails[0].subnets": no subnet`, asHere},
		{lists(`{"subnet": "10.0.0.0/24"}`, ``), cnierr.BadConfig, `"rails[1].subnets": no subnet`, asHere},
		{lists(`{"subnet": "10.0.0.0/24"}`, `{"subnet": "10.0.0.0/16"}`), cnierr.BadConfig, `"rails[1].subnets": 10.0.0.0/16 of rail 1 overlaps 10.0.0.0/24 of rail 0`, same},
		{lists(`{"subnet": "10.0.0.0/24"}`, `{"subnet": "10.0.0.128/25"}`), cnierr.BadConfig, `"rails[1].subnets": 10.0.0.128/25 of rail 1 overlaps 10.0.0.0/24 of rail 0`, same},
		{two + `, ` + ofPool(`"subnets": [{"subnet": "10.0.0.0/{rail+8}"}]`), cnierr.BadConfig, `"ipam.subnets": 10.0.0.0/9 of rail 1 overlaps 10.0.0.0/8 of rail 0`, same},
		{lists(`{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.0.128/25"}`, `{"subnet": "10.0.1.0/24"}`), cnierr.BadConfig, `"rails[0].subnets[1]": 10.0.0.128/25 overlaps 10.0.0.0/24`, keep},
		{eight + `, ` + ofPool(`"subnets": [{"subnet": "172.16.{rail+250}.0/24"}]`), cnierr.BadConfig, `"ipam.subnets[0].subnet": rail 6: "172.16.256.0/24" is not a prefix`, ``},
		{eight + `, ` + ofPool(`"subnets": [{"subnet": "172.16.{rail*16}.0/19"}]`), cnierr.BadConfig, `"ipam.subnets[0].subnet": rail 1: 172.16.16.0/19 has host bits set`, `did you mean "172.16.0.0/19"?`},
		{eight + `, ` + ofPool(`"subnets": [{"subnet": "172.16.{rail}.0/24", "gateway": "172.16.1.254"}]`), cnierr.BadConfig, `"ipam.subnets[0].gateway": rail 0: 172.16.1.254 is not inside 172.16.0.0/24`, `write "onLink": true`},
		{eight + `, ` + ofPool(`"subnets": [{"subnet": "172.16.{rail}.0/24", "ranges": ["172.16.{rail}.{rail+250}-172.16.{rail}.254"]}]`), cnierr.BadConfig, `"ipam.subnets[0].ranges[0]": rail 5: "172.16.5.255-172.16.5.254" is not a range`, `first-last`},
		{eight + `, ` + ofPool(`"subnets": [{"subnet": "172.16.{rail}.0/24", "exclude": ["172.16.1.7"]}]`), cnierr.BadConfig, `"ipam.subnets[0].exclude[0]": rail 0: 172.16.1.7 is not inside`, `write addresses of 172.16.0.0/24, or remove it`},
		{eight + `, ` + ofPool(`"subnets": [{"subnet": "10.0.0.{rail*2}/31", "gateway": "10.0.0.{rail*2}", "exclude": ["10.0.0.99"]}]`), cnierr.BadConfig, `"ipam.subnets[0].exclude[0]": rail 0: 10.0.0.99 is not inside 10.0.0.0/31`, `write addresses of 10.0.0.0/31`},
		{eight + `, ` + ofPool(`"subnets": [{"subnet": "172.16.{rail-1}.0/24"}]`), cnierr.BadConfig, `"ipam.subnets[0].subnet": "172.16.{rail-1}.0/24" has a brace outside of a placeholder`, `write {rail}, {rail+N}`},
		{eight + `, ` + ofPool(`"subnets": [{"subnet": "172.16.{rail+1}.0/24", "gateway": "172.16.{Rail}.1"}]`), cnierr.BadConfig, `"ipam.subnets[0].gateway": "172.16.{Rail}.1" has a brace`, `write {rail}`},
		{eight + `, ` + ofPool(`"subnets": [{"subnet": "172.16.{rail+1234567}.0/24"}]`), cnierr.BadConfig, `"172.16.{rail+1234567}.0/24" has a brace`, `write {rail}`},
		{`"master": "a", ` + ofPool(byRail+`, "pool": "p"`), cnierr.BadConfig, `"ipam.subnets[0].`, `write the number`},
		{`"master": "a", ` + ofPool(`"subnets": [{"subnet": "172.16.{rail}.0/24"}]`), cnierr.BadConfig, `"ipam.subnets[0].subnet": "172.16.{rail}.0/24" has a placeholder, but the configuration has no rails`, `write the number`},
		{`"master": "a", ` + ofPool(`"subnets": [{"subnet": "172.16.0.0/24", "ranges": ["172.16.0.{rail+1}"]}]`), cnierr.BadConfig, `"ipam.subnets[0].ranges[0]": "172.16.0.{rail+1}" has a placeholder`, `write the number`},
		{eight + `, ` + ofPool(byRail+`, "routes": [{"dst": "10.0.0.0/8", "gw": "172.16.19.1"}]`), cnierr.BadConfig, `"ipam.routes[0].gw": 172.16.19.1 is in none`, `ipam.subnets`},
		{eight + `, ` + ofPool(byRail+`, "routes": [{"dst": "10.0.0.0/8", "gw": "172.16.18.255"}]`), cnierr.BadConfig, `172.16.18.255 is the broadcast address of 172.16.18.0/24`, ``},
		{eight + `, ` + ofPool(byRail+`, "routes": [{"dst": "::/0"}]`), cnierr.BadConfig, `"ipam.routes[0].dst": ::/0: no subnet has this address family`, `add a subnet`},
		{eight + `, ` + ofPool(byRail) + `, "runtimeConfig": {"ips": ["172.16.19.1"]}`, cnierr.BadConfig, `"runtimeConfig.ips[0]": 172.16.19.1 is in none`, `ipam.subnets`},
		{eight + `, ` + ofPool(byRail) + `, "runtimeConfig": {"ips": ["172.16.18.254"]}`, cnierr.BadConfig, `172.16.18.254 is the gateway of 172.16.18.0/24`, `another address`},
		{eight + `, ` + ofPool(byRail) + `, "runtimeConfig": {"ips": ["172.16.18.1/16"]}`, cnierr.BadConfig, `172.16.18.1/16: the length of 172.16.18.0/24 is 24`, `without length`},
		{eight + `, ` + ofPool(byRail) + `, "runtimeConfig": {"ips": ["172.16.18.1", "172.16.18.2"]}`, cnierr.BadConfig, `"runtimeConfig.ips[1]": 172.16.18.2: each rail in 172.16.18.0/24 already has another`, `one address of each subnet and rail`},
		{two + `, ` + ofPool(one) + `, "args": {"cni": {"ips": ["172.16.11.1", "172.16.11.2", "172.16.11.3"]}}`, cnierr.BadConfig, `"args.cni.ips[2]": 172.16.11.3: each rail in`, `each subnet and rail`},
		{eight + `, ` + ofPool(`"subnets": [{"subnet": "10.0.0.0/24", "gateway": "10.0.0.{rail+1}"}]`) + `, "runtimeConfig": {"ips": ["10.0.0.3"]}`, cnierr.BadConfig, `10.0.0.3 is a gateway of 10.0.0.0/24`, `another address`},
		{eight + `, "mtu": 1000, ` + ofPool(`"subnets": [{"subnet": "fd00:{rail}::/64"}]`), cnierr.BadConfig, `"mtu": 1000 is less than 1280`, ``},
	} {
		_, err := conf.Parse(railed(b.in))
		if strings.Contains(b.in, `"master": "a", `+ofPool(byRail+`, "pool": "p"`)) {
			want := []string{"ipam.subnets[0].subnet", "ipam.subnets[0].gateway"}
			if d := cmp.Diff(want, subjects(t, err)); d != "" {
				t.Errorf("%s (-want +got):\n%s", b.in, d)
			}
			continue
		}
		b.check(t, err)
	}
}

func TestFaultsOfAddressesThatFollowFromElsewhere(t *testing.T) {
	t.Parallel()
	const keep, which = `keep one of the two`, `"first", "last" or "none"`
	const from = `"fromMaster": true, "gateway": "last"`
	for _, b := range []bad{
		{`"fromMaster": true`, cnierr.BadConfig, `"ipam.gateway": missing`, which},
		{`"fromMaster": true, "gateway": ""`, cnierr.BadConfig, `"ipam.gateway": missing`, which},
		{`"fromMaster": true, "gateway": "lst"`, cnierr.BadConfig, `"ipam.gateway": "lst" is none of none, first, last`, `did you mean "last"?`},
		{`"fromMaster": "yes", "gateway": "last"`, cnierr.Decode, `"ipam.fromMaster": want true or false`, `without quotes`},
		{`"derive": {"base": 1, "perHost": 1}, ` + one, cnierr.BadConfig, `"ipam.derive": has no effect without fromMaster`, `"fromMaster": true`},
		{`"fromMaster": false, "gateway": "last", ` + one, cnierr.BadConfig, `"ipam.gateway": has no effect without fromMaster`, `"fromMaster": true`},
		{`"fromMaster": false`, cnierr.BadConfig, `"ipam.subnets": no subnet`, `write "subnets"`},
		{from + `, ` + one, cnierr.BadConfig, `"ipam.subnets": ipam.fromMaster already defines the subnets`, keep},
		{from + `, "table": true`, cnierr.BadConfig, `"ipam.fromMaster": ipam.table already defines the subnets`, keep},
		{`"table": true, ` + one, cnierr.BadConfig, `"ipam.subnets": ipam.table already defines the`, keep},
		{`"table": "/etc/roce/rails.json"`, cnierr.BadConfig, `"ipam.table": the path of the table is a setting of the node`, `"table": true; the key "table" of /etc/roce/node.json`},
		{from + `, "derive": {"base": 64}`, cnierr.BadConfig, `"ipam.derive.perHost": missing`, ``},
		{from + `, "derive": {"perHost": 8}`, cnierr.BadConfig, `"ipam.derive.base": missing`, ``},
		{from + `, "derive": {"base": 0, "perHost": 8}`, cnierr.BadConfig, `"ipam.derive.base": 0 is not in 1 to`, ``},
		{from + `, "derive": {"base": 64, "perHost": 0}`, cnierr.BadConfig, `"ipam.derive.perHost": 0 is not in 1 to 65536`, ``},
		{from + `, "derive": {"base": 64, "perHost": 65537}`, cnierr.BadConfig, `"ipam.derive.perHost": 65537 is not in`, ``},
		{from + `, "derive": {"base": 64, "perHost": 8, "perhost": 9}`, cnierr.BadConfig, `"ipam.derive.perhost": unknown key`, `did you mean "perHost"?`},
		{from + `, "routes": [{"dst": "0.0.0.0/0", "gw": "fd00::1"}]`, cnierr.BadConfig, `fd00::1 is not of the family`, ``},
	} {
		for _, nics := range []string{`"master": "ens1f0"`, two, eight} {
			_, err := conf.Parse(railed(nics + `, ` + ofPool(b.in)))
			if strings.Contains(b.msg, "no subnet") && nics == two {
				continue // its rails are named
			}
			b.check(t, err)
		}
	}
	for _, b := range []bad{
		{`"rails": [{"master": "a", "subnets": [{"subnet": "10.0.0.0/24"}]}], ` + ofPool(from), cnierr.BadConfig, `"rails[0].subnets": ipam.fromMaster already defines the subnets`, keep},
		{`"rails": [{"master": "a", "subnets": []}], ` + ofPool(`"table": true`), cnierr.BadConfig, `"rails[0].subnets": ipam.table already defines the subnets`, keep},
		{`"master": "a", "routing": {"defaultRoute": true}, ` + ofPool(`"fromMaster": true, "gateway": "none"`), cnierr.BadConfig, `"routing.defaultRoute": no subnet has a gateway`, `gateway`},
	} {
		_, err := conf.Parse(railed(b.in))
		b.check(t, err)
	}
}

func TestRailsWithoutAMasterAreNotAlike(t *testing.T) {
	t.Parallel()
	_, err := conf.Parse(railed(`"rails": [{}, {}]`))
	if d := cmp.Diff([]string{"rails[0].master", "rails[1].master"}, subjects(t, err)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestFaultsOfRailsRouting(t *testing.T) {
	t.Parallel()
	const alone, others = `for one rail only`, `choose other numbers`
	lists := func(a, b, members string) string {
		return `"rails": [{"master": "a", "subnets": [{"subnet": "10.0.0.0/24", "gateway": "10.0.0.1"}]` + a +
			`}, {"master": "b", "subnets": [{"subnet": "10.0.1.0/24"}]` + b + `}], "ipam": {"type": "roce-ipam"}` + members
	}
	for _, b := range []bad{
		{eight + `, "routing": {"defaultRoute": true}, ` + ofPool(byRail), cnierr.BadConfig, `"routing.defaultRoute": rail 0 and rail 1 cannot both have the pod's default route`, alone},
		{two + `, "routing": {"defaultRoute": true}`, cnierr.BadConfig, `"routing.defaultRoute": rail 0 and rail 1`, alone},
		{`"rails": [{"master": "a", "routing": {"defaultRoute": true, "metric": 7}}, {"master": "b", "routing": {"defaultRoute": true, "metric": 7}}], ` + ofPool(byRail), cnierr.BadConfig, `"rails[1].routing.defaultRoute": rail 0 and rail 1`, alone},
		{lists(``, `, "routing": {"defaultRoute": true}`, ``), cnierr.BadConfig, `"rails[1].routing.defaultRoute": no subnet has a gateway`, `ipam.subnets[].gateway`},
		{lists(`, "routing": {"defaultRoute": true, "mode": "none"}`, ``, ``), cnierr.BadConfig, `"rails[0].routing.defaultRoute": the mode none`, `policy or main`},
		{`"rails": [{"master": "a"}, {"master": "b", "routing": {"defaultRoute": true}}, {"master": "c", "routing": {"defaultRoute": true}}], ` + ofPool(byRail), cnierr.BadConfig, `"rails[2].routing.defaultRoute": rail 1 and rail 2 cannot both have the pod's default route`, alone},
		{eight + `, "routing": {"table": 250}, ` + ofPool(byRail), cnierr.BadConfig, `"routing.table": rail 3 needs the tables 253 to 253`, `1 to 252`},
		{two + `, "routing": {"table": 252}`, cnierr.BadConfig, `"routing.table": rail 1 needs the tables 253`, `1 to 252`},
		{two + `, "routing": {"table": 254}`, cnierr.BadConfig, `"routing.table": 254 is one of the kernel's tables`, `1 to 252`},
		{two + `, "routing": {"table": 250}, ` + ofPool(`"subnets": [{"subnet": "10.0.{rail}.0/24"}, {"subnet": "10.1.{rail}.0/24"}]`), cnierr.BadConfig, `"routing.table": rail 1 needs the tables 252 to 253`, `1 to 252`},
		{two + `, "routing": {"table": 250}, ` + ofPool(`"subnets": [{"subnet": "2001:db8:{rail}::/64"}, {"subnet": "2001:db8:1{rail}::/64"}]`), cnierr.BadConfig, `"routing.table": rail 1 needs the tables 252 to 253`, `1 to 252`},
		{two + `, "routing": {"table": 2147483647}`, cnierr.BadConfig, `"routing.table": rail 1 needs the tables 2147483648`, `1 to 252`},
		{lists(`, "routing": {"table": 100}`, `, "routing": {"table": 100}`, ``), cnierr.BadConfig, `"rails[1].routing.table": rail 0 and rail 1 would both use table 100`, others},
		{`"rails": [{"master": "a"}, {"master": "b", "routing": {"table": 100}}, {"master": "c", "routing": {"table": 101}}], ` + ofPool(`"subnets": [{"subnet": "10.0.{rail}.0/24"}, {"subnet": "10.1.{rail}.0/24"}]`), cnierr.BadConfig, `"rails[2].routing.table": rail 1 and rail 2 would both use table 101`, others},
		{lists(`, "routing": {"table": 101}`, ``, `, "routing": {"table": 100}`), cnierr.BadConfig, `"routing.table": rail 0 and rail 1 would both use table 101`, others},
		{lists(``, `, "routing": {"table": 254}`, ``), cnierr.BadConfig, `"rails[1].routing.table": 254 is one of the kernel's tables`, `1 to 252`},
	} {
		_, err := conf.Parse(railed(b.in))
		b.check(t, err)
	}
}

func TestFaultsOfRailsThatFollowFromTheCall(t *testing.T) {
	t.Parallel()
	in := railed(eight)
	in.IfName = "fourteen-chars"
	_, err := conf.Parse(in)
	bad{eight, cnierr.BadConfig, `"rails.ifName": rail 1: "fourteen-chars-1", which follows from CNI_IFNAME "fourteen-chars", has 16 characters, at most 15 are possible`, `shorter interface name`}.check(t, err)

	in = railed(two)
	in.Args = "MAC=02:00:00:00:00:01"
	_, err = conf.Parse(in)
	bad{two, cnierr.BadConfig, `"CNI_ARGS MAC": 2 rails cannot have one MAC`, `leave the MAC out`}.check(t, err)

	in = railed(eight)
	in.IfName = "a/b"
	_, err = conf.Parse(in)
	bad{eight, cnierr.BadEnv, `"CNI_IFNAME": "a/b" has a character`, ``}.check(t, err)

	for members, place := range map[string]string{
		`"fromMaster": true, "gateway": "none"`: "ipam.fromMaster", `"table": true`: "ipam.table",
	} {
		_, err = conf.ParseIPAM(railed(eight + `, ` + ofPool(members)))
		bad{members, cnierr.BadConfig, `"` + place + `": roce knows the NIC`, `write ipam.subnets`}.check(t, err)
	}
	_, err = conf.ParseIPAM(railed(eight + `, ` + ofPool(`"subnets": [{"subnet": "172.16.{rail}.0/24"}]`)))
	bad{byRail, cnierr.BadConfig, `"172.16.{rail}.0/24" has a placeholder, but the configuration has no rails`, `write the number`}.check(t, err)
}

func TestAllFaultsOfRailsAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := conf.Parse(railed(`"rails": [{"master": "a", "ifName": "x/y"}, {"master": "a", "mtu": 1}, {"master": {"pci": "x"}, "routing": {"table": "y"}, "subnets": [{"subnet": "z"}]}],
		"minRails": 4, "master": "b", "mac": "02:00:00:00:00:01", ` + ofPool(`"subnets": [{"subnet": "172.16.{rail}.1/24", "gateway": "172.16.{rail-1}.2"}], "derive": {}`)))
	want := []string{
		"rails[1].mtu", "rails[1]", "rails[2].master.pci", "rails[2].routing.table", "master", "minRails", "mac",
		"ipam.derive", "ipam.subnets[0].gateway", "ipam.subnets[0].subnet", "rails[2].subnets[0].subnet", "rails[0].ifName",
	}
	if d := cmp.Diff(want, subjects(t, err)); d != "" {
		t.Errorf("(-want +got):\n%s\n%v", d, err)
	}
}
