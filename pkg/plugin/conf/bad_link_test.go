// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Rows of all tables below and in bad_ipam_test.go each have one fault, and
// no second one may follow from it.
func TestFaultsOfTheDocument(t *testing.T) {
	t.Parallel()
	for _, b := range []bad{
		{``, cnierr.Decode, `"JSON": unexpected end of JSON input`, ``},
		{`{`, cnierr.Decode, `"JSON": line 1, column 1: unexpected end of JSON input`, ``},
		{"{\n \"mtu\": 1500,\n}", cnierr.Decode, `"JSON": line 3, column 1: invalid character '}'`, ``},
		{`{"a": 1} {"b": 2}`, cnierr.Decode, `line 1, column 10: invalid character '{' after top-level value`, ``},
		{`[]`, cnierr.Decode, `"JSON": want an object, got a list`, ``},
		{strings.Repeat("[", 20000), cnierr.Decode, `exceeded max depth`, ``},
		{`{"name": "n"}`, cnierr.Version, `"cniVersion": "" is none of 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0`, `set cniVersion`},
		{`{"cniVersion": "0.2.0", "name": "n", "rails": [{"master": "a"}, {"master": "b"}], "ipam": {"type": "roce-ipam", "subnets": [{"subnet": "172.16.{rail}.0/24"}]}}`, cnierr.Version, `"cniVersion": a result of version 0.2.0 cannot have 2 interfaces`, `set cniVersion to 0.3.0 or newer`},
		{`{"cniVersion": "0.2.0", "name": "n", "master": "a", "ipam": {"type": "roce-ipam", "subnets": [{"subnet": "172.16.10.0/24"}, {"subnet": "172.16.20.0/24"}]}}`, cnierr.Version, `a result of version 0.2.0 has only one address of each family, the pod would get 2`, `set cniVersion to 0.3.0 or newer`},
		{`{"cniVersion": "0.2.0", "name": "n", "master": "a", "ipam": {"type": "roce-ipam", "subnets": [{"subnet": "172.16.10.0/24"}, {"subnet": "fd00::/64"}, {"subnet": "fd01::/64"}]}}`, cnierr.Version, `has only one address of each family, the pod would get 3`, `set cniVersion to 0.3.0 or newer`},
		{`{"cniVersion": "0.2.0", "name": "n", "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "net1", "sandbox": "/x"}]}}`, cnierr.Version, `a result of version 0.2.0 must have an address`, `set cniVersion to 0.3.0 or newer`},
		{`{"cniVersion": "0.1.0", "name": "n", "master": "a"}`, cnierr.Version, `a result of version 0.1.0 must have an address`, `set cniVersion to 0.3.0 or newer`},
		{`{"cniVersion": "0.2.0", "name": "n", "master": "a", "ipam": {"type": "dhcp"}, "prevResult": {"cniVersion": "0.2.0", "ip4": {"ip": "192.0.2.1/24"}}}`, cnierr.Version, `cannot have an interface beside`, `set cniVersion to 0.3.0 or newer`},
		{`{"name": "n", "cniVersion": "1.2.0"}`, cnierr.Version, `"1.2.0" is none of`, `set cniVersion`},
		{`{"name": "n", "cniVersion": 1}`, cnierr.Decode, `"cniVersion": want a string, got a number`, ``},
		{`{"cniVersion": "1.0.0"}`, cnierr.BadConfig, `"name": "" is not the name of a network`, `letters, digits and _.-`},
		{`{"cniVersion": "1.0.0", "name": null}`, cnierr.BadConfig, `"name": "" is not`, `letters, digits and _.-`},
		{`{"cniVersion": "1.0.0", "name": "-n"}`, cnierr.BadConfig, `"name": "-n" is not`, `letters, digits and _.-`},
		{`{"cniVersion": "1.0.0", "name": "` + strings.Repeat("n", 70_000) + `"}`, cnierr.BadConfig, `"name": 70000 characters, at most 253`, `shorter`},
		{`{"cniVersion": "1.0.0", "name": "a/b"}`, cnierr.BadConfig, `"name": "a/b" is not`, `letters, digits and _.-`},
		{`{"cniVersion": "1.0.0", "name": "a\u0000"}`, cnierr.BadConfig, `"name": "a\x00" is not`, `letters, digits and _.-`},
		{`{"cniVersion": "1.0.0", "name": "a", "name": "b"}`, cnierr.BadConfig, `"name": the key appears twice`, `keep one`},
		{`{"cniVersion": "1.0.0", "name": "a", "Master": "ens1f0"}`, cnierr.BadConfig, `"Master": unknown key`, `did you mean "master"?`},
	} {
		_, err := conf.Parse(call(b.in))
		b.check(t, err)
	}
}

