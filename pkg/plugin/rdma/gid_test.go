// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// entry returns a place of a table as sysfs takes it.
func entry(addr, kind, netdev string) string {
	return plan.GIDText(netip.MustParseAddr(addr)) + " " + kind + "," + netdev
}

func v2(addr string) string { return entry(addr, "RoCE v2", "net1") }
func v1(addr string) string { return entry(addr, "IB/RoCE v1", "net1") }

func wait(addrs ...string) plan.GID {
	op := plan.GID{Mode: conf.Require, Device: plan.RDMADevice{Name: "mlx5_0", Port: 1}, Wait: 2 * time.Second}
	for _, a := range addrs {
		op.Targets = append(op.Targets, plan.GIDTarget{Link: "net1", Addr: netip.MustParseAddr(a)})
	}
	return op
}

// here is a pod's namespace that is the caller's.
func here(fn func() error) error { return fn() }

// hiding is the sysfs of a driver that shows each namespace its own entries.
type hiding struct {
	n         *node
	host, pod fs.FS
}

func (h hiding) Open(name string) (fs.File, error) {
	if h.n.entered {
		return h.pod.Open(name)
	}
	return h.host.Open(name)
}

func TestGIDsThatOnlyThePodSeesAreFoundAndChecked(t *testing.T) {
	t.Parallel()
	n := &node{}
	host := sysfs("mlx5_0", v2("fe80::1"), "", "", "", "")
	s := n.subsystem(t, hiding{n, host, sysfs("mlx5_0", "", "", "", v2("172.16.0.11"), "")})
	op := wait("172.16.0.11")
	if err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil || s.Located()[op.Targets[0].Addr] != 3 {
		t.Fatalf("located %v, %v, want place 3", s.Located(), err)
	}
	done := plan.OnHost(op).Located(s.Located())[0]
	if err := s.Check(t.Context(), done); err != nil {
		t.Errorf("check of what was just done: %v", err)
	}
	host["class/infiniband/mlx5_0/ports/1/gids/4"] = &fstest.MapFile{Data: []byte(plan.GIDText(op.Targets[0].Addr))}
	host["class/infiniband/mlx5_0/ports/1/gid_attrs/types/4"] = &fstest.MapFile{Data: []byte("RoCE v2")}
	host["class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/4"] = &fstest.MapFile{Data: []byte("ens1")}
	if err := s.Check(t.Context(), done); cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), "index 3 of net1, index 4 of ens1") {
		t.Errorf("the host has the address, too: got %v", err)
	}
}

// TestATableThatCannotBeCountedMayBeFull has three places that the host sees
// used, and one that neither the host nor the pod sees.
func TestATableThatCannotBeCountedMayBeFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &node{}
		s := New(Config{Enter: n.enter, Sys: hiding{n, sysfs("mlx5_0", v2("fe80::1"), v2("10.0.0.1"), ""), sysfs("mlx5_0", "", "", "")}})
		err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: wait("172.16.0.11")})
		more := New(Config{Enter: n.enter, Sys: hiding{n, sysfs("mlx5_0", v2("fe80::1"), "", ""), sysfs("mlx5_0", v2("fe80::1"), v2("fe80::2"), "")}})
		if err := more.Do(t.Context(), plan.Op{Place: plan.Host, Kind: wait("172.16.0.11")}); !strings.Contains(fmt.Sprint(err), "may be full") {
			t.Errorf("the pod sees more than the host: got %v", err)
		}
		if cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(err.Error(), "may be full") || !strings.Contains(err.Error(), "2 of 3 entries") ||
			!strings.Contains(hintOf(err), `"unable to add gid" with error=-28`) {
			t.Errorf("got %v, hint %q", err, hintOf(err))
		}
		s = New(Config{Enter: n.enter, Sys: hiding{n, sysfs("mlx5_0", v2("fe80::1"), ""), sysfs("mlx5_0", "", v2("fe80::2"))}})
		if err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: wait("172.16.0.11")}); !strings.Contains(fmt.Sprint(err), "is full: 2 of 2") {
			t.Errorf("both together see all places used: got %v", err)
		}
	})
}

