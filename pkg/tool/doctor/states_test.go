// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/utils/buildversion"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// state is one more state of a node, beside the faults, about which a check says something of its own.
type state struct {
	check, name string
	change      func(*world)
}

func states() []state {
	return slices.Concat(hostStates(), deviceStates(), softwareStates())
}

func written(files ...string) func(*world) {
	return func(w *world) {
		for i := 0; i < len(files); i += 2 {
			w.write(files[i], files[i+1])
		}
	}
}

func denied(name string) func(*world) { return func(w *world) { w.deny(name) } }

func all(changes ...func(*world)) func(*world) {
	return func(w *world) {
		for _, change := range changes {
			change(w)
		}
	}
}

func hostStates() []state {
	const (
		arp    = "proc/net/stat/arp_cache"
		limits = "Max locked memory         65536              65536              bytes     \n"
	)
	rules := func(nft string) func(*world) {
		return func(w *world) {
			w.linked()
			w.write("proc/sys/net/ipv4/ip_forward", "1")
			w.programs["nft"] = nft
		}
	}
	soft := written("sys/class/infiniband/mlx5_0/parent", "ens1f0np0\n")
	return []state{
		{"machine-id", "capitals", written("etc/machine-id", "4C4C4544005A3510804CB7C04F4D3733")},
		{"machine-id", "a digit more", written("etc/machine-id", "4c4c4544005a3510804cb7c04f4d37331")},
		{"memlock", "the memory is not in the file", written("proc/meminfo", "MemFree: 1 kB\n")},
		{"memlock", "the memory is no number", written("proc/meminfo", "MemTotal: much kB\n")},
		{"memlock", "the memory cannot be read", denied("proc/meminfo")},
		{"memlock", "neither memory nor runtime", all(denied("proc/meminfo"), func(w *world) { w.remove("proc/911") })},
		{"memlock", "limits without the line", written("proc/911/limits", "Max cpu time unlimited\n")},
		{"memlock", "three runtimes", written("proc/7/comm", "dockerd\n", "proc/7/limits", limits, "proc/8/comm", "crio\n", "proc/8/limits", limits)},
		{"memlock", "a runtime in a pod", written("proc/7/comm", "dockerd\n", "proc/7/limits", limits, "proc/7/status", "NSpid:\t7\t1\n")},
		{"memlock", "a runtime on the node", written("proc/7/comm", "dockerd\n", "proc/7/limits", limits, "proc/7/status", "NSpid:\t7\n")},
		{"host-arp", "IPv6 addresses of one subnet", func(w *world) { w.addrs = map[string]string{"ens1f0np0": "fd00::1/64", "ens2f0np0": "fd00::2/64"} }},
		{"host-arp", "a subnet in another", func(w *world) { w.addrs["ens2f0np0"] = "172.16.12.1/16" }},
		{"host-arp", "the address of a bond", func(w *world) {
			w.bonded(1)
			w.addrs = map[string]string{"bond0": "172.16.11.1/24", "ens2f0np0": "172.16.11.2/24"}
		}},
		{"network-managers", "networkd manages a slave, and not its bond", func(w *world) {
			w.bonded(1)
			w.write("run/systemd/netif/links/2", "ADMIN_STATE=configured\n")
		}},
		{"host-arp", "addresses cannot be listed", func(w *world) { w.addrsErr = errRefused }},
		{"network-managers", "networkd alone", written("run/systemd/netif/links/3", "ADMIN_STATE=configured\n")},
		{"network-managers", "both leave it", written("run/systemd/netif/links/3", "ADMIN_STATE=unmanaged\n", "run/NetworkManager/devices/3", "managed=false\n")},
		{"network-managers", "what NetworkManager does cannot be read", denied("run/NetworkManager")},
		{"network-managers", "a pod has the interface", func(w *world) { w.port(0).NetdevIndex = 0 }},
		{"neighbour-table", "no column of overflows", written(arp, "entries allocs\n00000082 0\n")},
		{"neighbour-table", "a line of another length", written(arp, "entries table_fulls\n00000082\n")},
		{"neighbour-table", "entries that are no number", written(arp, "entries table_fulls\nx 0\n")},
		{"neighbour-table", "overflows that are no number", written(arp, "entries table_fulls\n00000082 x\n")},
		{"neighbour-table", "overflows on two processors", written(arp, "entries table_fulls\n00000082 1\n00000082 a\n")},
		{"neighbour-table", "a size that is no number", written("proc/sys/net/ipv4/neigh/default/gc_thresh3", "many")},
		{"neighbour-table", "leases of two families", func(w *world) {
			w.peers = 10
			w.pool(3)
			w.setAside("172.20.0.30") // which is not leased
		}},
		{"neighbour-table", "leases that cannot be read", func(w *world) {
			w.peers = 10
			w.pool(1)
			w.spoil("leases.db")
		}},
		{"firewall", "a chain that only forwards drops", all(soft, func(w *world) { w.programs["nft"] = "type filter hook forward priority filter; policy drop;\n" })},
		{"firewall", "a chain drops before it is routed", all(soft, func(w *world) { w.programs["nft"] = "type filter hook prerouting priority raw; policy drop;\n" })},
		{"firewall", "Soft-RoCE is the second device", all(written("sys/class/infiniband/mlx5_1/parent", "ens2f0np0\n"), func(w *world) {
			w.programs["nft"] = "table inet a {\n\tchain b {\n\t\tudp dport 4791 drop # handle 5\n\t}\n}\n"
		})},
		{"firewall", "the tables of iptables cannot be read", all(soft, denied("proc/net/ip_tables_names"))},
		{"firewall", "iptables without a table", all(soft, written("proc/net/ip_tables_names", ""))},
		{"firewall", "two rules drop it", all(soft, func(w *world) {
			w.programs["nft"] = "table inet a {\n\tchain b {\n\t\tudp dport 53 drop # handle 3\n\t\tudp dport 4791 reject with icmp x # handle 4\n\t\tudp dport 4791 drop # handle 5\n\t}\n}\n"
		})},
		{"firewall", "another table of iptables drops it", all(soft, written("proc/net/ip_tables_names", "filter\nmangle\n"), func(w *world) {
			w.programs["iptables-legacy-save"] = "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n*mangle\n-A PREROUTING -p udp -m udp --dport 4791 -j DROP\nCOMMIT\n"
		})},
		{"host-link", "rules cannot be listed", func(w *world) {
			w.linked()
			w.rulesErr = errRefused
		}},
		{"host-link", "a chain of IPv6 drops, and the pods have IPv4", rules("table ip6 a {\n\tchain f {\n\t\ttype filter hook forward priority 0; policy drop;\n\t}\n}\n")},
		{"host-link", "a chain of IPv4 rejects all", rules("table ip a {\n\tchain f {\n\t\ttype filter hook forward priority 0; policy accept;\n\t\tcounter packets 1 bytes 2 reject with icmp x\n\t}\n}\n")},
		{"host-link", "a chain drops all but one interface", rules("table inet a {\n\tchain f {\n\t\ttype filter hook forward priority 0; policy accept;\n\t\toifname != { \"eth0\", \"eth1\" } drop\n\t}\n}\n")},
		{"host-link", "a chain drops all but veths", rules("table inet a {\n\tchain f {\n\t\ttype filter hook forward priority 0; policy accept;\n\t\tiifname != \"veth*\" drop\n\t}\n}\n")},
		{"host-link", "two chains drop", rules("table ip a {\n\tchain f {\n\t\ttype filter hook forward priority 0; policy drop;\n\t}\n}\ntable inet b {\n\tchain g {\n\t\ttype filter hook forward priority 0; policy drop;\n\t}\n}\n")},
		{"host-link", "another chain accepts", rules("table ip a {\n\tchain f {\n\t\ttype filter hook forward priority 0; policy drop;\n\t\tjump pods\n\t}\n\tchain pods {\n\t\tiifname \"veth*\" counter packets 1 bytes 2 accept\n\t}\n}\n")},
		{"host-link", "a table of the other family with its name accepts", rules("table ip filter {\n\tchain f {\n\t\ttype filter hook forward priority 0; policy drop;\n\t}\n}\ntable ip6 filter {\n\tchain f {\n\t\tiifname \"veth*\" accept\n\t}\n}\n")},
		{"host-link", "iptables-legacy rejects the rest", all(rules(""), written("proc/net/ip_tables_names", "filter\n"), func(w *world) {
			w.programs["iptables-legacy-save"] = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j REJECT --reject-with icmp-port-unreachable\nCOMMIT\n"
		})},
		{"host-link", "a rule of IPv6 that leads to no pod", all(rules(""), func(w *world) {
			w.rules = append(w.rules, rtnl.Rule{From: netip.MustParsePrefix("::/0"), Table: unix.RT_TABLE_LOCAL})
		})},
		{"host-link", "neither family is forwarded", func(w *world) {
			w.dual("0")
			w.write("proc/sys/net/ipv4/ip_forward", "0")
		}},
		{"host-link", "no agent, and no file", func(w *world) {
			w.withoutServices()
			if err := w.pools.Remove("gpu"); err != nil {
				w.t.Fatal(err)
			}
		}},
		{"left-behind", "two pods of roce-hwtest", written("run/netns/roce-hwtest-0-1", "", "run/netns/roce-hwtest-0-2", "")},
		{"left-behind", "a rule of the other family, and rules of others", func(w *world) {
			w.onVLAN()
			w.record()
			v4, table, priority := w.rules[0], w.rules[0], w.rules[0]
			v4.From, table.Table, priority.Priority = netip.MustParsePrefix("0.0.0.0/0"), 8201, 501
			w.rules = append(w.rules, table, priority, v4)
		}},
		{"left-behind", "interfaces cannot be looked at", func(w *world) {
			w.onVLAN()
			w.deny("sys/class/net")
		}},
	}
}