func TestFaultsOfTheLink(t *testing.T) {
	t.Parallel()
	for _, b := range []bad{
		{`"mode": "source"`, cnierr.BadConfig, `"mode": "source" is none of bridge, private, vepa, passthru`, `use one of bridge, private, vepa, passthru`},
		{`"mode": "brigde"`, cnierr.BadConfig, `"mode": "brigde" is none of`, `did you mean "bridge"?`},
		{`"mode": "Bridge"`, cnierr.BadConfig, `"mode": "Bridge" is none of`, `did you mean "bridge"?`},
		{`"mode": 3`, cnierr.Decode, `"mode": want a string, got a number`, `use one of bridge, private, vepa, passthru`},
		{`"mtu": -1`, cnierr.BadConfig, `"mtu": -1 is not in 0 to 2147483647`, ``},
		{`"mtu": 99999999999999999999`, cnierr.BadConfig, `"mtu": 99999999999999999999 is not in 0 to`, ``},
		{`"mtu": 1500.5`, cnierr.BadConfig, `"mtu": 1500.5 is not a whole number`, ``},
		{`"mtu": "9000"`, cnierr.Decode, `"mtu": want a number, got a string`, `without quotes`},
		{`"mac": "02:00:00:00:00"`, cnierr.BadConfig, `"mac": address 02:00:00:00:00: invalid MAC address`, `02:00:00:00:00:01`},
		{`"mac": "01:00:5e:00:00:01"`, cnierr.BadConfig, `"mac": address 01:00:5e:00:00:01: zero or a group address`, `unicast`},
		{`"mac": "00:00:00:00:00:00"`, cnierr.BadConfig, `zero or a group address`, `unicast`},
		{`"mac": "02:00:00:00:00:00:00:01"`, cnierr.BadConfig, `want 48 bits, got 64`, `unicast`},
		{`"runtimeConfig": {"mac": "x"}`, cnierr.BadConfig, `"runtimeConfig.mac": address x: invalid MAC address`, `unicast`},
		{`"mode": "passthru", "mac": "02:00:00:00:00:01"`, cnierr.BadConfig, `"mac": in passthru mode the MAC is the master's`, `another mode`},
		{`"mode": "passthru", "runtimeConfig": {"mac": "02:00:00:00:00:01"}`, cnierr.BadConfig, `"runtimeConfig.mac": in passthru mode`, `another mode`},
		{`"vlanId": 120`, cnierr.BadConfig, `"vlanId": unknown key`, `did you mean "vlan"?`},
		{`"VLAN_ID": 120`, cnierr.BadConfig, `"VLAN_ID": unknown key`, `did you mean "vlan"?`},
		{`"masters": "ens1f0"`, cnierr.BadConfig, `"masters": unknown key`, `did you mean "master"?`},
		{`"Pool": "p"`, cnierr.BadConfig, `"Pool": unknown key`, `did you mean "ipam.pool"?`},
		{`"railPool": "p"`, cnierr.BadConfig, `"railPool": unknown key`, `did you mean "ipam.railPool"?`},
		{`"subnets": []`, cnierr.BadConfig, `"subnets": unknown key`, `did you mean "ipam.subnets"?`},
		{`"quarantine": "9s"`, cnierr.BadConfig, `"quarantine": unknown key`, `did you mean "ipam.quarantine"?`},
		{`"addressPool": "p"`, cnierr.BadConfig, `"addressPool": unknown key`, `did you mean "ipam.pool"?`},
		{`"gidIndex": "equal"`, cnierr.BadConfig, `"gidIndex": unknown key`, `did you mean "rdma.gidIndex"?`},
		{`"vlan": 4095`, cnierr.BadConfig, `"vlan": 4095 is not in 1 to 4094`, ``},
		{`"vlan": 0`, cnierr.BadConfig, `"vlan": 0 is not in 1 to 4094`, ``},
		{`"vlan": 120, "linkInContainer": true`, cnierr.BadConfig, `"vlan": the VLAN would be in the pod's namespace`, `linkInContainer`},
		{`"child": "ipvtap"`, cnierr.BadConfig, `"child": "ipvtap" is none of macvlan, ipvlan`, `did you mean "ipvlan"?`},
		{`"child": "macvlan", "mode": "l2"`, cnierr.BadConfig, `"mode": "l2" is none of bridge, private, vepa, passthru`, `use one of bridge`},
		{`"child": "ipvlan", "mode": "bridge"`, cnierr.BadConfig, `"mode": "bridge" is none of l2`, `l2`},
		{`"child": "ipvlan", "mac": "02:00:00:00:00:01"`, cnierr.BadConfig, `"mac": in l2 mode the MAC is the master's`, `leave the MAC out`},
		{`"child": "ipvlan", "bcqueuelen": 10`, cnierr.BadConfig, `"bcqueuelen": an ipvlan has no queue for broadcasts`, `remove the key`},
		{`"linkInContainer": "true"`, cnierr.Decode, `"linkInContainer": want true or false, got a string`, `without quotes`},
		{`"bcqueuelen": 10001`, cnierr.BadConfig, `"bcqueuelen": 10001 is not in`, ``},
		{`"stateDir": "/run/roce"`, cnierr.BadConfig, `"stateDir": it is a setting of the node`, `the key "stateDir" of /etc/roce/node.json`},
		{`"stateDir": true`, cnierr.BadConfig, `"stateDir": it is a setting of the node`, `the key "stateDir" of /etc/roce/node.json`},
		{`"log": {"file": "/var/log/roce.log"}`, cnierr.BadConfig, `"log": it is a setting of the node`, `the key "log" of /etc/roce/node.json`},
		{`"heal": "all"`, cnierr.BadConfig, `"heal": it is a setting of the node`, `the key "heal" of /etc/roce/node.json`},
		{`"namespaces": {"*": {"masters": ["*"]}}`, cnierr.BadConfig, `"namespaces": it is a setting of the node`, `the key "namespaces" of`},
		{`"ipamPaths": ["/"]`, cnierr.BadConfig, `"ipamPaths": it is a setting of the node`, `the key "ipamPaths" of`},
		{`"rdma": {"inUse": "take"}`, cnierr.BadConfig, `"rdma.inUse": unknown key`, `the key "rdma.inUse" of`},
		{`"rdma": {"fillers": "remove"}`, cnierr.BadConfig, `"rdma.fillers": unknown key`, `the key "rdma.fillers" of`},
		{`"rdma": {"counts": true}`, cnierr.BadConfig, `"rdma.counts": unknown key`, `the key "rdma.counts" of`},
		{`"rdma": {"foreignGID": "tell"}`, cnierr.BadConfig, `"rdma.foreignGID": unknown key`, `the key "rdma.foreignGID" of`},
		{`"log": {"level": "debug"}`, cnierr.BadConfig, `"log": it is a setting of the node`, `the key "log" of /etc/roce/node.json`},
	} {
		_, err := conf.Parse(input(b.in))
		b.check(t, err)
	}
}