func TestGIDsAreFoundByAddressAndType(t *testing.T) {
	t.Parallel()
	sys := sysfs("mlx5_0",
		v1("fe80::1"), v2("fe80::1"), "", v1("10.0.0.1"), v2("10.0.0.1"),
		v1("172.16.0.11"), v2("172.16.0.11"), v2("fd00::11"), entry("172.16.0.11", "RoCE v2", "eth7"), "")
	s := (&node{}).subsystem(t, sys)
	must(t, s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: wait("172.16.0.11", "fd00::11")}))
	want := map[netip.Addr]int{netip.MustParseAddr("172.16.0.11"): 6, netip.MustParseAddr("fd00::11"): 7}
	if diff := cmp.Diff(want, s.Located(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestAGIDThatIsWaitedForAgainIsLookedForAgain has the entry at another index when ADD makes
// the interface again with the same address.
func TestAGIDThatIsWaitedForAgainIsLookedForAgain(t *testing.T) {
	t.Parallel()
	sys := sysfs("mlx5_0", v2("10.0.0.1"), v2("172.16.0.11"), "")
	s := (&node{}).subsystem(t, sys)
	for _, want := range []int{1, 2} {
		op := wait("172.16.0.11")
		if err := s.Do(t.Context(), plan.OnHost(op)[0]); err != nil || s.Located()[op.Targets[0].Addr] != want {
			t.Errorf("located %v, %v, want place %d", s.Located(), err, want)
		}
		maps.Copy(sys, sysfs("mlx5_0", v2("10.0.0.1"), "", v2("172.16.0.11")))
	}
}

// TestGIDThatComesLaterIsWaitedFor changes the table while it is looked at every
// millisecond, of a clock that runs when no goroutine runs.
func TestGIDThatComesLaterIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		after time.Duration
		code  cnierr.Code // 0: found
	}{
		{0, 0},
		{700 * time.Microsecond, 0},
		{1999 * time.Millisecond, 0},
		{2001 * time.Millisecond, cnierr.NoGID},
	} {
		synctest.Test(t, func(t *testing.T) {
			sys := sysfs("mlx5_0", v2("10.0.0.1"), v2("172.16.0.12"), "")
			later := sysfs("mlx5_0", v2("10.0.0.1"), v2("172.16.0.12"), v2("172.16.0.11"))
			s := New(Config{Enter: here, Sys: changing{before: sys, after: later, at: time.Now().Add(c.after)}})
			start := time.Now()
			err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: wait("172.16.0.12", "172.16.0.11")})
			took := time.Since(start)
			switch {
			case c.code == 0 && (err != nil || s.Located()[netip.MustParseAddr("172.16.0.11")] != 2 || took > c.after+gidInterval):
				t.Errorf("after %s: got %v, %v in %s", c.after, s.Located(), err, took)
			case c.code != 0 && (cnierr.CodeOf(err) != c.code || took != 2*time.Second):
				t.Errorf("after %s: got %v in %s, want code %d", c.after, err, took, c.code)
			}
		})
	}
}

func TestGIDThatDoesNotComeIsExplainedByTheTable(t *testing.T) {
	t.Parallel()
	full := sysfs("mlx5_0", v1("10.0.0.1"), v2("10.0.0.1"), v2("fe80::1"), entry("172.16.0.12", "RoCE v2", "eth7"))
	for _, c := range []struct {
		sys  fstest.MapFS
		want []string
	}{
		{full, []string{`"172.16.0.11, fd00::11"`, `the GID table of mlx5_0/1 is full: 4 of 4 entries are used, 3 by IPv4 addresses: pod "ml/a" has 2, eth7 has 1, net1 has 1; ` +
			"each address takes 2, this pod has at least 2 addresses, and without it 0 are free: room for 0 more pods"}},
		{sysfs("mlx5_0", v2("10.0.0.1"), v2("10.0.0.2"), v2("172.16.0.11")), []string{
			"each address takes 1, this pod has at least 2 addresses, and without it 1 are free: room for 1 more pods with one IPv4 address, or for 0 with",
		}},
		{sysfs("mlx5_0", v1("10.0.0.1"), v2("10.0.0.1"), v1("172.16.0.11"), v2("172.16.0.11")), []string{
			"each address takes 2, this pod has at least 2 addresses, and without it 2 are free: room for 1 more pods with one IPv4 address",
		}},
		{sysfs("mlx5_0", v2("10.0.0.1"), "", ""), []string{`no RoCE v2 entry for it within 2s; 1 of 3 entries are used, 1 by IPv4 addresses: pod "ml/a" has 1`}},
		{sysfs("mlx5_0", v2("10.0.0.1"), v2("10.0.0.2"), v2("10.0.0.3"), v2("10.0.0.4"), v2("10.0.0.5"), v2("10.0.0.6"), v2("10.0.0.7")), []string{
			`pod "ml/b" has 3, pod "ml/a" has 1, pod "ml/c" has 1, 2 others have 2; `,
		}},
		{sysfs("mlx5_0", v1("172.16.0.11"), v1("fd00::11"), ""), []string{"no RoCE v2 entry", "2 of 3 entries"}},
		{sysfs("mlx5_0", ""), []string{"0 of 1 entries are used, 0 by IPv4 addresses"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			owners := map[netip.Addr]string{}
			for i, pod := range []string{"a", "b", "b", "b", "c", "d", "e"} {
				owners[netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})] = fmt.Sprintf("pod %q", "ml/"+pod)
			}
			s := New(Config{Enter: here, Sys: c.sys, Owners: func() map[netip.Addr]string { return owners }})
			err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: wait("172.16.0.11", "fd00::11")})
			if full := strings.Contains(fmt.Sprint(err), "is full"); cnierr.CodeOf(err) != cnierr.NoGID || hintOf(err) == "" || full != strings.Contains(hintOf(err), "rocectl gids") {
				t.Fatalf("got %v, hint %q", err, hintOf(err))
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want %q in it", err, part)
				}
			}
		})
	}
}

