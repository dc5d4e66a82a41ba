// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// owned is block index of a space.
func owned(s block.Space, rack string, size int, index ...int) []block.Block {
	var out []block.Block
	for _, i := range index {
		out = append(out, block.Block{Name: s.Name(i), Spec: block.Spec{Pool: "gpu", Rack: rack, Index: i, Size: size}})
	}
	return out
}

// text prints rails as "subnet ranges -exclude via gateway".
func text(rails [][]pool.Subnet) [][]string {
	var out [][]string
	for _, subnets := range rails {
		var line []string
		for _, s := range subnets {
			l := fmt.Sprint(s.Prefix, s.Ranges)
			if len(s.Exclude) > 0 {
				l += fmt.Sprint(" -", s.Exclude)
			}
			if s.Gateway.IsValid() {
				l += " via " + s.Gateway.String()
			}
			line = append(line, l)
		}
		out = append(out, line)
	}
	return out
}

func TestABlockIsTheSameSlotsOnEveryRail(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spec, rack string
		blocks     int
		index      []int
		slots      int // of the first index
		name       string
		want       [][]string
	}{
		"rails by template": {
			spec:   `{"template": {"count": 2, "subnets": [{"subnet": "172.16.{rail+11}.0/24", "gateway": "172.16.{rail+11}.254"}]}}`,
			blocks: 16, index: []int{15}, slots: 14, name: "gpu-15",
			want: [][]string{{"172.16.11.0/24 [172.16.11.240-172.16.11.255] via 172.16.11.254"}, {"172.16.12.0/24 [172.16.12.240-172.16.12.255] via 172.16.12.254"}},
		},
		"ranges and excludes of each rail": {
			spec: `{"rails": [
				{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.36-10.0.0.200"], "exclude": ["10.0.0.0/27", "10.0.0.40"]}]},
				{"subnets": [{"subnet": "10.1.0.0/24", "ranges": ["10.1.0.32-10.1.0.99"], "exclude": ["10.1.0.41-10.1.0.44"]}]}],
				"reservations": [{"ranges": ["10.1.0.47"], "reason": "storage"}]}`,
			blocks: 5, index: []int{2}, slots: 6, name: "gpu-2",
			want: [][]string{{"10.0.0.0/24 [10.0.0.36-10.0.0.47] -[10.0.0.40]"}, {"10.1.0.0/24 [10.1.0.32-10.1.0.47] -[10.1.0.41-10.1.0.44 10.1.0.47]"}},
		},
		"a subnet that is smaller than a block": {
			spec:   `{"rails": [{"subnets": [{"subnet": "10.0.0.8/29"}]}]}`,
			blocks: 1, index: []int{0}, slots: 6, name: "gpu-0",
			want: [][]string{{"10.0.0.8/29 [10.0.0.8-10.0.0.15]"}},
		},
		"a block that one rail has not is none": {
			spec: `{"blockSize": 4, "rails": [
				{"subnets": [{"subnet": "10.0.0.0/28", "exclude": ["10.0.0.4-10.0.0.7"]}]}, {"subnets": [{"subnet": "10.1.0.0/24"}]}]}`,
			blocks: 3, index: []int{0, 2}, slots: 3, name: "gpu-0",
			want: [][]string{{"10.0.0.0/28 [10.0.0.0-10.0.0.3 10.0.0.8-10.0.0.11]"}, {"10.1.0.0/24 [10.1.0.0-10.1.0.3 10.1.0.8-10.1.0.11]"}},
		},
		"both families": {
			spec:   `{"rails": [{"subnets": [{"subnet": "10.0.0.0/26"}, {"subnet": "fd00:0:0:{rack}::/64", "gateway": "fd00:0:0:{rack}::11"}]}], "rackLabel": "rack"}`,
			rack:   "7",
			blocks: 4, index: []int{1}, slots: 15, name: "gpu.7-1",
			want: [][]string{{"10.0.0.0/26 [10.0.0.16-10.0.0.31]", "fd00:0:0:7::/64 [fd00:0:0:7::10-fd00:0:0:7::1f] via fd00:0:0:7::11"}},
		},
		"IPv6 alone has as many as are allowed": {
			spec:   `{"rails": [{"subnets": [{"subnet": "fd00::/32"}]}]}`,
			blocks: block.MaxBlocks, index: []int{block.MaxBlocks - 1}, slots: 16, name: "gpu-1048575",
			want: [][]string{{"fd00::/32 [fd00::ff:fff0-fd00::ff:ffff]"}},
		},
		"a table of racks": {
			spec: `{"rackLabel": "rack", "racks": [
				{"name": "a", "rails": [{"subnets": [{"subnet": "10.0.0.0/27"}]}]},
				{"name": "b", "rails": [{"subnets": [{"subnet": "10.0.1.0/26"}]}]}]}`,
			rack:   "b",
			blocks: 4, index: []int{3}, slots: 15, name: "gpu.b-3",
			want: [][]string{{"10.0.1.0/26 [10.0.1.48-10.0.1.63]"}},
		},
		"a subnet smaller than a block": {
			spec:   `{"template": {"count": 1, "subnets": [{"subnet": "10.{rail}.{rack*2}.0/29"}]}, "rackLabel": "rack"}`,
			rack:   "9",
			blocks: 1, index: []int{0}, slots: 6, name: "gpu.9-0",
			want: [][]string{{"10.0.18.0/29 [10.0.18.0-10.0.18.7]"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "both families" { // the IPv4 subnet is the same in every rack
				p := read(t, tt.spec)
				if err := p.Validate(); err == nil {
					t.Error("racks share a subnet, and no error says so")
				}
				p.Spec.Rails[0].Subnets[0].Subnet = "10.0.{rack}.0/26"
				if err := p.Validate(); err != nil {
					t.Error(err)
				}
			}
			p := read(t, tt.spec)
			s, err := p.Space(tt.rack)
			must(t, err)
			size := p.Spec.BlockSize
			if size == 0 {
				size = block.DefaultSize
			}
			rails, err := s.Rails(owned(s, tt.rack, size, tt.index...))
			if diff := cmp.Diff(tt.want, text(rails)); err != nil || diff != "" {
				t.Errorf("error %v, (-want +got)\n%s", err, diff)
			}
			if got := s.Blocks(); got != tt.blocks {
				t.Errorf("%d blocks, want %d", got, tt.blocks)
			}
			if got := s.Slots(tt.index[0]); got != tt.slots {
				t.Errorf("%d slots, want %d", got, tt.slots)
			}
			if got := s.Name(tt.index[0]); got != tt.name {
				t.Errorf("name %q, want %q", got, tt.name)
			}
		})
	}
}