func TestFaultsOfTheMaster(t *testing.T) {
	t.Parallel()
	for _, b := range []bad{
		{`5`, cnierr.Decode, `"master": want a string, got a number`, `a name or a selector`},
		{`"ens1 f0"`, cnierr.BadConfig, `"master": "ens1 f0" has a character`, ``},
		{`"a/b"`, cnierr.BadConfig, `"master": "a/b" has a character`, ``},
		{`".."`, cnierr.BadConfig, `"master": ".." is not the name of a link`, ``},
		{`"` + strings.Repeat("a", 128) + `"`, cnierr.BadConfig, `is too long for the name of a link`, ``},
		{`{}`, cnierr.BadConfig, `"master": the selector is empty`, `name the NIC`},
		{`{"pci": null}`, cnierr.BadConfig, `"master": the selector is empty`, `name the NIC`},
		{`{"name": "ens1f0", "pci": "0000:0b:00.0"}`, cnierr.BadConfig, `"master.name": unknown key`, `write a name as a string`},
		{`{"vendor": ["15b3"], "pci": "0000:0b:00.0"}`, cnierr.BadConfig, `"master.vendor": unknown key`, `did you mean "vendors"?`},
		{`{"speed": 1, "pci": "0000:0b:00.0"}`, cnierr.BadConfig, `"master.speed": unknown key`, `use one of rdma, pci, ifNames`},
		{`{"pci": "0b:00.0"}`, cnierr.BadConfig, `"master.pci": "0b:00.0" is not a PCI address`, `lspci -D`},
		{`{"pci": "0000:0b:00.8"}`, cnierr.BadConfig, `"master.pci": "0000:0b:00.8" is not`, `lspci -D`},
		{`{"rdma": ""}`, cnierr.BadConfig, `"master.rdma": "" is not the name of an RDMA device`, ``},
		{`{"rdma": "../mlx5_0"}`, cnierr.BadConfig, `"master.rdma": "../mlx5_0" is not`, ``},
		{`{"subnet": "172.16.11.5/24"}`, cnierr.BadConfig, `"master.subnet": 172.16.11.5/24 has host bits set`, `did you mean "172.16.11.0/24"?`},
		{`{"ifNames": []}`, cnierr.BadConfig, `"master.ifNames": the list is empty`, `remove the key`},
		{`{"ifNames": ["enp*", ""]}`, cnierr.BadConfig, `"master.ifNames[1]": "" is not a pattern`, ``},
		{`{"ifNames": ["enp*", "enp[0-9"]}`, cnierr.BadConfig, `"master.ifNames": element 1, "enp[0-9", is not a pattern`, `close the bracket`},
		{`{"vendors": ["0x15b3"]}`, cnierr.BadConfig, `"master.vendors[0]": "0x15b3" is not a PCI vendor`, `lspci -nn`},
		{`{"deviceIDs": ["101"]}`, cnierr.BadConfig, `"master.deviceIDs[0]": "101" is not a PCI device`, `lspci -nn`},
		{`{"drivers": ["mlx5 core"]}`, cnierr.BadConfig, `"master.drivers[0]": "mlx5 core" is not the name of a driver`, ``},
		{`{"linkTypes": ["Ether!"]}`, cnierr.BadConfig, `"master.linkTypes[0]": "Ether!" is not a link type`, ``},
		{`{"function": "vf"}`, cnierr.BadConfig, `"master.function": "vf" is not one of physical, virtual, scalable`, ``},
		{`{"function": ""}`, cnierr.BadConfig, `"master.function": "" is not one of physical`, ``},
	} {
		_, err := conf.Parse(call(`{"cniVersion": "1.1.0", "name": "n", "master": ` + b.in + `}`))
		b.check(t, err)
	}
}

