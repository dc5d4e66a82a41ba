// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// rail is net1 on mlx5_0.
func rail(wait time.Duration) plan.AlignRail {
	return plan.AlignRail{Link: "net1", Device: plan.RDMADevice{Name: "mlx5_0", Port: 1}, Wait: wait}
}

func TestPlaceFindsWhatOnlyThePodSees(t *testing.T) {
	t.Parallel()
	n := &node{}
	pod := sysfs("mlx5_0", "", v1("172.16.0.11"), v2("172.16.0.11"), v2("172.16.0.11"), v1("169.254.77.0"), v2("169.254.77.0"))
	s := n.subsystem(t, hiding{n, sysfs("mlx5_0", v2("fe80::1"), "", "", "", ""), pod})
	at, err := s.Place(t.Context(), rail(time.Second), addrs("169.254.77.0", "172.16.0.11"), addrs("172.16.0.12"))
	if diff := cmp.Diff(map[netip.Addr]int{addrs("172.16.0.11")[0]: 2, addrs("169.254.77.0")[0]: 5}, at, cmp.Comparer(func(x, y netip.Addr) bool { return x == y })); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

func TestPlaceWaitsUntilAnOldEntryIsGone(t *testing.T) {
	t.Parallel()
	s := (&node{}).subsystem(t, sysfs("mlx5_0", v2("fe80::1"), v1("172.16.0.12"), v2("172.16.0.11"), ""))
	for _, set := range [][]netip.Addr{addrs("172.16.0.11"), nil} {
		if _, err := s.Place(t.Context(), rail(time.Millisecond), set, addrs("172.16.0.12")); cnierr.CodeOf(err) != cnierr.NoGID {
			t.Errorf("the old entry is there: got %v, want code %d", err, cnierr.NoGID)
		}
	}
	_, err := s.Place(t.Context(), rail(time.Millisecond), addrs("172.16.0.11", "172.16.0.13"), nil)
	if cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(err.Error(), "172.16.0.13") {
		t.Errorf("the new entry is missing: got %v, want code %d that names it", err, cnierr.NoGID)
	}
	_, err = (&node{}).subsystem(t, fstest.MapFS{}).Place(t.Context(), rail(time.Millisecond), addrs("172.16.0.13"), nil)
	if cnierr.CodeOf(err) != cnierr.NoRDMA {
		t.Errorf("there is no device: got %v, want code %d", err, cnierr.NoRDMA)
	}
}

func TestATableHasAPlaceIfAnAddressFits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sys  fstest.MapFS
		fits bool
	}{
		"one place, RoCE v2 alone":  {sysfs("mlx5_0", v2("fe80::1"), "", v2("10.0.0.1")), true},
		"one place, RoCE v1 too":    {sysfs("mlx5_0", v1("fe80::1"), v2("fe80::1"), ""), false},
		"two places":                {sysfs("mlx5_0", v1("fe80::1"), v2("fe80::1"), "", ""), true},
		"no place":                  {sysfs("mlx5_0", v2("fe80::1"), v2("10.0.0.1")), false},
		"a table that is not there": {sysfs("mlx5_1", v2("fe80::1")), true},
	} {
		err := (&node{}).subsystem(t, c.sys).HasPlace(rail(0).Device)
		if (err == nil) != c.fits || err != nil && (cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(err.Error(), "its GID table is full: 2 of ")) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestATableThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	sys := sysfs("mlx5_0", v2("fe80::1"), "")
	sys["class/infiniband/mlx5_0/ports/1/gids/1"] = &fstest.MapFile{Data: []byte("?\n")}
	s := (&node{}).subsystem(t, sys)
	op := wait("172.16.0.11")
	_, placed := s.Place(t.Context(), rail(time.Second), addrs("172.16.0.11"), nil)
	_, _, listed := s.Table(plan.Host, plan.Pod, "mlx5_0", 1)
	for name, err := range map[string]error{
		"place": placed, "table": listed, "look": s.Look(rail(time.Second), addrs("172.16.0.11"), 0),
		"look before": s.LookBefore(plan.OnHost(op), setting("net1", "172.16.0.11")),
		"wait":        s.Do(t.Context(), plan.OnHost(op)[0]), "check": s.Check(t.Context(), plan.OnHost(op)[0]),
	} {
		if cnierr.CodeOf(err) != cnierr.IO {
			t.Errorf("%s: got %v, want code %d", name, err, cnierr.IO)
		}
	}
}

func TestBeforeReadsABeginningOfTheTable(t *testing.T) {
	t.Parallel()
	reads := 0
	s := (&node{}).subsystem(t, counting{sysfs("mlx5_0", v2("fe80::1"), "", v2("172.16.0.11"), v2("172.16.0.12")), &reads})
	d := plan.RDMADevice{Name: "mlx5_0", Port: 1}
	entries, size, err := s.Before(plan.Pod, d, 3)
	if err != nil || size != 3 || len(entries) != 2 || entries[1].Index != 2 || reads > 1+3+2*2 {
		t.Errorf("got %v, %d, %v in %d reads", entries, size, err, reads)
	}
	if _, size, err := s.Before(plan.Host, d, 9); err != nil || size != 4 {
		t.Errorf("got the size %d, %v, want that of the table, 4", size, err)
	}
}