func deviceStates() []state {
	const dir, vf = "sys/class/infiniband/mlx5_0/", "sys/class/net/ens1f0np0/device/virtfn0/net"
	vfs := func(w *world) { w.vfs = []rtnl.VF{{Untrusted: true}, {Number: 1, SpoofCheck: true}} }
	bond := func(w *world) {
		w.bonded(2)
		w.rdma.Devices = w.rdma.Devices[:1]
	}
	options := func(text string) func(*world) { return written("etc/modprobe.d/zz-roce.conf", text) }
	return []state{
		{"rdma-modules", "modules that are built in or absent", func(w *world) {
			w.remove("sys/module/ib_umad")
			w.remove("sys/module/ib_uverbs")
			w.write("lib/modules/6.8.0-60-generic/modules.builtin", "kernel/ib_umad.ko\nkernel/xib_uverbs.ko\nkernel/ib_uverbs_x.ko\n")
		}},
		{"rdma-driver", "OFED is installed, and no NIC of it is there", func(w *world) {
			w.remove("sys/module/mlx5_core")
			w.write("usr/bin/ofed_info", "")
		}},
		{"rdma-netns-mode", "the last of two options of a line", options("options ib_core x=1 netns_mode=1 netns_mode=0\n")},
		{"rdma-netns-mode", "the last of two lines", options("options ib_core netns_mode=0\noptions\tib-core\tnetns_mode=Y\n")},
		{"rdma-netns-mode", "the last of two files", all(options("options ib_core netns_mode=1\n"), written("usr/lib/modprobe.d/zz-roce.d.conf", "options ib_core netns_mode=off\n"))},
		{"rdma-netns-mode", "the last of two files by its name", written("etc/modprobe.d/zz-roce.conf", "options ib_core netns_mode=1\n", "usr/lib/modprobe.d/aa.conf", "options ib_core netns_mode=0\n")},
		{"rdma-netns-mode", "the last word of the command line", written("proc/cmdline", "ib_core.netns_mode=0 quiet ib_core.netns_mode=1\n")},
		{"rdma-netns-mode", "a file that hides another", all(options("#\n"), written("run/modprobe.d/zz-roce.conf", "options ib_core netns_mode=n\n"))},
		{"rdma-netns-mode", "files and options that do not count", all(options("options ib_core_x netns_mode=0\n# options ib_core netns_mode=0\n"), written("etc/modprobe.d/zz-roce.txt", "options ib_core netns_mode=0\n"))},
		{"rdma-netns-mode", "a file that cannot be read", all(options(""), denied("etc/modprobe.d/zz-roce.conf"))},
		{"rdma-netns-mode", "the command line cannot be read", denied("proc/cmdline")},
		{"rdma-ports", "a port without interface here that is down", func(w *world) { w.port(0).NetdevIndex, w.port(0).State = 0, nldev.Down }},
		{"rdma-ports", "ports that are on their way up", func(w *world) { w.port(0).State, w.port(1).State = nldev.Init, nldev.Armed }},
		{"rdma-ports", "a port without interface here that is on its way up", func(w *world) { w.port(0).NetdevIndex, w.port(0).State = 0, nldev.Init }},
		{"rdma-ports", "the second port of a device is InfiniBand", all((*world).secondPort, written("sys/class/infiniband/mlx5_1/ports/2/link_layer", "InfiniBand"))},
		{"rdma-ports", "a slave is down, and its bond is not", func(w *world) {
			w.bonded(1)
			w.port(0).State, w.link(0).Flags = nldev.Down, 0
		}},
		{"rdma-mtu", "a slave has a smaller MTU than its bond", func(w *world) {
			w.bonded(1)
			w.link(0).MTU = 1500
		}},
		{"rdma-bond", "slaves keep their devices, and a NIC is in no bond", func(w *world) {
			w.secondPort()
			w.bonded(2)
		}},
		{"rdma-ports", "the speed cannot be read", denied(dir + "ports/1/rate")},
		{"gid-table", "the second port has a full one", all((*world).secondPort, written("sys/class/infiniband/mlx5_1/ports/2/gids/0", "0000:0000:0000:0000:0000:ffff:ac10:0001", "sys/class/infiniband/mlx5_1/ports/2/gid_attrs/types/0", "RoCE v2"))},
		{"gid-table", "no table", func(w *world) { w.gids("mlx5_0", 0, 0) }},
		{"gid-table", "a table of one type", func(w *world) {
			w.gids("mlx5_0", 16, 4)
			for _, i := range []string{"0", "2"} {
				w.remove(dir + "ports/1/gids/" + i)
				w.write(dir+"ports/1/gids/"+i, "0000:0000:0000:0000:0000:0000:0000:0000")
			}
		}},
		{"eswitch-mode", "a device of another bus has the address", func(w *world) {
			other := *w.devlink[0]
			other.BusName, other.Attrs.Eswitch.Mode = "auxiliary", "switchdev"
			w.devlink = append([]*netlink.DevlinkDevice{&other}, w.devlink...)
		}},
		{"vf-trust", "another interface comes before its NIC", all(vfs, func(w *world) {
			w.links = append([]rtnl.Link{{Index: 9, Name: "br0", Kind: "bridge"}}, w.links...)
		}, written("sys/class/net/ens1f0np0/device/virtfn1/net/ens2f0np0/mtu", "1"))},
		{"eswitch-mode", "no devlink", func(w *world) { w.devlinkErr = unix.ENOENT }},
		{"vf-trust", "VFs of pods and without interface", all(vfs, written(vf+"/eth9/mtu", "1"), func(w *world) { w.write("sys/class/net/ens1f0np0/device/virtfn1/net/.", "") })},
		{"vf-trust", "the interface cannot be looked up", all(vfs, denied(vf))},
		{"vf-trust", "a VF with one fault", all(vfs, written("sys/class/net/ens1f0np0/device/virtfn1/net/ens2f0np0/mtu", "1"))},
		{"nic-firmware", "NICs of two drivers", func(w *world) { w.drivers["ens2f0np0"] = nic.Driver{Name: "bnxt_en", Firmware: "1"} }},
		{"nic-qos", "a traffic class, and no DSCP with PFC", all(quality(func(q *nic.QoS) { q.DSCP = [64]nic.Priorities{} }), written(dir+"tc/1/traffic_class", "Global tclass=8\n"))},
		{"nic-qos", "a traffic class of the second port", all((*world).secondPort, written("sys/class/infiniband/mlx5_1/tc/2/traffic_class", "Global tclass=8\n"))},
		{"nic-qos", "a traffic class of a bond", all(bond, written(dir+"tc/1/traffic_class", "Global tclass=8\n"))},
		{"nic-qos", "the first slave of a bond does not tell", all(bond, func(w *world) { delete(w.qos, "ens1f0np0") })},
		{"nic-qos", "different NICs, one without ECN", func(w *world) {
			q := lossless()
			q.PFC, q.ECN = 1<<3|1<<5, 1<<3
			w.qos["ens2f0np0"] = q
		}},
		{"pcie-link", "a VF", written(dir+"device/physfn/x", "")},
		{"pcie-link", "an unknown width", written(dir+"device/current_link_width", "255\n")},
		{"pcie-link", "an unknown best speed", written(dir+"device/max_link_speed", "Unknown\n")},
		{"pcie-link", "the link cannot be read", denied(dir + "device/max_link_width")},
		{"pcie-acs", "the place on the bus cannot be read", written("sys/module/amdgpu/refcnt", "1")},
		{"pcie-acs", "the bridge cannot be read", all((*world).gpu, func(w *world) {
			w.targets["sys/class/infiniband/mlx5_0"] = "../../devices/pci0000:0a/0000:0a:00.0/0000:0b:00.0/infiniband/mlx5_0"
		})},
		{"pcie-acs", "two bridges redirect", all((*world).gpu, func(w *world) {
			config := append(make([]byte, 0x100), 0x0d, 0, 1, 0, 0, 0, 0x0c, 0)
			w.write("sys/bus/pci/devices/0000:0a:00.0/config", string(config))
			w.write("sys/bus/pci/devices/0000:0a:01.0/config", string(config))
			w.targets["sys/class/infiniband/mlx5_0"] = "../../devices/pci0000:0a/0000:0a:00.0/0000:0a:01.0/0000:0b:00.0/infiniband/mlx5_0"
		})},
		{"rdma-files", "a device without files", func(w *world) { w.chars["mlx5_1"] = nil }},
		{"rdma-ports", "RoCE is off on a device of no bus", func(w *world) {
			w.rdma.Devices[0].Protocol = ""
			w.remove(dir + "device/uevent")
		}},
		{"pool-routes", "a route of a bond whose device names a slave", func(w *world) {
			bond(w)
			w.routes[0].Index = 9
		}},
		{"tagged-frames", "a container of no pod", func(w *world) { w.trunkOf(conf.Pod{}, withRaw) }},
		{"tagged-frames", "two VLANs on the second NIC of the list", func(w *world) {
			w.trunk(withRaw)
			second := w.links[2]
			second.Name, second.VLAN = "backup", 130
			w.links = append(w.links, second)
			w.links[0], w.links[1] = w.links[1], w.links[0]
		}},
		{"tagged-frames", "the first of two programs has NET_RAW, and the second is hidden", func(w *world) {
			w.trunk(withRaw, withoutRaw)
			delete(w.targets, "proc/77/ns/net")
		}},
		{"tagged-frames", "the first of two programs has NET_RAW", func(w *world) { w.trunk(withRaw, withoutRaw) }},
		{"tagged-frames", "a VLAN on a NIC of another namespace", func(w *world) {
			w.trunk(withRaw)
			w.links[2].Lower.NSID = 1
		}},
	}
}

