// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// limit is where a problem begins: the last state of a node that is well, and the first that is
// not.
type limit struct {
	name, check string
	well, ill   func(*world)
}

// rails gives the pool "gpu" a rail for each range of addresses.
func (w *world) rails(ranges ...netrange.Range) {
	w.t.Helper()
	f := nodefile.File{Pool: "gpu", Quarantine: time.Minute}
	for i, r := range ranges {
		prefix := netip.PrefixFrom(r.First, r.First.BitLen()/2).Masked()
		exclude := []netrange.Range{{First: r.Last, Last: r.Last}}
		f.Rails = append(f.Rails, []pool.Subnet{{Prefix: prefix, Ranges: []netrange.Range{r}, Exclude: exclude[:i%2]}})
	}
	if err := w.pools.Write(f); err != nil {
		w.t.Fatal(err)
	}
}

func limits() []limit {
	write := func(name, format string, values ...any) func(*world) {
		return func(w *world) { w.write(name, fmt.Sprintf(format, values...)) }
	}
	both := func(changes ...func(*world)) func(*world) {
		return func(w *world) {
			for _, change := range changes {
				change(w)
			}
		}
	}
	const (
		memory  = 2113674140 << 10
		limits  = "Max locked memory         %d              unlimited            bytes     \n"
		thresh4 = "proc/sys/net/ipv4/neigh/default/gc_thresh3"
		thresh6 = "proc/sys/net/ipv6/neigh/default/gc_thresh3"
		nic     = "sys/class/infiniband/mlx5_0/device/"
		forced  = "sys/class/infiniband/mlx5_0/tc/1/traffic_class"
		all     = "proc/sys/net/ipv4/conf/all/"
	)
	table := func(size, used int) func(*world) { return func(w *world) { w.gids("mlx5_1", size, used) } }
	peers := func(leased, peers int) func(*world) {
		return func(w *world) {
			w.pool(leased)
			w.peers = peers
		}
	}
	full := write("proc/net/stat/arp_cache", "entries table_fulls\n00000082 1\n")
	oneSubnet := func(ignore, announce, filter int) func(*world) {
		return both(func(w *world) { w.addrs["ens2f0np0"] = "172.16.11.2/24" },
			write(all+"arp_ignore", "%d", ignore), write(all+"arp_announce", "%d", announce),
			write(all+"rp_filter", "%d", filter))
	}
	firewall := func(ports string) func(*world) {
		return both(write("sys/class/infiniband/mlx5_0/parent", "ens1f0np0\n"), func(w *world) {
			w.programs["nft"] = "table inet a {\n\tchain b {\n\t\tudp dport " + ports + " drop # handle 7\n\t}\n}\n"
		})
	}
	routes := func(routes ...rtnl.Route) func(*world) { return func(w *world) { w.routes = routes } }
	local, other, none := route("172.20.0.1/32", 9), route("172.20.0.0/16", 9), route("172.20.0.0/16", 0)
	local.Type, other.Table = unix.RTN_LOCAL, 100
	addresses := func(first, last string) netrange.Range {
		return netrange.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
	}
	lease := func(n int, ranges ...netrange.Range) func(*world) {
		return func(w *world) {
			w.pool(n)
			w.rails(ranges...)
		}
	}
	some, others := addresses("172.20.0.30", "172.20.0.49"), addresses("10.1.0.1", "10.1.0.9")
	gpu := addresses("172.20.0.16", "172.20.0.35")
	capability := func(at int) func(*world) {
		return both((*world).gpu, write("sys/module/nvidia_peermem/refcnt", "0"), func(w *world) {
			config := make([]byte, 0xff8+8)
			config[0x100] = 0x01
			config[0x102], config[0x103] = byte(at&0xf)<<4|2, byte(at>>4)
			copy(config[0xff8:], []byte{0x0d, 0x00, 0x01, 0x00, 0x00, 0x00, 0x04, 0x00})
			w.write("sys/bus/pci/devices/0000:0a:00.0/config", string(config))
			w.targets["sys/class/infiniband/mlx5_0"] = "../../devices/pci0000:0a/0000:0a:00.0/0000:0b:00.0/infiniband/mlx5_0"
		})
	}
	return []limit{
		{
			"as much locked memory as the node has", "memlock", write("proc/911/limits", limits, memory),
			write("proc/911/limits", limits, memory-1),
		},
		{"a tenth of a GID table is free", "gid-table", table(40, 36), table(40, 37)},
		{"MTU", "rdma-mtu", func(w *world) { w.link(1).MTU = 4192 }, func(w *world) { w.link(1).MTU = 4191 }},
		{"four fifths of a neighbour table", "neighbour-table", write(thresh6, "163"), write(thresh6, "162")},
		{"as many places as neighbours", "neighbour-table", peers(16, 256), peers(16, 257)},
		{
			"neighbours need twice the places", "neighbour-table", both(peers(16, 512), write(thresh4, "8192")),
			peers(16, 512),
		},
		{
			"neighbours need more than twice the usual size", "neighbour-table", both(peers(16, 513), write(thresh4, "8208")),
			peers(16, 513),
		},
		{
			"a large table that is too small", "neighbour-table", both(peers(16, 312), write(thresh4, "5000")),
			both(peers(16, 313), write(thresh4, "5000")),
		},
		{"a tenth of a pool is free", "pools", lease(18, gpu), lease(19, gpu)},
		{
			"one rail of several", "pools", lease(20, some, others, addresses("172.20.0.32", "172.20.0.41")),
			lease(20, addresses("172.20.0.16", "172.20.0.17"), others, some),
		},
		{
			"more addresses than can be counted", "pools", lease(1, addresses("fd00::", "fd00::ffff:ffff:ffff:ffff")),
			lease(20, addresses("172.20.0.34", "172.20.0.35")),
		},
		{
			"lanes", "pcie-link", both(write(nic+"current_link_width", "64"), write(nic+"max_link_width", "64")),
			both(write(nic+"current_link_width", "63"), write(nic+"max_link_width", "64")),
		},
		{"ARP that is apart", "host-arp", oneSubnet(1, 2, 0), oneSubnet(0, 2, 0)},
		{"ARP announcements", "host-arp", oneSubnet(2, 2, 2), oneSubnet(2, 1, 2)},
		{"rp_filter", "host-arp", oneSubnet(1, 2, 2), oneSubnet(1, 2, 1)},
		{
			"the last traffic class with PFC", "nic-qos", write(forced, "Global tclass=127\n"),
			write(forced, "Global tclass=128\n"),
		},
		{
			"the first traffic class with PFC", "nic-qos", write(forced, "Global tclass=96\n"),
			write(forced, "Global tclass=95\n"),
		},
		{
			"the largest traffic class", "nic-qos", write(forced, "Global tclass=256\n"),
			write(forced, "Global tclass=255\n"),
		},
		{
			"the smallest traffic class", "nic-qos", write(forced, "Global tclass=-1\n"),
			write(forced, "Global tclass=0\n"),
		},
		{"ports up to RoCE's", "firewall", firewall("4700-4790"), firewall("4700-4791")},
		{"ports are numbers", "firewall", firewall("5-479"), firewall("500-10000")},
		{
			"a table that was full is large now", "neighbour-table", both(full, write(thresh4, "16384")),
			both(full, write(thresh4, "16383")),
		},
		{"ports from RoCE's on", "firewall", firewall("{ 53, 4792-4800, x }"), firewall("{ 53, 4791-4800, x }")},
		{
			"routes that reach other places", "pool-routes",
			routes(route("0.0.0.0/0", 9), local, other, none, route("172.21.0.0/16", 9)),
			routes(route("128.0.0.0/1", 9)),
		},
		{
			"the right to write frames", "tagged-frames", func(w *world) { w.trunk("CapPrm:\td000\nNoNewPrivs:\t1\n") },
			func(w *world) { w.trunk("CapPrm:\t2000\nNoNewPrivs:\t1\n") },
		},
		{"the last capability of a bridge", "pcie-acs", capability(0xff9), capability(0xff8)},
	}
}

