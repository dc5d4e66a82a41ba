// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

func TestFaultsOfThePool(t *testing.T) {
	t.Parallel()
	const asHere = `write "subnets": [{"subnet": `
	for _, b := range []bad{
		{`"ipam": {"type": "../evil"}`, cnierr.BadConfig, `"ipam.type": "../evil" is not the name of a plugin`, ``},
		{`"ipam": {"type": "roce"}`, cnierr.BadConfig, `"ipam.type": "roce" is not an IPAM plugin`, `set ipam.type to "roce-ipam"`},
		{`"ipam": {"type": "dhcp\n"}`, cnierr.BadConfig, `"ipam.type": "dhcp\n" is not`, ``},
		{`"ipam": {"subnets": [{"subnet": "10.0.0.0/24"}]}`, cnierr.BadConfig, `"ipam.type": missing`, `set ipam.type to "roce-ipam"`},
		{`"ipam": {"typ": "roce-ipam"}`, cnierr.BadConfig, `"ipam.type": missing`, `"typ": did you mean "type"?`},
		{`"ipam": {"Type": "host-local"}`, cnierr.BadConfig, `"ipam.type": missing`, `"Type": did you mean "type"?`},
		{`"ipam": {"range": "10.0.0.0/24"}`, cnierr.BadConfig, `"ipam.type": missing`, `set ipam.type to "roce-ipam"`},
		{`"ipam": {"type": "", "subnets": []}`, cnierr.BadConfig, `"ipam.type": missing`, `set ipam.type to "roce-ipam"`},
		{`"ipam": {"type": "roce-ipam"}`, cnierr.BadConfig, `"ipam.subnets": no subnet`, asHere},
		{ofPool(`"subnets": []`), cnierr.BadConfig, `"ipam.subnets": no subnet`, asHere},
		{ofPool(`"pool": "a/b", ` + one), cnierr.BadConfig, `"ipam.pool": "a/b" is not the name of a pool`, `1 to 63 letters`},
		{ofPool(`"pool": 7, ` + one), cnierr.Decode, `"ipam.pool": want a string, got a number`, ``},
		{ofPool(`"pool": "", ` + one), cnierr.BadConfig, `"ipam.pool": "" is not`, `1 to 63 letters`},
		{ofPool(`"pool": "..", ` + one), cnierr.BadConfig, `"ipam.pool": ".." is not`, `1 to 63 letters`},
		{ofPool(`"pool": ".", ` + one), cnierr.BadConfig, `"ipam.pool": "." is not`, `1 to 63 letters`},
		{ofPool(`"pool": "` + strings.Repeat("p", 64) + `", ` + one), cnierr.BadConfig, `"ipam.pool": "ppp`, `1 to 63 letters`},
		{ofPool(`"quarantine": "-1s", ` + one), cnierr.BadConfig, `"ipam.quarantine": -1s is not in 0s to 24h0m0s`, ``},
		{ofPool(`"quarantine": "25h", ` + one), cnierr.BadConfig, `"ipam.quarantine": 25h is not in`, ``},
		{ofPool(`"quarantine": "two minutes", ` + one), cnierr.BadConfig, `"ipam.quarantine": "two minutes" is not a time`, `such as "2m0s"`},
		{ofPool(`"quarantin": "1s", ` + one), cnierr.BadConfig, `"ipam.quarantin": unknown key`, `did you mean "quarantine"?`},
		{ofPool(`"gateway": "10.0.0.1", ` + one), cnierr.BadConfig, `"ipam.gateway": has no effect without fromMaster`, asHere},
		{ofPool(`"rangeStart": "10.0.0.1", ` + one), cnierr.BadConfig, `"ipam.rangeStart": unknown key`, asHere},
		{ofPool(`"addresses": [], ` + one), cnierr.BadConfig, `"ipam.addresses": unknown key`, `"capabilities": {"ips": true}`},
		{ofPool(`"stateDir": "/x", ` + one), cnierr.BadConfig, `"ipam.stateDir": unknown key`, `the key stateDir of /etc/roce/node.json`},
		{ofPool(`"dataDir": "/x", ` + one), cnierr.BadConfig, `"ipam.dataDir": unknown key`, `stateDir`},
		{ofPool(`"resolvConf": "/x", ` + one), cnierr.BadConfig, `"ipam.resolvConf": unknown key`, `top-level key dns`},
	} {
		_, err := conf.Parse(input(b.in))
		b.check(t, err)
	}
}

