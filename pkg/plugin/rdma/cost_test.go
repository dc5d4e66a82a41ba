// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// What an ADD may cost.
const (
	discoveryTrips = 2 // netlink, whatever the number of devices
	discoveryReads = 2 // links of sysfs, whatever the number of devices and GIDs
	checkTrips     = 2 // netlink, for the port
)

// rails returns a node of n devices, mlx5_0 and so on, each with a GID table of
// size places of which the first used are in use, as mlx5 fills them: an entry
// of RoCE v1 and one of v2 for each address.
func rails(n, size, used int) (*node, fstest.MapFS) {
	out := &node{}
	sys := fstest.MapFS{"devices/x/subsystem": symlink("../../bus/pci")}
	for i := range n {
		name := fmt.Sprintf("mlx5_%d", i)
		out.devices = append(out.devices, roce(uint32(i), name, int32(10+i), fmt.Sprintf("ens%d", i)))
		places := make([]string, size)
		for p := range used {
			kind := v1
			if p%2 == 1 {
				kind = v2
			}
			places[p] = kind(netip.AddrFrom4([4]byte{10, byte(i), 0, byte(p / 2)}).String())
		}
		sys = merge(sys, sysfs(name, places...))
		sys["class/infiniband/"+name+"/device"] = symlink("../../../devices/x")
	}
	return out, sys
}

// TestAPlaceIsFoundWithoutTheWholeTable: a whole table took a file for each place, and two more
// for each entry: 336 of mlx5's with 40 entries.
func TestAPlaceIsFoundWithoutTheWholeTable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size, used, most int
		full             bool
	}{{256, 0, 3, false}, {256, 40, 43, false}, {256, 254, 257, false}, {256, 255, 1100, true}, {256, 256, 1100, true}, {1, 0, 9, true}} {
		n, sys := rails(1, c.size, c.used)
		reads := 0
		s := n.subsystem(t, counting{sys, &reads})
		err := s.HasPlace(plan.RDMADevice{Name: "mlx5_0", Port: 1})
		if (cnierr.CodeOf(err) == cnierr.NoGID) != c.full || reads > c.most {
			t.Errorf("%d of %d entries: %v after %d reads, want %d at most", c.used, c.size, err, reads, c.most)
		}
	}
	if err := (&node{}).subsystem(t, fstest.MapFS{}).HasPlace(plan.RDMADevice{Name: "mlx5_0", Port: 1}); err != nil {
		t.Errorf("a table that cannot be read: %v", err)
	}
}

func TestDiscoveryCostsTheSameOnAnyNode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ devices, size, used int }{{1, 16, 2}, {8, 256, 200}, {8, 256, 256}, {32, 16, 0}} {
		n, sys := rails(c.devices, c.size, c.used)
		reads := 0
		s := n.subsystem(t, counting{sys, &reads})
		last := c.devices - 1
		facts, err := s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, plan.Link{Layers: [][]int32{{int32(10 + last)}}}, false)
		if err != nil || facts.Device.Index != uint32(last) {
			t.Fatalf("got %+v, %v", facts, err)
		}
		if n.trips != discoveryTrips || reads != discoveryReads {
			t.Errorf("%+v: %d round trips and %d reads, want %d and %d", c, n.trips, reads, discoveryTrips, discoveryReads)
		}
		n.trips, reads = 0, 0
		if err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: plan.Port{Device: facts.Device}}); err != nil || n.trips != checkTrips || reads != 0 {
			t.Errorf("%+v: port: %v, %d round trips and %d reads", c, err, n.trips, reads)
		}
	}
}

// TestGIDLookupReadsOnlyEntriesThatAreOlder asserts that the lookup reads no place behind
// ours, and a look at which ours is not there only some more: the cost is that of the
// entries that were there before us.
func TestGIDLookupReadsOnlyEntriesThatAreOlder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ size, used, place int }{{256, 200, 3}, {256, 200, 101}, {256, 256, 255}, {16, 16, 3}, {1024, 4, 3}} {
		n, sys := rails(8, c.size, c.used)
		reads := 0
		s := n.subsystem(t, counting{sys, &reads})
		addr := fmt.Sprintf("10.7.0.%d", c.place/2)
		op := wait(addr)
		op.Device.Name = "mlx5_7"
		after := maps.Clone(sys)
		for i := range 2 { // our v1 and v2 entries are not there yet
			sys[fmt.Sprintf("class/infiniband/mlx5_7/ports/1/gids/%d", c.place-i)] = &fstest.MapFile{Data: []byte("::")}
		}
		if err := s.LookBefore(plan.OnHost(op), setting("net1", addr)); err != nil || reads > min(c.used+gidtable.UnusedRun, c.size)+2 {
			t.Errorf("%+v: %v in %d reads before the address is set", c, err, reads)
		}
		reads = 0
		synctest.Test(t, func(t *testing.T) {
			ended, cancel := context.WithCancel(t.Context())
			cancel() // after one look
			r := plan.AlignRail{Link: "net1", Device: op.Device, Wait: time.Hour}
			if _, err := s.Place(ended, r, addrs(addr), nil); err == nil || reads > min(c.used+gidtable.UnusedRun, c.size)+2 {
				t.Errorf("%+v: %v in %d reads while the entries are missing", c, err, reads)
			}
		})
		maps.Copy(sys, after)
		reads = 0
		if err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil || s.Located()[netip.MustParseAddr(addr)] != c.place {
			t.Fatalf("got %v, %v", s.Located(), err)
		}
		// One for the folder, one for each place up to ours, the types of our v1 and v2
		// entries, and the interface of the latter.
		if want := 1 + c.place + 1 + 3; reads != want || n.trips != 0 {
			t.Errorf("%+v: %d reads and %d round trips, want %d and none", c, reads, n.trips, want)
		}
	}
}

// BenchmarkDiscovery finds the last of 8 devices with 256 GIDs each; netlink
// answers from memory.
func BenchmarkDiscovery(b *testing.B) {
	n, sys := rails(8, 256, 256)
	s := New(Config{Sys: sys})
	s.c.Dial, s.mount = n.dial, n.mount
	defer s.Close()
	for b.Loop() {
		if _, err := s.Facts(b.Context(), conf.RDMA{}, plan.Link{Layers: [][]int32{{17}}}, false); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n.trips)/float64(b.N), "trips/op")
}

// BenchmarkGIDLookup finds the last entry of a full table of 256, and one of
// the first, in files in memory.
func BenchmarkGIDLookup(b *testing.B) {
	for _, place := range []int{3, 255} {
		b.Run(fmt.Sprintf("place=%d", place), func(b *testing.B) {
			_, sys := rails(8, 256, 256)
			t := gidtable.New(sys, "mlx5_7", 1)
			addr := []netip.Addr{netip.AddrFrom4([4]byte{10, 7, 0, byte(place / 2)})}
			b.ReportAllocs()
			for b.Loop() {
				if _, all, err := t.Settled(gidtable.Interface{Name: "net1", Alone: true}, addr, nil); !all || err != nil {
					b.Fatal(all, err)
				}
			}
		})
	}
}