// TestAProblemBeginsAtItsLimit has both sides of each limit. A file has all that is said.
func TestAProblemBeginsAtItsLimit(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, l := range limits() {
		checks, err := Named(l.check)
		if err != nil {
			t.Fatal(err)
		}
		for _, side := range []struct {
			change func(*world)
			want   int
		}{{l.well, 0}, {l.ill, 1}} {
			w := healthy(t)
			side.change(w)
			answers := slices.Collect(Run(t.Context(), w.node(), checks))
			if got := report.Status(answers); got != side.want {
				t.Errorf("%s: status %d, want %d: %+v", l.name, got, side.want, answers)
			}
			fmt.Fprintf(&b, "-- %s --\n", l.name)
			if err := Write(&b, answers, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	same(t, "limits", b.String())
}

func TestThePathMTUOfRoCEIsAPowerOfTwo(t *testing.T) {
	t.Parallel()
	for mtu, want := range map[int]int{
		9000: 4096, 4192: 4096, 4191: 2048, 2144: 2048, 2143: 1024, 1120: 1024, 1119: 512, 608: 512, 607: 256, 352: 256, 351: 0,
	} {
		if got := roceMTU(mtu); got != want {
			t.Errorf("MTU %d: %d, want %d", mtu, got, want)
		}
	}
}