func TestFaultsOfSysctl(t *testing.T) {
	t.Parallel()
	const not, hint = `": not net.{ipv4,ipv6}.{conf,neigh}.IFNAME.KEY`, `tuning plugin or in the pod's securityContext`
	for _, b := range []bad{
		{`{"net.core.somaxconn": "1"}`, cnierr.BadConfig, `"sysctl.net.core.somaxconn` + not, hint},
		{`{"net.ipv4.ip_forward": 1}`, cnierr.BadConfig, `"sysctl.net.ipv4.ip_forward` + not, hint},
		{`{"net.ipv4.conf.all.arp_ignore": 1}`, cnierr.BadConfig, `"sysctl.net.ipv4.conf.all.arp_ignore` + not, hint},
		{`{"net.ipv4.conf.net1.arp_ignore": 1}`, cnierr.BadConfig, `"sysctl.net.ipv4.conf.net1.arp_ignore` + not, hint},
		{`{"net/ipv4/conf/../IFNAME/arp_ignore": 1}`, cnierr.BadConfig, `arp_ignore` + not, hint},
		{`{"net/ipv4/conf/IFNAME/arp_ignore/../../all/arp_ignore": 1}`, cnierr.BadConfig, `arp_ignore` + not, hint},
		{`{"net.ipv4.conf.IFNAME.Arp": 1}`, cnierr.BadConfig, `IFNAME.Arp` + not, hint},
		{`{"net.ipv4.route.IFNAME.x": 1}`, cnierr.BadConfig, `IFNAME.x` + not, hint},
		{`{"net.ipv4/conf.IFNAME/arp_ignore": 1}`, cnierr.BadConfig, `arp_ignore` + not, hint},
		{`{"net.ipv4.conf.IFNAME.rp_filter": true}`, cnierr.Decode, `rp_filter": want a string, got true or false`, `a string or a number`},
		{`{"net.ipv4.conf.IFNAME.rp_filter": null}`, cnierr.BadConfig, `rp_filter": "" is not a value`, ``},
		{`{"net.ipv4.conf.IFNAME.rp_filter": " "}`, cnierr.BadConfig, `rp_filter": " " is not a value`, ``},
		{`{"net.ipv4.conf.IFNAME.rp_filter": "1\n2"}`, cnierr.BadConfig, `rp_filter": "1\n2" is not a value`, ``},
		{`{"net.ipv4.conf.IFNAME.rp_filter": 1.5}`, cnierr.BadConfig, `rp_filter": 1.5 is not a whole number`, ``},
		{`{"net.ipv4.conf.IFNAME.rp_filter": 1, "net/ipv4/conf/IFNAME/rp_filter": 1}`, cnierr.BadConfig, `rp_filter": the setting appears twice`, `keep one`},
	} {
		_, err := conf.Parse(input(`"sysctl": ` + b.in))
		b.check(t, err)
	}
}

