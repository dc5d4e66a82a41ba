// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// roceLinked returns our configuration of one NIC with a link to the node. Its addresses
// are of a RailPool, as nodes without a policy require.
func (w *world) roceLinked(name string, dual bool, probe any) (*chain, error) {
	if err := w.offer(name, dual); err != nil {
		return nil, err
	}
	link := object{"routes": []any{"10.96.0.0/12", "fd00:96::/108"}}
	ipam := object{"type": "roce-ipam", "railPool": name}
	conf := object{"master": nic(0), "hostLink": link, "ipam": ipam}
	return w.ourChain(name, dual, probe, 1, conf, strconv.Itoa(firstNet))
}

// offer writes a node file with the ranges that ourChain gives to the first rail.
func (w *world) offer(name string, dual bool) error {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	parts := [][4]string{{"10.%d.0.0/16", "10.%d.0.1", "10.%d.1.1", "10.%d.99.254"}}
	if dual {
		parts = append(parts, [4]string{"fd00:%d::/64", "fd00:%d::1", "fd00:%d::1:0", "fd00:%d::1:ffff"})
	}
	var rail []pool.Subnet
	for _, p := range parts {
		addr := func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf(p[i], firstNet)) }
		rail = append(rail, pool.Subnet{
			Prefix: netip.MustParsePrefix(fmt.Sprintf(p[0], firstNet)), Gateway: addr(1),
			Ranges: []netrange.Range{{First: addr(2), Last: addr(3)}},
		})
	}
	files := nodefile.Store{Dir: filepath.Join(w.dir, "roce"), BootID: strings.TrimSpace(string(boot))}
	return files.Write(nodefile.File{Pool: name, Quarantine: 2 * time.Minute, Rails: [][]pool.Subnet{rail}})
}

// linked is the contest between an attachment with a link to the node and one without.
func linked(w *world, runs int) (contest, error) {
	with, err := w.roceLinked("linked", false, nil)
	if err != nil {
		return contest{}, err
	}
	without, err := w.roce("alone", false, nil)
	if err != nil {
		return contest{}, err
	}
	const link = "roce with hostLink"
	return contest{
		name: "IPv4, hostLink", against: "without", runs: runs,
		players: []player{
			{name: link, add: with.add, del: with.del},
			{name: roce, add: without.add, del: without.del},
		},
		rows: []row{
			{"ADD, default checks", add, link, roce, 1.50, ""},
			{"DEL", del, link, roce, 0, ""},
		},
	}, nil
}