func TestFaultOfANetworkNameThatIsTooLongForAPool(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 64)
	_, err := conf.Parse(call(`{"cniVersion": "1.1.0", "name": "` + long + `", ` + ofPool(one) + `}`))
	bad{long, cnierr.BadConfig, `"name": 64 characters, at most 63`, `set ipam.pool`}.check(t, err)
	for _, c := range []string{`"name": "` + long + `", ` + ofPool(`"pool": "p", `+one), `"name": "` + long[1:] + `", ` + ofPool(one)} {
		if _, err := conf.Parse(call(`{"cniVersion": "1.1.0", ` + c + `}`)); err != nil {
			t.Errorf("%s: %v", c, err)
		}
	}
}

func TestFaultsOfASubnet(t *testing.T) {
	t.Parallel()
	const net = `"subnet": "172.16.11.0/24"`
	for _, b := range []bad{
		{`"gateway": "10.0.0.1"`, cnierr.BadConfig, `"ipam.subnets[0].subnet": missing`, ``},
		{`"subnet": "172.16.11.7/24", "ranges": ["172.16.11.9"]`, cnierr.BadConfig, `172.16.11.7/24 has host bits set`, `did you mean "172.16.11.0/24"?`},
		{`"subnet": "0.0.0.0/0"`, cnierr.BadConfig, `"ipam.subnets[0].subnet": 0.0.0.0/0 has`, `ordinary unicast`},
		{`"subnet": "0.1.0.0/16"`, cnierr.BadConfig, `0.1.0.0/16 has`, `ordinary unicast`},
		{`"subnet": "127.1.0.0/16"`, cnierr.BadConfig, `a loopback address`, `ordinary unicast`},
		{`"subnet": "169.254.7.0/24"`, cnierr.BadConfig, `link-local`, `ordinary unicast`},
		{`"subnet": "224.0.1.0/24"`, cnierr.BadConfig, `a multicast address`, `ordinary unicast`},
		{`"subnet": "255.255.255.0/24"`, cnierr.BadConfig, `the limited broadcast address`, `ordinary unicast`},
		{`"subnet": "::/64"`, cnierr.BadConfig, `the unspecified address`, `ordinary unicast`},
		{`"subnet": "::fffe:0:0/95"`, cnierr.BadConfig, `IPv4-mapped`, `ordinary unicast`},
		{`"subnet": "fe80::/64"`, cnierr.BadConfig, `link-local`, `ordinary unicast`},
		{`"subnet": "ff02::/64"`, cnierr.BadConfig, `a multicast address`, `ordinary unicast`},
		{net + `, "rangeStart": "172.16.11.9"`, cnierr.BadConfig, `"ipam.subnets[0].rangeStart": unknown key`, `write "ranges": ["`},
		{net + `, "gatewy": "172.16.11.9"`, cnierr.BadConfig, `"ipam.subnets[0].gatewy": unknown key`, `did you mean "gateway"?`},
		{net + `, "gateway": "172.16.12.254"`, cnierr.BadConfig, `"ipam.subnets[0].gateway": 172.16.12.254 is not inside 172.16.11.0/24`, `write "onLink": true`},
		{net + `, "gateway": "fd00::1"`, cnierr.BadConfig, `fd00::1 is not of the family of 172.16.11.0/24`, `subnet's family`},
		{net + `, "gateway": "224.0.0.1", "onLink": true`, cnierr.BadConfig, `224.0.0.1 is in 224.0.0.0-239.255.255.255, a multicast address`, `the address of the router`},
		{net + `, "onLink": true`, cnierr.BadConfig, `"ipam.subnets[0].onLink": has no effect without gateway`, `write the gateway too`},
		{net + `, "gateway": "172.16.11.0"`, cnierr.BadConfig, `172.16.11.0 is the network address of 172.16.11.0/24`, ``},
		{net + `, "gateway": "172.16.11.255"`, cnierr.BadConfig, `172.16.11.255 is the broadcast address`, ``},
		{`"subnet": "fd00::/64", "gateway": "fd00::"`, cnierr.BadConfig, `fd00:: is the subnet-router anycast address`, ``},
		{`"subnet": "fd00::/64", "gateway": "fd00::1%eth0"`, cnierr.BadConfig, `has a zone`, `without zone`},
		{net + `, "gateway": "172.16.11.254/24"`, cnierr.BadConfig, `"172.16.11.254/24" is not an address`, ``},
		{net + `, "ranges": [ ]`, cnierr.BadConfig, `"ipam.subnets[0].ranges": the list is empty`, `remove the key`},
		{net + `, "ranges": [{"rangeStart": "172.16.11.1"}]`, cnierr.Decode, `"ipam.subnets[0].ranges[0]": want a string, got an object`, `write a range as a string`},
		{net + `, "ranges": ["172.16.11.1-"]`, cnierr.BadConfig, `"172.16.11.1-" is not a range`, `first-last`},
		{net + `, "ranges": ["172.16.11.9-172.16.11.1"]`, cnierr.BadConfig, `ends before it starts`, `first-last`},
		{net + `, "ranges": ["172.16.11.9-fd00::1"]`, cnierr.BadConfig, `mixes address families`, `first-last`},
		{net + `, "ranges": ["172.16.11.9-172.16.12.1"]`, cnierr.BadConfig, `"ipam.subnets[0].ranges[0]": 172.16.11.9-172.16.12.1 is not inside 172.16.11.0/24`, `write addresses of 172.16.11.0/24, or remove it`},
		{net + `, "ranges": ["172.16.11.0/33"]`, cnierr.BadConfig, `"ipam.subnets[0].ranges[0]": "172.16.11.0/33" is not a prefix`, ``},
		{net + `, "ranges": ["172.16.0.0/16"]`, cnierr.BadConfig, `is not inside 172.16.11.0/24`, `write addresses of 172.16.11.0/24`},
		{net + `, "ranges": ["172.16.11.1-172.16.11.9", "172.16.11.9"]`, cnierr.BadConfig, `"ipam.subnets[0].ranges": 172.16.11.9 overlaps 172.16.11.1-172.16.11.9`, ``},
		{net + `, "exclude": ["10.0.0.1"]`, cnierr.BadConfig, `"ipam.subnets[0].exclude[0]": 10.0.0.1 is not inside`, `write addresses of 172.16.11.0/24`},
		{net + `, "exclude": ["::ffff:172.16.11.7"]`, cnierr.BadConfig, `has a zone or is IPv4-mapped`, `first-last`},
		{net + `, "exclude": ["172.16.11.0/24"]`, cnierr.BadConfig, `"ipam.subnets[0]": no address of 172.16.11.0/24 is left`, `exclude less`},
		{net + `, "ranges": ["172.16.11.254-172.16.11.255"], "gateway": "172.16.11.254"`, cnierr.BadConfig, `no address of 172.16.11.0/24 is left`, `widen ranges`},
		{`"subnet": "10.0.0.1/32", "gateway": "10.0.0.1"`, cnierr.BadConfig, `no address of 10.0.0.1/32 is left`, `widen ranges`},
		{`"subnet": "10.0.0.0/24"}, {"subnet": "10.0.0.128/25"`, cnierr.BadConfig, `"ipam.subnets[1]": 10.0.0.128/25 overlaps 10.0.0.0/24`, `keep one`},
	} {
		_, err := conf.Parse(input(subnet(b.in)))
		b.check(t, err)
	}
}