// An ADD that starts again does not report the index that an earlier one found.
func TestTheIndexOfAnEarlierWaitIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := sysfs("mlx5_0", "", v2("172.16.0.11"), v2("172.16.0.12"))
		s := (&node{}).subsystem(t, sys)
		op := plan.Op{Place: plan.Host, Kind: wait("172.16.0.11", "172.16.0.12")}
		must(t, s.Do(t.Context(), op))
		if got := fmt.Sprint(s.Located()); got != "map[172.16.0.11:1 172.16.0.12:2]" {
			t.Errorf("got %s", got)
		}
		sys["class/infiniband/mlx5_0/ports/1/gids/1"] = sys["class/infiniband/mlx5_0/ports/1/gids/0"]
		if err := s.Do(t.Context(), op); cnierr.CodeOf(err) != cnierr.NoGID || !strings.HasPrefix(err.Error(), `wait for GID of "172.16.0.11": `) {
			t.Errorf("got %v, want the address that has none", err)
		}
		if got := fmt.Sprint(s.Located()); got != "map[172.16.0.12:2]" {
			t.Errorf("got %s", got)
		}
	})
}

func TestWarnOnlyLogs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := New(Config{Enter: here, Sys: sysfs("mlx5_0", ""), Log: slog.New(slog.NewTextHandler(&log, nil))})
		op := wait("172.16.0.11")
		op.Mode = conf.Warn
		if err := errors.Join(s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}), s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op})); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 2 {
			t.Errorf("want two warnings, got\n%s", &log)
		}
		op.Device.Name = "gone"
		if err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}); !errors.Is(err, ErrNoDevice) {
			t.Errorf("a device that is not there is no matter of GIDs: got %v", err)
		}
	})
}

func TestCheckOfGIDs(t *testing.T) {
	t.Parallel()
	place := func(n int) *int { return &n }
	for _, c := range []struct {
		name   string
		index  *int
		places []string
		want   string // "": nothing is damaged
	}{
		{"as it was", place(2), []string{"", v1("172.16.0.11"), v2("172.16.0.11")}, ""},
		{"never found", nil, []string{v2("172.16.0.11")}, ""},
		{"moved", place(3), []string{"", v1("172.16.0.11"), "", "", "", v2("172.16.0.11")}, "its index changed from 3 to 5"},
		{"gone", place(0), []string{v1("172.16.0.11")}, "mlx5_0/1 has no RoCE v2 entry for it"},
		{"another's", place(0), []string{v2("172.16.0.12"), ""}, "no RoCE v2 entry"},
		{
			"twice", place(0),
			[]string{v2("172.16.0.11"), "", entry("172.16.0.11", "RoCE v2", "ens1")},
			"2 RoCE v2 entries for it, so another interface on this node has the address too: index 0 of net1, index 2 of ens1; the pod's is at 0",
		},
		{"twice, one on its way out", place(0), []string{v2("172.16.0.11"), entry("172.16.0.11", "RoCE v2", "")}, ""},
		{"twice, the pod's later", place(2), []string{v2("172.16.0.11"), "", v2("172.16.0.11")}, "the pod's is at 2"},
		{"twice, of another name, not recorded", nil, []string{entry("172.16.0.11", "RoCE v2", "ens1"), v2("172.16.0.11")}, "the pod's is at 1"},
		{"twice, the pod's moved", place(5), []string{v2("172.16.0.11"), entry("172.16.0.11", "RoCE v2", "ens1")}, "the pod's is at 0, and was at 5"},
		{"twice, not recorded", nil, []string{v2("172.16.0.11"), v2("172.16.0.11")}, "which is the pod's is not known"},
		{"another interface has it alone", place(2), []string{entry("172.16.0.11", "RoCE v2", "eth7"), "", ""}, "no RoCE v2 entry of net1 for it, but another interface has the address: index 0 of eth7"},
		{"no table", place(0), nil, "the device is not in the namespace of the host under its name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			op := wait("172.16.0.11")
			op.Targets[0].Index = c.index
			s := (&node{}).subsystem(t, sysfs("mlx5_0", c.places...))
			err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op})
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), c.want) || hintOf(err) == ""):
				t.Errorf("got %v, hint %q, want 110 with %q", err, hintOf(err), c.want)
			}
			if err := s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
				t.Errorf("undo: %v", err)
			}
		})
	}
}

