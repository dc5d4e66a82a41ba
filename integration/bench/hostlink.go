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
	files, err := told(filepath.Join(w.dir, "roce"))
	if err == nil {
		err = files.Write(owned(name, 1, dual))
	}
	if err != nil {
		return nil, err
	}
	link := object{"routes": []any{"10.96.0.0/12", "fd00:96::/108"}}
	ipam := object{"type": "roce-ipam", "railPool": name}
	conf := object{"master": nic(0), "hostLink": link, "ipam": ipam}
	return w.ourChain(name, dual, probe, 1, conf, strconv.Itoa(firstNet))
}

// told is what the agent of a node and the plugins tell each other in a state folder.
func told(state string) (nodefile.Store, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return nodefile.Store{Dir: state, BootID: strings.TrimSpace(string(boot))}, err
}

// owned returns the node file of a RailPool with the ranges that ourChain gives to the first
// rails.
func owned(name string, rails int, dual bool) nodefile.File {
	f := nodefile.File{Pool: name, Quarantine: 2 * time.Minute}
	for i := range rails {
		parts := [][4]string{{"10.%d.0.0/16", gateway4(i), "10.%d.1.1", "10.%d.99.254"}}
		if dual {
			parts = append(parts, [4]string{"fd00:%d::/64", gateway6(i), "fd00:%d::1:0", "fd00:%d::1:ffff"})
		}
		var rail []pool.Subnet
		for _, p := range parts {
			of := func(format string) string { return fmt.Sprintf(format, firstNet+i) }
			rail = append(rail, pool.Subnet{
				Prefix: netip.MustParsePrefix(of(p[0])), Gateway: netip.MustParseAddr(p[1]),
				Ranges: []netrange.Range{{First: netip.MustParseAddr(of(p[2])), Last: netip.MustParseAddr(of(p[3]))}},
			})
		}
		f.Rails = append(f.Rails, rail)
	}
	return f
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