func softwareStates() []state {
	version := buildversion.BuildString("roce") + "\n"
	const config = "etc/containerd/config.toml"
	return []state{
		{"cni-plugins", "plugins in two folders", all(
			written(config, "[plugins.cri.cni]\nbin_dirs = [\"/opt/cni/bin\", \"/usr/lib/cni\"]\n", "usr/lib/cni/roce", "ELF"),
			func(w *world) { w.programs["/usr/lib/cni/roce"] = "old" },
		)},
		{"cni-plugins", "plugins in the second folder", all(
			written(config, "[plugins.cri.cni]\nbin_dirs = [\"/opt/none\", \"/usr/lib/cni\"]\n", "usr/lib/cni/roce", "ELF"),
			func(w *world) { w.programs["/usr/lib/cni/roce"] = version },
		)},
		{"cni-plugins", "the second folder is not there", written(config, "[plugins.cri.cni]\nbin_dirs = [\"/opt/cni/bin\", \"/opt/none\"]\n")},
		{"cni-plugins", "the folder cannot be read", denied("opt/cni/bin")},
		{"cni-plugins", "the configuration of containerd cannot be read", all(written(config, ""), denied(config))},
		{"cni-config", "the folder cannot be read", denied("etc/cni/net.d")},
		{"cni-config", "no folder", func(w *world) { w.remove("etc/cni/net.d") }},
		{"cni-config", "roce itself", written("etc/cni/net.d/00-a.json", `{"type": "roce"}`)},
		{"cni-config", "another before roce itself", func(w *world) {
			w.remove("etc/cni/net.d/00-multus.conf")
			w.write("etc/cni/net.d/20-roce.conflist", `{"plugins": [{"type": "roce"}]}`)
		}},
		{"cni-config", "two others come first", written("etc/cni/net.d/00-a.conf", `{"type": "ptp"}`, "etc/cni/net.d/00-b.conf", `{"type": "ptp"}`)},
		{"cni-config", "files that do not count", written("etc/cni/net.d/00-a.txt", "{", "etc/cni/net.d/000", "{")},
		{"cni-lists", "no folder", func(w *world) { w.remove("etc/cni/net.d") }},
		{"cni-lists", "the folder cannot be read", denied("etc/cni/net.d")},
		{"cni-lists", "sbr before roce, and in no list", written("etc/cni/net.d/20.conflist", `{"plugins": [{"type": "sbr"}, {"type": "roce"}]}`, "etc/cni/net.d/21.conf", "{")},
		{"cni-lists", "sbr in two lists", written("etc/cni/net.d/20.conflist", `{"plugins": [{"type": "roce"}, {"type": "sbr"}]}`, "etc/cni/net.d/21.conflist", `{"plugins": [{"type": "roce"}, {"type": "sbr"}]}`)},
		{"device-plugin", "the folder of k0s cannot be looked at", denied("var/lib/k0s")},
		{"pools", "another pool has leases", func(w *world) {
			_, err := w.leases.Acquire(w.t.Context(), ipam.Ask{
				Pool: pool.OfRailPool("other"), Owner: ipam.Owner{ContainerID: "c1", IfName: "net1", Network: "rails"},
				Subnets: []ipam.Subnet{{Prefix: netip.MustParsePrefix("172.20.0.0/16"), Ranges: []netrange.Range{{First: netip.MustParseAddr("172.20.0.17"), Last: netip.MustParseAddr("172.20.0.17")}}}},
			})
			if err != nil {
				w.t.Fatal(err)
			}
		}},
		{"pool-routes", "a route to the second rail", func(w *world) {
			first, last := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.9")
			w.rails(netrange.Range{First: netip.MustParseAddr("172.20.0.16"), Last: netip.MustParseAddr("172.20.0.35")}, netrange.Range{First: first, Last: last})
			w.routes = append(w.routes, route("10.1.9.0/24", 9))
		}},
		{"agent", "another server answers", func(w *world) { w.agent = http.NotFound }},
		{"device-plugin", "no JSON", written(registered, "{")},
		{"device-plugin", "a resource of no RDMA without devices", written(registered, `{"Data": {"RegisteredDevices": {"a/b": [], "c/d": ["1"]}}}`)},
		{"agent", "it says two things", func(w *world) {
			w.agent = func(out http.ResponseWriter, _ *http.Request) {
				http.Error(out, "one\ntwo\n", http.StatusServiceUnavailable)
			}
		}},
		{"agent", "it is well, and says something", func(w *world) {
			w.agent = func(out http.ResponseWriter, _ *http.Request) { fmt.Fprintln(out, "a pool was deleted") }
		}},
		{"agent", "a node of k0s without an agent", func(w *world) {
			w.agent, w.pools.Dir = nil, w.t.TempDir()
			w.remove("var/lib/kubelet")
			w.write("var/lib/k0s/kubelet/x", "")
		}},
		{"agent", "kubelet cannot be looked at", func(w *world) {
			w.agent, w.pools.Dir = nil, w.t.TempDir()
			w.deny("var/lib/kubelet")
		}},
	}
}

