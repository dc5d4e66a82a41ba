// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// The two give the same pod the same: a macvlan in bridge mode, an address of
// a pool on the node, a table of its own with a default route through the
// gateway, and settings of the interface.

type object = map[string]any

// roce returns our configuration of rail 0. probe is its key probe, nil for the
// default.
func (w *world) roce(name string, dual bool, probe any) (*chain, error) {
	return w.ourChain(name, dual, probe, 1, object{"master": nic(0)}, strconv.Itoa(firstNet))
}

// roceRails returns our configuration of all rails in one attachment.
func (w *world) roceRails(name string, dual bool, probe any) (*chain, error) {
	return w.ourChain(name, dual, probe, rails, object{"rails": allNICs()}, fmt.Sprintf("{rail+%d}", firstNet))
}

// allNICs returns the key rails.
func allNICs() []any {
	var list []any
	for i := range rails {
		list = append(list, object{"master": nic(i)})
	}
	return list
}

// ourChain returns our configuration with the keys of conf, and, unless those say
// otherwise, subnets with this number.
func (w *world) ourChain(name string, dual bool, probe any, interfaces int, conf object, number string) (*chain, error) {
	subnet := func(subnet, ranges, gateway string) any {
		filled := strings.NewReplacer("N", number)
		return object{"subnet": filled.Replace(subnet), "ranges": []any{filled.Replace(ranges)}, "gateway": filled.Replace(gateway)}
	}
	subnets := []any{subnet("10.N.0.0/16", "10.N.1.1-10.N.99.254", "10.N.0.1")}
	if dual {
		subnets = append(subnets, subnet("fd00:N::/64", "fd00:N::1:0-fd00:N::1:ffff", "fd00:N::1"))
	}
	conf["cniVersion"], conf["name"], conf["type"] = cniVersion, name, "roce"
	conf["rdma"] = object{"mode": "off"}
	if conf["ipam"] == nil {
		conf["ipam"] = object{"type": "roce-ipam", "subnets": subnets}
	}
	if probe != nil {
		conf["probe"] = probe
	}
	c, err := w.chain(name, w.ours, conf)
	if err != nil {
		return nil, err
	}
	c.addresses = interfaces * len(subnets)
	return c, nil
}

// chained returns upstream's configuration of a rail.
func (w *world) chained(name string, dual bool, rail int) (*chain, error) {
	v4, v6 := fmt.Sprintf("10.%d.", firstNet+rail), fmt.Sprintf("fd00:%d::", firstNet+rail)
	ranges := []any{[]any{object{"subnet": v4 + "0.0/16", "rangeStart": v4 + "100.1", "rangeEnd": v4 + "199.254", "gateway": gateway4(rail)}}}
	sysctl := object{
		"net.ipv4.conf.IFNAME.arp_ignore": "1", "net.ipv4.conf.IFNAME.arp_announce": "2",
		"net.ipv4.conf.IFNAME.arp_notify": "1", "net.ipv4.conf.IFNAME.rp_filter": "2",
		"net.ipv6.conf.IFNAME.addr_gen_mode": "1", "net.ipv6.conf.IFNAME.accept_ra": "0",
	}
	if dual {
		ranges = append(ranges, []any{object{"subnet": v6 + "/64", "rangeStart": v6 + "2:1", "rangeEnd": v6 + "2:ffff", "gateway": gateway6(rail)}})
		sysctl["net.ipv6.conf.IFNAME.keep_addr_on_down"], sysctl["net.ipv6.conf.IFNAME.ndisc_notify"] = "1", "1"
	}
	c, err := w.chain(name, w.upstream,
		object{
			"type": "macvlan", "master": nic(rail), "mode": "bridge",
			"ipam": object{"type": "host-local", "dataDir": filepath.Join(w.dir, "host-local"), "ranges": ranges},
		},
		object{"type": "sbr"},
		object{"type": "tuning", "dataDir": filepath.Join(w.dir, "tuning"), "sysctl": sysctl})
	if err != nil {
		return nil, err
	}
	c.addresses = len(ranges)
	return c, nil
}

// least returns the configuration of program minimal, with an address that no pool gives.
func (w *world) least(name string) (*chain, error) {
	return w.chain(name, w.minimal, object{
		"type": "minimal", "master": nic(0), "address": spare(false)[0].Prefix, "gateway": gateway4(0),
	})
}

// chainedRails returns upstream's configurations of all rails, a network for each.
func (w *world) chainedRails(name string, dual bool) (chains, error) {
	var out chains
	for i := range rails {
		c, err := w.chained(fmt.Sprintf("%s-%d", name, i), dual, i)
		if err != nil {
			return nil, err
		}
		c.ifName = fmt.Sprintf("net%d", i+1)
		out = append(out, c)
	}
	return out, nil
}