func TestWhatRefersToAFaultySubnetIsNoFault(t *testing.T) {
	t.Parallel()
	in := input(ofPool(`"subnets": [{"subnet": "172.16.11.7/24"}], "routes": [{"dst": "0.0.0.0/0", "gw": "172.16.11.1"}]`) +
		`, "runtimeConfig": {"ips": ["172.16.11.9"]}, "routing": {"defaultRoute": true}`)
	_, err := conf.Parse(in)
	bad{string(in.Stdin), cnierr.BadConfig, `"ipam.subnets[0].subnet": 172.16.11.7/24 has host bits set`, `did you mean`}.check(t, err)
}

func TestFaultsOfIPAMRoutes(t *testing.T) {
	t.Parallel()
	for _, b := range []bad{
		{`[{"gw": "172.16.11.1"}]`, cnierr.BadConfig, `"ipam.routes[0].dst": missing`, ``},
		{`[{"dst": "::/0"}]`, cnierr.BadConfig, `"ipam.routes[0].dst": ::/0: no subnet has this address family`, `add a subnet`},
		{`[{"dst": "0.0.0.0/0", "gw": "10.9.9.9"}]`, cnierr.BadConfig, `"ipam.routes[0].gw": 10.9.9.9 is in none of the pool's subnets`, `ipam.subnets`},
		{`[{"dst": "0.0.0.0/0", "gw": "172.16.11.255"}]`, cnierr.BadConfig, `172.16.11.255 is the broadcast address`, ``},
		{`[{"dst": "0.0.0.0/0", "gw": "172.16.11.1", "scope": 254}]`, cnierr.BadConfig, `cannot have scope 254`, `remove gw or scope`},
		{`[{"dst": "0.0.0.0/0", "gw": "172.16.11.1", "scope": 253}]`, cnierr.BadConfig, `cannot have scope 253`, `remove gw or scope`},
		{`[{"dst": "0.0.0.0/0", "scope": 255}]`, cnierr.BadConfig, `"ipam.routes[0].scope": 255 is not in 0 to 254`, ``},
		{`[{"dst": "0.0.0.0/0", "table": 0}]`, cnierr.BadConfig, `"ipam.routes[0].table": 0 is not in 1 to 4294967295`, ``},
		{`[{"dst": "0.0.0.0/0", "table": 255}]`, cnierr.BadConfig, `255 is the kernel's table of local addresses`, `remove the key`},
		{`[{"dst": "0.0.0.0/0", "mtu": -1}]`, cnierr.BadConfig, `"ipam.routes[0].mtu": -1 is not in`, ``},
		{`[{"dst": "0.0.0.0/0", "priority": -1}]`, cnierr.BadConfig, `"ipam.routes[0].priority": -1 is not in`, ``},
		{`[{"dst": "0.0.0.0/0", "via": "172.16.11.1"}]`, cnierr.BadConfig, `"ipam.routes[0].via": unknown key`, `did you mean "gw"?`},
		{`[{"dst": "0.0.0.0/0", "metric": 1}]`, cnierr.BadConfig, `"ipam.routes[0].metric": unknown key`, `did you mean "priority"?`},
		{`[{"dst": "0.0.0.0/0"}, {"dst": "0.0.0.0/0", "gw": "172.16.11.1"}]`, cnierr.BadConfig, `"ipam.routes[1]": another route to 0.0.0.0/0 has the same priority and table`, `another priority`},
		{`[{"dst": "10.0.0.0/8", "table": 7}, {"dst": "10.0.0.0/8", "table": 7}]`, cnierr.BadConfig, `"ipam.routes[1]": another route to 10.0.0.0/8`, `another priority`},
	} {
		_, err := conf.Parse(input(ofPool(one + `, "routes": ` + b.in)))
		b.check(t, err)
	}
	for _, b := range []bad{
		{`{"dst": "0.0.0.0/0", "gw": "fd00::1"}`, cnierr.BadConfig, `"ipam.routes[0].gw": fd00::1 is not of the family of 0.0.0.0/0`, ``},
		{`{"dst": "fd01::/64", "gw": "fd02::1"}`, cnierr.BadConfig, `"ipam.routes[0].gw": fd02::1 is in none of the pool's subnets`, `ipam.subnets`},
		{`{"dst": "10.1.0.0/16", "gw": "169.254.0.1"}`, cnierr.BadConfig, `"ipam.routes[0].gw": 169.254.0.1 is in none of the pool's subnets`, `ipam.subnets`},
	} {
		_, err := conf.Parse(input(ofPool(`"subnets": [{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}], "routes": [` + b.in + `]`)))
		b.check(t, err)
	}
}

