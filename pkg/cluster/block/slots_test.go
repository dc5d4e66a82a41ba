// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

// keeping has 16 blocks of 16 slots on two rails, of which pods keep 64 to 95.
const keeping = `{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/24", "gateway": "10.{rail}.0.70"}, {"subnet": "fd00:{rail}::/64"}]},
	"sticky": {"ttl": "24h", "slots": "64-95"}, "reservations": [{"ranges": ["10.1.0.80/31", "10.1.0.100"], "reason": "storage"}]}`

func stickySlots(t *testing.T, spec, rack string) block.Slots {
	t.Helper()
	p := read(t, spec)
	must(t, p.Validate())
	s, err := p.Slots(rack)
	must(t, err)
	return s
}

func TestNoBlockHasASlotThatPodsKeep(t *testing.T) {
	t.Parallel()
	s, without := space(t, keeping, ""), space(t, strings.Replace(keeping, `"sticky": {"ttl": "24h", "slots": "64-95"},`, "", 1), "")
	if s.Blocks() != without.Blocks()-2 || s.Total() != without.Total()-29 || s.Slots(4)+s.Slots(5) != 0 || s.Slots(6) != 15 {
		t.Errorf("%d blocks of %d, %d slots of %d, %d and %d in block 5 and 6", s.Blocks(), without.Blocks(), s.Total(), without.Total(), s.Slots(5), s.Slots(6))
	}
	var got []int
	for n := range s.Blocks() {
		got = append(got, s.Index(n))
	}
	if want := []int{0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; !cmp.Equal(got, want) {
		t.Errorf("blocks %v", got)
	}
	store := blocktest.NewMem()
	var owned []block.Block
	for i := range s.Blocks() {
		owned = append(owned, mustClaim(t, claimer(store, i), s))
	}
	if _, err := claimer(store, 99).Claim(t.Context(), s, nil); err == nil {
		t.Error("there is one more block")
	}
	rails, err := s.Rails(append(owned, block.Block{Name: "gpu-4", Spec: block.Spec{Pool: "gpu", Index: 4, Size: 16}}))
	must(t, err)
	for i, rail := range rails {
		kept := netrange.Range{First: netip.AddrFrom4([4]byte{10, byte(i), 0, 64}), Last: netip.AddrFrom4([4]byte{10, byte(i), 0, 95})}
		if both := netrange.Clip(rail[0].Ranges, kept); len(rail[0].Ranges) == 0 || len(both) > 0 {
			t.Errorf("blocks have %v of rail %d", both, i)
		}
	}
}

func TestASlotIsOneAddressOfEverySubnet(t *testing.T) {
	t.Parallel()
	s := stickySlots(t, keeping, "")
	if s.Count() != 32-3 || s.Pool != "gpu" || s.Name(72) != "gpu-s72" {
		t.Errorf("%d slots, %s", s.Count(), s.Name(72))
	}
	for slot, want := range map[int]bool{63: false, 64: true, 70: false, 80: false, 81: false, 82: true, 95: true, 96: false, -1: false} {
		if s.Has(slot) != want {
			t.Errorf("slot %d: %t", slot, !want)
		}
	}
	var got []string
	for _, subnets := range s.Rails(72) {
		for _, subnet := range subnets {
			got = append(got, fmt.Sprint(subnet.Prefix, subnet.Ranges, subnet.Gateway, len(subnet.Exclude)))
		}
	}
	want := []string{
		"10.0.0.0/24 [10.0.0.72] 10.0.0.70 0", "fd00::/64 [fd00::48] invalid IP 0",
		"10.1.0.0/24 [10.1.0.72] 10.1.0.70 0", "fd00:1::/64 [fd00:1::48] invalid IP 0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	defer func() {
		if recover() == nil {
			t.Error("a slot that no pod may have has addresses")
		}
	}()
	s.Rails(70)
}

// Two racks have the same slots, and each its own leases of them.
func TestALeaseHasTheNameOfItsRack(t *testing.T) {
	t.Parallel()
	const spec = `{"rackLabel": "rack", "rails": [{"subnets": [{"subnet": "10.{rack}.0.0/24"}]}], "sticky": {"ttl": "1h", "slots": "64-95"}}`
	if s := stickySlots(t, spec, "7"); s.Name(72) != "gpu.7-s72" || s.Rack != "7" {
		t.Errorf("%s of rack %q", s.Name(72), s.Rack)
	}
}

func TestTheSlotOfAnAddressIsFound(t *testing.T) {
	t.Parallel()
	s := stickySlots(t, keeping, "")
	for address, want := range map[string]int{
		"10.0.0.64": 64, "10.1.0.95": 95, "fd00:1::40": 64, "10.0.0.70": 70,
		"10.0.0.63": -1, "10.0.0.96": -1, "10.2.0.64": -1, "fd00:1::": -1, "fd00::1:0:0:40": -1,
	} {
		if got, ok := s.Find(netip.MustParseAddr(address)); ok != (want >= 0) || ok && got != want {
			t.Errorf("%s: %d, %t", address, got, ok)
		}
	}
	if _, ok := (block.Slots{}).Find(netip.MustParseAddr("10.0.0.64")); ok {
		t.Error("no slots have it")
	}
}

func TestEveryPodPassesEverySlotOnceInAnOrderOfItsOwn(t *testing.T) {
	t.Parallel()
	s := stickySlots(t, keeping, "")
	firsts := map[int]bool{}
	for pod := range 40 {
		name := fmt.Sprint("db-", pod)
		order := slices.Collect(s.Order(name))
		seen := map[int]bool{}
		for _, slot := range order {
			if !s.Has(slot) {
				t.Errorf("%s tries %d", name, slot)
			}
			seen[slot] = true
		}
		if len(order) != s.Count() || len(seen) != s.Count() || !slices.Equal(order, slices.Collect(s.Order(name))) {
			t.Errorf("%s: %v", name, order)
		}
		firsts[order[0]] = true
	}
	if len(firsts) < 15 {
		t.Errorf("40 pods begin with %v", slices.Sorted(maps.Keys(firsts)))
	}
	if n := len(slices.Collect((block.Slots{}).Order("db-0"))); n != 0 {
		t.Errorf("no slots are passed as %d", n)
	}
}

func TestAPoolWithoutStickyKeepsNoSlots(t *testing.T) {
	t.Parallel()
	if s := stickySlots(t, flat, ""); s.Count() != 0 || s.Has(0) {
		t.Errorf("%d slots", s.Count())
	}
	if _, _, ok := read(t, flat).Terms(); ok {
		t.Error("it has terms")
	}
	if ttl, rest, ok := read(t, keeping).Terms(); !ok || ttl != 24*time.Hour || rest != 2*time.Minute {
		t.Errorf("%v, %v, %t", ttl, rest, ok)
	}
	if ttl, rest, ok := read(t, strings.Replace(keeping, "24h", "soon", 1)).Terms(); !ok || ttl != 30*24*time.Hour || rest != ttl {
		t.Errorf("of a fault: %v, %v, %t", ttl, rest, ok)
	}
	if _, err := read(t, `{}`).Slots(""); err == nil {
		t.Error("a pool with faults has slots")
	}
}

func TestHostIndexesThatCannotBeStickyAreRefused(t *testing.T) {
	t.Parallel()
	for sticky, want := range map[string]string{
		`{"ttl": "24h", "slots": "64-95"}`:          "",
		`{"ttl": "24h", "slots": "0-15"}`:           "",
		`{"ttl": "24h", "slots": "240-255"}`:        "",
		`{"ttl": "2m", "slots": "64-95"}`:           "",
		`{"slots": "64-95"}`:                        `"spec.sticky.ttl"`,
		`{"ttl": "1m59s", "slots": "64-95"}`:        `"spec.sticky.ttl": 1m59s is less than the quarantine`,
		`{"ttl": "721h", "slots": "64-95"}`:         `"spec.sticky.ttl": 721h is not in`,
		`{"ttl": "24h"}`:                            `"spec.sticky.slots": "" is not a range`,
		`{"ttl": "24h", "slots": "95-64"}`:          `"95-64" is not a range`,
		`{"ttl": "24h", "slots": "64"}`:             `"64" is not a range`,
		`{"ttl": "24h", "slots": "-64"}`:            `"-64" is not a range`,
		`{"ttl": "24h", "slots": "64-95-99"}`:       `"64-95-99" is not a range`,
		`{"ttl": "24h", "slots": "64- 95"}`:         `"64- 95" is not a range`,
		`{"ttl": "24h", "slots": "65-95"}`:          `65-95 begins or ends inside a block of 16 host indexes`,
		`{"ttl": "24h", "slots": "64-94"}`:          `64-94 begins or ends inside a block of 16 host indexes`,
		`{"ttl": "24h", "slots": "64-271"}`:         `the ranges of 10.0.0.0/24 do not contain all of 64-271`,
		`{"ttl": "24h", "slots": "64-16777231"}`:    `16777231 is beyond all blocks`,
		`{"ttl": "24h", "slots": "64-16777216"}`:    `16777216 is beyond all blocks`,
		`{"ttl": "24h", "slots": "64-99999999999"}`: `is not a range`,
	} {
		spec := fmt.Sprintf(`{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/24"}, {"subnet": "fd00:{rail}::/64"}]}, "sticky": %s}`, sticky)
		err := read(t, spec).Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", sticky, err, want)
		}
	}
}