// TestWhatIsSaidOfEachState has a file with the answers of one check.
func TestWhatIsSaidOfEachState(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, s := range states() {
		checks, err := Named(s.check)
		if err != nil {
			t.Fatal(err)
		}
		w := healthy(t)
		s.change(w)
		fmt.Fprintf(&b, "-- %s --\n", s.name)
		if err := Write(&b, slices.Collect(Run(t.Context(), w.node(), checks)), true); err != nil {
			t.Fatal(err)
		}
		got := b.String()
		b.Reset()
		b.WriteString(strings.ReplaceAll(got, w.pools.Dir, "/run/roce"))
	}
	same(t, "states", port.ReplaceAllString(b.String(), "127.0.0.1:9482"))
}

func TestVFsThatCannotBeListedAreToldOfTheirNIC(t *testing.T) {
	t.Parallel()
	n := healthy(t).node()
	n.VFs = func(context.Context, string) ([]rtnl.VF, error) { return nil, errRefused }
	got := (&look{Node: n, ctx: t.Context()}).try((*look).vfTrust)
	if len(got) != 2 || got[0] != cannotTell("its VFs cannot be listed: operation not permitted", rootOfNode).About("ens1f0np0") {
		t.Errorf("got %+v", got)
	}
}

func TestAnAgentIsAskedForAsLongAsACheckMayTake(t *testing.T) {
	t.Parallel()
	ended, end := context.WithCancel(t.Context())
	end()
	w := healthy(t)
	if got := (&look{Node: w.node(), ctx: ended}).agentHealth(); len(got) != 1 || got[0] != cannotTell("it did not answer in time", "more time") {
		t.Errorf("got %+v", got)
	}
	n := w.node()
	n.AgentURL = "http://[::1"
	if got := (&look{Node: n, ctx: t.Context()}).agentHealth(); len(got) != 1 || got[0].Verdict != report.Problem || !strings.Contains(got[0].Found, "the node has 1 pool, and it does not answer: ") {
		t.Errorf("got %+v", got)
	}
}