func TestFaultsOfRequestedAddresses(t *testing.T) {
	t.Parallel()
	const p = `"ipam": {"type": "roce-ipam", "subnets": [{"subnet": "172.16.11.0/24", "exclude": ["172.16.11.7-172.16.11.9"], "gateway": "172.16.11.254"}]}, `
	for _, b := range []bad{
		{`"runtimeConfig": {"ips": ["172.16.11"]}`, cnierr.BadConfig, `"runtimeConfig.ips[0]": "172.16.11" is not an address`, `write 172.16.11.5`},
		{`"runtimeConfig": {"ips": ["::ffff:172.16.11.5"]}`, cnierr.BadConfig, `"::ffff:172.16.11.5" is not an address`, `write 172.16.11.5`},
		{`"runtimeConfig": {"ips": ["fe80::1%eth0"]}`, cnierr.BadConfig, `"fe80::1%eth0" is not an address`, `write 172.16.11.5`},
		{`"runtimeConfig": {"ips": ["10.0.0.5"]}`, cnierr.BadConfig, `"runtimeConfig.ips[0]": 10.0.0.5 is in none of the pool's subnets`, `ipam.subnets`},
		{`"runtimeConfig": {"ips": ["172.16.11.5/16"]}`, cnierr.BadConfig, `172.16.11.5/16: the length of 172.16.11.0/24 is 24`, `write the address without length`},
		{`"runtimeConfig": {"ips": ["172.16.11.5/0"]}`, cnierr.BadConfig, `172.16.11.5/0: the length of 172.16.11.0/24 is 24`, `write the address without length`},
		{`"runtimeConfig": {"ips": ["172.16.11.254"]}`, cnierr.BadConfig, `172.16.11.254 is the gateway of 172.16.11.0/24`, `another address`},
		{`"runtimeConfig": {"ips": ["172.16.11.255/24"]}`, cnierr.BadConfig, `172.16.11.255 is the broadcast address`, `another address`},
		{`"runtimeConfig": {"ips": ["172.16.11.9"]}`, cnierr.BadConfig, `172.16.11.9 is an excluded address of`, `another address`},
		{`"runtimeConfig": {"ips": ["172.16.11.7"]}`, cnierr.BadConfig, `172.16.11.7 is an excluded address of`, `another address`},
		{`"runtimeConfig": {"ips": ["172.16.11.5", "172.16.11.6"]}`, cnierr.BadConfig, `"runtimeConfig.ips[1]": 172.16.11.6: 172.16.11.5 of 172.16.11.0/24 is requested, too`, `one address of each`},
		{`"runtimeConfig": {"ips": ["172.16.11.5"]}, "args": {"cni": {"ips": ["172.16.11.6/24"]}}`, cnierr.BadConfig, `"args.cni.ips[0]": 172.16.11.6: 172.16.11.5 of`, `one address of each`},
	} {
		_, err := conf.Parse(input(p + b.in))
		b.check(t, err)
	}
}