func TestTheRemedyForSlotsInsideABlockIsWholeBlocks(t *testing.T) {
	t.Parallel()
	one := strings.Replace(strings.Replace(keeping, "64-95", "64-64", 1), `"sticky"`, `"blockSize": 1, "sticky"`, 1)
	if s := stickySlots(t, one, ""); s.Count() != 1 || !s.Has(64) {
		t.Errorf("one slot: %d", s.Count())
	}
	for slots, want := range map[string]string{"65-94": "write 64-95,", "64-80": "write 64-95,", "64-17000000": "up to 16777215"} {
		err := read(t, strings.Replace(keeping, "64-95", slots, 1)).Validate()
		if e := cnierr.CNI("", err); e == nil || !strings.Contains(e.Details, want) {
			t.Errorf("%s: %+v, want %s", slots, e, want)
		}
	}
}

func TestStickyHostIndexesMustBeInAllRails(t *testing.T) {
	t.Parallel()
	for subnets, want := range map[string]string{
		`[{"subnet": "10.1.0.0/24", "ranges": ["10.1.0.32-10.1.0.79", "10.1.0.80-10.1.0.200"]}]`: "",
		`[{"subnet": "10.1.0.0/24", "ranges": ["10.1.0.32-10.1.0.79", "10.1.0.81-10.1.0.200"]}]`: "the ranges of 10.1.0.0/24 do not contain all of 64-95",
		`[{"subnet": "10.1.0.0/26"}]`: "the ranges of 10.1.0.0/26 do not contain all of 64-95",
		`[{"subnet": "10.0.0.0/24"}]`: "two rails share 10.0.0.0/24",
	} {
		spec := fmt.Sprintf(`{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}, {"subnets": %s}], "sticky": {"ttl": "1h", "slots": "64-95"}}`, subnets)
		err := read(t, spec).Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", subnets, err, want)
		}
		if want != "" && err != nil && strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("%s: said more than once: %v", subnets, err)
		}
	}
}