func TestFaultsOfRoutingProbeAndRDMA(t *testing.T) {
	t.Parallel()
	for _, b := range []bad{
		{`"routing": "polcy"`, cnierr.BadConfig, `"routing": "polcy" is none of policy, main, none`, `did you mean "policy"?`},
		{`"routing": {"mode": "vrf"}`, cnierr.BadConfig, `"routing.mode": "vrf" is none of`, `use one of policy, main, none`},
		{`"routing": {"tabel": 100}`, cnierr.BadConfig, `"routing.tabel": unknown key`, `did you mean "table"?`},
		{`"routing": {"table": 2147483648}`, cnierr.BadConfig, `"routing.table": 2147483648 is not in`, ``},
		{`"routing": {"table": 253}`, cnierr.BadConfig, `"routing.table": 253 is one of the kernel's tables`, `from 256 on`},
		{`"routing": {"table": 255}`, cnierr.BadConfig, `"routing.table": 255 is one of`, `from 256 on`},
		{`"routing": {"priority": 32765}`, cnierr.BadConfig, `"routing.priority": 32765 is not in 1 to 32764`, ``},
		{`"routing": {"metric": -5}`, cnierr.BadConfig, `"routing.metric": -5 is not in 0 to 4294967295`, ``},
		{`"routing": {"mode": "none", "defaultRoute": true}`, cnierr.BadConfig, `"routing.defaultRoute": the mode none makes no routes`, `policy or main`},
		{`"routing": {"defaultRoute": true}, ` + subnet(`"subnet": "10.0.0.0/24"`), cnierr.BadConfig, `"routing.defaultRoute": no subnet has a gateway`, `ipam.subnets[].gateway`},
		{`"routing": {"table": 252}, ` + ofPool(`"subnets": [{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.1.0/24"}]`), cnierr.BadConfig, `"routing.table": 2 subnets of one family need the tables 252 to 253`, `from 256 on`},
		{`"routing": {"table": 2147483647}, ` + ofPool(`"subnets": [{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.1.0/24"}]`), cnierr.BadConfig, `2147483647 to 2147483648`, `from 256 on`},
		{`"probe": {"arp": {}}`, cnierr.BadConfig, `"probe.arp": unknown key`, `use one of conflict, gateway`},
		{`"probe": {"conflict": "required"}`, cnierr.BadConfig, `"probe.conflict": "required" is none of require, warn, off`, `did you mean "require"?`},
		{`"probe": {"conflict": {"probe": 3}}`, cnierr.BadConfig, `"probe.conflict.probe": unknown key`, `did you mean "probes"?`},
		{`"probe": {"conflict": {"probes": 11}}`, cnierr.BadConfig, `"probe.conflict.probes": 11 is not in 1 to 10`, ``},
		{`"probe": {"conflict": {"interval": "4"}}`, cnierr.BadConfig, `"probe.conflict.interval": "4" is not a time`, `such as "2ms"`},
		{`"probe": {"conflict": {"interval": "2s"}}`, cnierr.BadConfig, `"probe.conflict.interval": 2s is not in 1ms to 1s`, ``},
		{`"probe": {"conflict": {"wait": "0s"}}`, cnierr.BadConfig, `"probe.conflict.wait": 0s is not in 1ms to 5s`, ``},
		{`"probe": {"gateway": {"attempts": 99}}`, cnierr.BadConfig, `"probe.gateway.attempts": 99 is not in 1 to 10`, ``},
		{`"probe": {"gateway": {"timeout": "-1s"}}`, cnierr.BadConfig, `"probe.gateway.timeout": -1s is not in 1ms to 5s`, ``},
		{`"probe": {"gateway": {"probes": 3}}`, cnierr.BadConfig, `"probe.gateway.probes": unknown key`, `use one of mode, attempts, timeout`},
		{`"rdma": "exclusiv"`, cnierr.BadConfig, `"rdma": "exclusiv" is none of auto, shared, exclusive, off`, `did you mean "exclusive"?`},
		{`"rdma": {"gid": "maybe"}`, cnierr.BadConfig, `"rdma.gid": "maybe" is none of require, warn, off`, `use one of`},
		{`"rdma": {"gidIndex": "equl"}`, cnierr.BadConfig, `"rdma.gidIndex": "equl" is none of any, equal`, `did you mean "equal"?`},
		{`"rdma": {"gidIndex": 0}`, cnierr.BadConfig, `"rdma.gidIndex": 0 is not in 1 to 255`, ``},
		{`"rdma": {"gidIndex": 256}`, cnierr.BadConfig, `"rdma.gidIndex": 256 is not in 1 to 255`, ``},
		{`"rdma": {"gidIndex": "equal", "gid": "warn"}`, cnierr.BadConfig, `"rdma.gidIndex": it needs the GIDs, and rdma.gid is "warn"`, `set rdma.gid to require`},
		{`"rdma": {"gidIndex": 3, "mode": "off"}`, cnierr.BadConfig, `"rdma.gidIndex": without RDMA there is no GID index`, `set rdma.mode to auto`},
		{`"rdma": {"device": "mlx5_0"}`, cnierr.BadConfig, `"rdma.device": unknown key`, `use one of mode, gid`},
	} {
		_, err := conf.Parse(input(b.in))
		b.check(t, err)
	}
}