func TestErrorsNameFilesAsTheNodeDoes(t *testing.T) {
	t.Parallel()
	root := rooted{recordedFS{healthy(t).files, []string{"sys/class/net"}, nil}, "/"}
	sys, err := fs.Sub(root, "sys")
	if err != nil {
		t.Fatal(err)
	}
	_, opened := root.Open("sys/class/net/x")
	_, below := sys.Open("class/net/x")
	_, read := fs.ReadLink(root, "etc/machine-id")
	_, stated := fs.Lstat(root, "etc/none")
	for want, err := range map[string]error{
		"open /sys/class/net/x: permission denied": errors.Join(opened, below), "readlink /etc/machine-id: invalid argument": read, "open /etc/none: file does not exist": stated,
	} {
		for line := range strings.Lines(fmt.Sprint(err)) {
			if strings.TrimSpace(line) != want {
				t.Errorf("%s, want %s", line, want)
			}
		}
	}
}

func TestTheFirstThatIsLackingIsTold(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"x: there is no /opt/roce":                          &fs.PathError{Op: "open", Path: "opt/roce", Err: fs.ErrNotExist},
		"x: fork/exec /opt/roce: no such file or directory": &fs.PathError{Op: "fork/exec", Path: "/opt/roce", Err: unix.ENOENT}, // perhaps its interpreter
		"x: open /opt/roce: permission denied":              &fs.PathError{Op: "open", Path: "/opt/roce", Err: fs.ErrPermission},
	} {
		l := &look{}
		l.need(nil, "before: ", "nothing")
		l.need(err, "x: ", "root")
		l.need(errRefused, "later: ", "more")
		if *l.lack != cannotTell(want, "root") {
			t.Errorf("got %+v, want %s", l.lack, want)
		}
	}
}

