// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import "path/filepath"

// The two give the same pod the same: a macvlan in bridge mode, an address of
// a pool on the node, a table of its own with a default route through the
// gateway, and settings of the interface.

type object = map[string]any

// roce returns our configuration. probe is its key probe, nil for the default.
func (w *world) roce(name string, dual bool, probe any) (*chain, error) {
	subnets := []any{object{"subnet": "10.64.0.0/16", "ranges": []any{"10.64.1.1-10.64.99.254"}, "gateway": gateway4}}
	if dual {
		subnets = append(subnets, object{"subnet": "fd00:64::/64", "ranges": []any{"fd00:64::1:0-fd00:64::1:ffff"}, "gateway": gateway6})
	}
	conf := object{
		"cniVersion": cniVersion, "name": name, "type": "roce", "master": nic, "rdma": object{"mode": "off"}, "stateDir": filepath.Join(w.dir, "roce"),
		"ipam": object{"type": "roce-ipam", "subnets": subnets},
	}
	if probe != nil {
		conf["probe"] = probe
	}
	return w.chain(name, w.ours, conf)
}

// chained returns upstream's configuration.
func (w *world) chained(name string, dual bool) (*chain, error) {
	ranges := []any{[]any{object{"subnet": "10.64.0.0/16", "rangeStart": "10.64.100.1", "rangeEnd": "10.64.199.254", "gateway": gateway4}}}
	sysctl := object{
		"net.ipv4.conf.IFNAME.arp_ignore": "1", "net.ipv4.conf.IFNAME.arp_announce": "2",
		"net.ipv4.conf.IFNAME.arp_notify": "1", "net.ipv4.conf.IFNAME.rp_filter": "2",
		"net.ipv6.conf.IFNAME.addr_gen_mode": "1", "net.ipv6.conf.IFNAME.accept_ra": "0",
	}
	if dual {
		ranges = append(ranges, []any{object{"subnet": "fd00:64::/64", "rangeStart": "fd00:64::2:1", "rangeEnd": "fd00:64::2:ffff", "gateway": gateway6}})
		sysctl["net.ipv6.conf.IFNAME.keep_addr_on_down"], sysctl["net.ipv6.conf.IFNAME.ndisc_notify"] = "1", "1"
	}
	return w.chain(name, w.upstream,
		object{
			"type": "macvlan", "master": nic, "mode": "bridge",
			"ipam": object{"type": "host-local", "dataDir": filepath.Join(w.dir, "host-local"), "ranges": ranges},
		},
		object{"type": "sbr"},
		object{"type": "tuning", "dataDir": filepath.Join(w.dir, "tuning"), "sysctl": sysctl})
}