// Reservations may overlap, and name addresses of several rails or of none.
func TestAReservedAddressCountsOnce(t *testing.T) {
	t.Parallel()
	s := space(t, `{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/24", "exclude": ["10.{rail}.0.7"]}]},
		"reservations": [{"ranges": ["10.0.0.4/30", "10.1.0.255-10.2.0.9"], "reason": "a"}, {"ranges": ["10.0.0.6-10.0.0.9"], "reason": "b"}]}`, "")
	if got := s.Reserved(); got != 6+1 {
		t.Errorf("%d addresses are reserved, want 10.0.0.4 to 10.0.0.9 and 10.1.0.255", got)
	}
	shared := space(t, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}, {"subnets": [{"subnet": "10.0.0.0/24"}]}], "reservations": [{"ranges": ["10.0.0.4"], "reason": ""}]}`, "")
	if got := shared.Reserved(); got != 1 {
		t.Errorf("%d addresses are reserved of a subnet that two rails share", got)
	}
	rails, err := s.Rails(owned(s, "", 16, 0))
	want := [][]string{{"10.0.0.0/24 [10.0.0.0-10.0.0.15] -[10.0.0.4-10.0.0.9]"}, {"10.1.0.0/24 [10.1.0.0-10.1.0.15] -[10.1.0.7]"}}
	if diff := cmp.Diff(want, text(rails)); err != nil || diff != "" {
		t.Errorf("error %v, (-want +got)\n%s", err, diff)
	}
}

// usable is what pods may have of a subnet.
func usable(s pool.Subnet) []netrange.Range {
	holes := append([]netrange.Range{{First: s.Gateway, Last: s.Gateway}}, s.Exclude...)
	if !s.Gateway.IsValid() {
		holes = holes[1:]
	}
	for a := range netrange.Unusable(s.Prefix) {
		holes = append(holes, netrange.Range{First: a, Last: a})
	}
	return netrange.Minus(s.Ranges, holes)
}

func TestBlocksShareNoAddressAndLeaveNoneOut(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 3, 16, 100} {
		s := space(t, fmt.Sprintf(`{"blockSize": %d, "rails": [
			{"subnets": [{"subnet": "10.0.0.0/22", "ranges": ["10.0.0.10-10.0.1.7", "10.0.2.0-10.0.2.99"], "exclude": ["10.0.0.64/27"], "gateway": "10.0.0.99"}]},
			{"subnets": [{"subnet": "10.1.0.0/22", "ranges": ["10.1.0.10-10.1.1.7", "10.1.2.0-10.1.2.99"], "exclude": ["10.1.0.64/27"], "gateway": "10.1.0.99"}]}]}`, size), "")
		var sum int64
		seen := map[netip.Addr]int{}
		for n := range s.Blocks() {
			index := s.Index(n)
			rails, err := s.Rails(owned(s, "", size, index))
			must(t, err)
			have := usable(rails[0][0])
			if got := netrange.Count(have); got.Cmp(big.NewInt(int64(s.Slots(index)))) != 0 {
				t.Errorf("size %d: block %d has %v addresses and %d slots", size, index, got, s.Slots(index))
			}
			sum += netrange.Count(have).Int64()
			for _, r := range have {
				for a := r.First; r.Contains(a); a = a.Next() {
					if other, twice := seen[a]; twice {
						t.Fatalf("size %d: blocks %d and %d have %v", size, other, index, a)
					}
					seen[a] = index
				}
			}
		}
		if want := int64(254 + 100 - 32 - 1); sum != want { // 10.0.0.10 to 10.0.1.7 are 254
			t.Errorf("size %d: %d addresses in all blocks, want %d", size, sum, want)
		}
	}
}

func TestABlockStaysWhatItIsWhenMoreIsExcluded(t *testing.T) {
	t.Parallel()
	const spec = `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "exclude": ["10.0.0.0-10.0.0.%d"]}]}]}`
	few, many := space(t, fmt.Sprintf(spec, 3), ""), space(t, fmt.Sprintf(spec, 70), "")
	if few.Blocks() != 16 || many.Blocks() != 12 {
		t.Errorf("%d and %d blocks, want 16 and 12", few.Blocks(), many.Blocks())
	}
	a, errA := few.Rails(owned(few, "", 16, 9))
	b, errB := many.Rails(owned(many, "", 16, 9))
	if diff := cmp.Diff(text(a), text(b)); errA != nil || errB != nil || diff != "" {
		t.Errorf("errors %v, %v, (-few +many)\n%s", errA, errB, diff)
	}
	// Block 0 is all excluded now: it counts for nothing.
	c, err := many.Rails(owned(many, "", 16, 0, 9))
	if diff := cmp.Diff(text(b), text(c)); err != nil || diff != "" {
		t.Errorf("error %v, (-without +with block 0)\n%s", err, diff)
	}
}

func TestBlocksOfAnotherPoolRackOrSizeAreRefused(t *testing.T) {
	t.Parallel()
	s := space(t, `{"rails": [{"subnets": [{"subnet": "10.0.{rack}.0/24"}]}], "rackLabel": "rack"}`, "1")
	for name, change := range map[string]func(*block.Block){
		"pool":  func(b *block.Block) { b.Spec.Pool = "other" },
		"rack":  func(b *block.Block) { b.Spec.Rack = "2" },
		"size":  func(b *block.Block) { b.Spec.Size = 32 },
		"index": func(b *block.Block) { b.Spec.Index = 4 },
	} {
		b := owned(s, "1", 16, 3)
		change(&b[0])
		if rails, err := s.Rails(b); err == nil {
			t.Errorf("another %s: %v", name, text(rails))
		}
	}
}

func TestNodesThatAreNumberedHaveDifferentHints(t *testing.T) {
	t.Parallel()
	s := space(t, flat, "")
	seen := map[int]bool{}
	for i := range s.Blocks() {
		own := netip.AddrFrom4([4]byte{10, 3, byte((i + 1) >> 8), byte(i + 1)})
		n, ok := s.Hint([]netip.Addr{netip.MustParseAddr("192.0.2.1"), own})
		if !ok || seen[n] || n < 0 || n >= s.Blocks() {
			t.Fatalf("%v: hint %d, %t", own, n, ok)
		}
		seen[n] = true
	}
	if _, ok := s.Hint([]netip.Addr{netip.MustParseAddr("192.0.2.1")}); ok {
		t.Error("an address that is on no rail is a hint")
	}
}

// TestRoomTellsWholeBlocksFromCutOnes counts the slots of each block one by one, too.
func TestRoomTellsWholeBlocksFromCutOnes(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		`{"template": {"count": 8, "subnets": [{"subnet": "10.{rail}.0.0/20"}]}}`: "room for 254 nodes of 16 pods and for 2 with fewer, 4094 pods in all",
		// The first block has 1, 2 and 3, and the last one 200.
		`{"blockSize": 4, "rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.1-10.0.0.200"]}]}]}`:                                          "room for 49 nodes of 4 pods and for 2 with fewer, 200 pods in all",
		`{"blockSize": 4, "rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.8-10.0.0.23"]}]}]}`:                                           "room for 4 nodes of 4 pods",
		`{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.5-10.0.0.9"]}]}]}`:                                                            "room for 0 nodes of 16 pods and for 1 with fewer, 5 pods in all",
		`{"rails": [{"subnets": [{"subnet": "10.0.0.0/26", "exclude": ["10.0.0.20"]}, {"subnet": "fd00::/64", "gateway": "fd00::31"}]}]}`:                   "room for 1 node of 16 pods and for 3 with fewer, 60 pods in all",
		`{"rackLabel": "rack", "rails": [{"subnets": [{"subnet": "10.{rack}.0.0/26", "ranges": ["10.{rack}.0.16/28", "10.{rack}.0.32-10.{rack}.0.40"]}]}]}`: "room for 1 node of 16 pods and for 1 with fewer, 25 pods in all, in each rack",
	} {
		p := read(t, spec)
		if got, err := p.Room(); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", spec, got, err, want)
		}
		rack := ""
		if p.Spec.RackLabel != "" {
			rack = "1"
		}
		s := space(t, spec, rack)
		whole, slots := 0, 0
		for n := range s.Blocks() {
			size := s.Slots(s.Index(n))
			slots += size
			if size == 16 || p.Spec.BlockSize == 4 && size == 4 {
				whole++
			}
		}
		if begins := strings.Replace(fmt.Sprintf("room for %d nodes of ", whole), "for 1 nodes", "for 1 node", 1); !strings.HasPrefix(want, begins) || slots != s.Total() {
			t.Errorf("%s: %d of %d slots, %q", spec, slots, s.Total(), begins)
		}
	}
}

func TestRoomIsTheSumOfTheRacksOfATable(t *testing.T) {
	t.Parallel()
	table := `{"rackLabel": "rack", "racks": [{"name": "a", "rails": [{"subnets": [{"subnet": "10.0.0.0/26"}]}]}, {"name": "b", "rails": [{"subnets": [{"subnet": "10.0.1.0/27"}]}]}]}`
	if got, err := read(t, table).Room(); err != nil || got != "room for 2 nodes of 16 pods and for 4 with fewer, 92 pods in all, in 2 racks" {
		t.Errorf("%q, error %v", got, err)
	}
	if got, err := read(t, `{}`).Room(); err == nil {
		t.Errorf("a pool with faults has %q", got)
	}
}

func TestTheSlotsOfABlockEndWhenTheCallerHasEnough(t *testing.T) {
	t.Parallel()
	s := space(t, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "exclude": ["10.0.0.20-10.0.0.23"]}]}]}`, "")
	if got, want := slices.Collect(s.Open(1)), []int{16, 17, 18, 19, 24, 25, 26, 27, 28, 29, 30, 31}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for n := range s.Open(1) {
		if n == 25 {
			break
		}
	}
}