func TestOnlyChecksThatExistAreNamed(t *testing.T) {
	t.Parallel()
	if checks, err := Named("agent", "rdma-mtu"); err != nil || len(checks) != 2 || checks[0].Name != "rdma-mtu" {
		t.Errorf("%d checks, error %v", len(checks), err)
	}
	if checks, err := Named(); err != nil || len(checks) != len(Checks()) {
		t.Errorf("%d checks, error %v", len(checks), err)
	}
	if _, err := Named("agent", "nosuch"); err == nil || err.Error() != `check "nosuch": there is none of this name` {
		t.Error(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := Write(full, healthy(t).answers()[:1], true); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("to a disk that is full: %v", err)
	}
}

// TestChecksThatLackTheSameAreOneAnswer: but what one check cannot tell stays, each with its subject.
func TestChecksThatLackTheSameAreOneAnswer(t *testing.T) {
	t.Parallel()
	of := func(check, subject string, f report.Finding) report.Answer {
		f.Of = subject
		return report.Answer{Check: check, Finding: f}
	}
	answers := []report.Answer{
		of("gids", "mlx5_0", cannotTell("its table cannot be read", "root")),
		of("gids", "mlx5_1", cannotTell("its table cannot be read", "root")),
		of("pools", "", cannotTell("nothing is known", "a state folder")),
		of("agent", "", ok("it runs")),
		of("records", "a", cannotTell("nothing is known", "a state folder")),
		of("records", "b", cannotTell("nothing is known", "a state folder")),
		of("rdma-mtu", "mlx5_0", problem("1024", "")),
		of("left-behind", "", cannotTell("it is not looked for", "records")),
		of("fill", "", cannotTell("it is not looked for", "records")),
	}
	golden(t, "lack", answers, false)
}

func TestAPartSaysHowManyProblemsItHas(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	w.port(0).State, w.port(1).State, w.link(1).MTU = nldev.Down, nldev.Down, 1500
	answers := Status(t.Context(), w.node())
	rails := answers[len(answers)-1]
	want := report.Answer{Check: "rails", Finding: report.Finding{
		Verdict: report.Problem, Found: "mlx5_0/1: DOWN, although ens1f0np0 is up: it has no carrier (and 2 more)", Fix: "rocectl doctor rdma-ports rdma-mtu",
	}}
	if rails != want {
		t.Errorf("got %+v, want %+v", rails, want)
	}
}

// TestACheckEndsWithItsCaller, and after its patience.
func TestACheckEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	n, checks := healthy(t).node(), slices.DeleteFunc(Checks(), func(c Check) bool { return c.Name != "vf-trust" })
	n.Links = func(ctx context.Context) ([]rtnl.Link, error) {
		if end, is := ctx.Deadline(); !is || time.Until(end) > patience {
			t.Errorf("it may take until %v", end)
		}
		return nil, ctx.Err()
	}
	ended, end := context.WithCancel(t.Context())
	end()
	want := []report.Answer{{Check: "vf-trust", Finding: cannotTell("the interfaces cannot be listed: context canceled", rootOfNode)}}
	if got := slices.Collect(Run(ended, n, checks)); !slices.Equal(got, want) {
		t.Errorf("got %+v", got)
	}
}