func TestCheckOfGIDsHasAllThatIsDamaged(t *testing.T) {
	t.Parallel()
	s := (&node{}).subsystem(t, sysfs("mlx5_0", v2("172.16.0.12"), ""))
	err := s.Check(t.Context(), plan.OnHost(wait("172.16.0.11", "172.16.0.12", "172.16.0.13"))[0])
	var found []string
	for _, e := range cnierr.Each(err) {
		found = append(found, e.Error())
	}
	want := []string{
		`check GID of "172.16.0.11": mlx5_0/1 has no RoCE v2 entry for it`, `check GID of "172.16.0.13": mlx5_0/1 has no RoCE v2 entry for it`,
	}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestCheckOfGIDsHintsAtWhatHelps(t *testing.T) {
	t.Parallel()
	device := roce(0, "mlx5_9", r0, "r0")
	op := wait("172.16.0.11")
	op.Device.Index, op.Device.GUID = device.Index, device.GUID
	for _, c := range []struct {
		name, says, hint string
		sys              fstest.MapFS
	}{
		{"renamed", `the device has another name in the namespace of the host, "mlx5_9"`, "rdma dev set mlx5_9 name mlx5_0", sysfs("mlx5_9", v2("172.16.0.11"))},
		{"twice", "2 RoCE v2 entries", "remove the address", sysfs("mlx5_0", v2("172.16.0.11"), v2("172.16.0.11"))},
	} {
		err := (&node{devices: []*hca{device}}).subsystem(t, c.sys).Check(t.Context(), plan.Op{Place: plan.Host, Kind: op})
		if cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), c.says) || !strings.Contains(hintOf(err), c.hint) {
			t.Errorf("%s: got %v, hint %q, want 110 with %q and %q", c.name, err, hintOf(err), c.says, c.hint)
		}
	}
}

// TestCheckOfAPortThatLostItsTable has a NIC that went into switchdev mode, or on which
// RoCE was switched off, while a pod uses it.
func TestCheckOfAPortThatLostItsTable(t *testing.T) {
	t.Parallel()
	device := roce(0, "mlx5_0", r0, "r0")
	op := wait("172.16.0.11")
	op.Device.Index, op.Device.GUID = device.Index, device.GUID
	err := (&node{devices: []*hca{device}}).subsystem(t, sysfs("mlx5_0")).Check(t.Context(), plan.Op{Place: plan.Host, Kind: op})
	if cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), "the port has no GID table, so RoCE is off") || !strings.Contains(hintOf(err), "devlink dev param show") {
		t.Errorf("got %v, hint %q, want 110 that says that RoCE is off", err, hintOf(err))
	}
}

func TestTableListsWhatIsInUse(t *testing.T) {
	t.Parallel()
	s := (&node{}).subsystem(t, sysfs("mlx5_0", v1("10.0.0.1"), "", v2("fd00::11"), ""))
	got, size, err := s.Table(plan.Host, plan.Host, "mlx5_0", 1)
	want := []gidtable.Entry{
		{Index: 0, GID: netip.MustParseAddr("10.0.0.1"), Type: gidtable.RoCEv1, Netdev: "net1"},
		{Index: 2, GID: netip.MustParseAddr("fd00::11"), Type: gidtable.RoCEv2, Netdev: "net1"},
	}
	if err != nil || size != 4 || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v of %d, %v, want %v of 4", got, size, err, want)
	}
	if _, _, err := s.Table(plan.Host, plan.Host, "mlx5_9", 1); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("no such device: got %v, want code %d", err, cnierr.IO)
	}
}
