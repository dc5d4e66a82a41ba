// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// setting returns the operation that sets an address of a pod.
func setting(link conf.LinkName, addr string) plan.Ops {
	return plan.InPod(plan.Address{Link: link, Prefix: netip.PrefixFrom(netip.MustParseAddr(addr), 24)})
}

// TestAnEntryOfAnotherInterfaceIsNotThatOfThePod has another interface of the NIC hold the
// address before the pod. Both interfaces may have one name.
func TestAnEntryOfAnotherInterfaceIsNotThatOfThePod(t *testing.T) {
	t.Parallel()
	const addr = "172.16.0.11"
	eth7 := entry(addr, "RoCE v2", "eth7")
	hole := make([]string, 100)
	for _, c := range []struct {
		name          string
		before, after []string
		want          int    // -1: it is not known
		says          string // what is logged, or the error
	}{
		{"alone", []string{v2("10.0.0.1"), "", ""}, []string{v2("10.0.0.1"), v2(addr), ""}, 1, ""},
		{"of another name", []string{eth7, "", ""}, []string{eth7, v2(addr), ""}, 1, "others=0"},
		{"of the same name", []string{v2(addr), "", ""}, []string{v2(addr), v2(addr), ""}, 1, "others=0"},
		{"of the same name, and v1", []string{v1(addr), v2(addr), "", ""}, []string{v1(addr), v2(addr), v1(addr), v2(addr)}, 3, `others="0 and 1"`},
		{"behind that of the pod", []string{v2("10.0.0.1"), "", v2(addr)}, []string{v2("10.0.0.1"), v2(addr), v2(addr)}, 1, "others=2"},
		{"not there yet", []string{v2("10.0.0.1"), v2(addr), ""}, []string{v2("10.0.0.1"), v2(addr), ""}, -1, "had the address before, at the index 1"},
		{
			"behind many places that programs hold", append([]string{v2("10.0.0.1")}, hole[:gidtable.UnusedRun]...),
			append(append([]string{v2("10.0.0.1")}, hole[:gidtable.UnusedRun]...), v2(addr)), -1, "at the index 97",
		},
		{
			"another address behind many", append(append([]string{v2("10.0.0.1")}, hole...), v2("10.0.0.2")),
			append(append([]string{v2("10.0.0.1")}, hole...), v2("10.0.0.2")), -1, "made no RoCE v2 entry",
		},
		{"behind some places that programs hold", append([]string{v2("10.0.0.1")}, hole[:90]...), append(append([]string{v2("10.0.0.1")}, hole[:90]...), v2(addr)), 91, ""},
		{"the driver hides others", hole, append(append([]string{}, hole...), v2(addr)), 100, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			sys := fstest.MapFS{}
			maps.Copy(sys, sysfs("mlx5_0", c.before...))
			s := New(Config{Enter: here, Sys: sys, Log: slog.New(slog.NewTextHandler(&log, nil))})
			op := wait(addr)
			op.Wait = 20 * time.Millisecond
			if err := s.LookBefore(plan.OnHost(op), setting("net1", addr)); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			maps.Copy(sys, sysfs("mlx5_0", c.after...))
			at, placeErr := s.Place(t.Context(), rail(op.Wait), addrs(addr), nil)
			err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op})
			if c.want < 0 {
				if cnierr.CodeOf(err) != cnierr.NoGID || cnierr.CodeOf(placeErr) != cnierr.NoGID || !strings.Contains(err.Error(), c.says) || hintOf(err) == "" {
					t.Errorf("%s: got %v and %v, want code %d with %q", c.name, err, placeErr, cnierr.NoGID, c.says)
				}
				return
			}
			a := addrs(addr)[0]
			if err != nil || placeErr != nil || s.Located()[a] != c.want || at[a] != c.want {
				t.Errorf("%s: got %v, %v and %v, %v, want %d", c.name, s.Located(), err, at, placeErr, c.want)
			}
			if got := log.String(); !strings.Contains(got, c.says) || (c.says == "") != (got == "") {
				t.Errorf("%s: logged %q, want %q", c.name, got, c.says)
			}
		})
	}
}

// TestEachRailIsLookedAtForItsOwnAddresses has a rail with a device that is gone, and three more,
// the first without an address to set. The entries of others, of which two have the address, are not those of the pod.
func TestEachRailIsLookedAtForItsOwnAddresses(t *testing.T) {
	t.Parallel()
	s := New(Config{Enter: here, Sys: sysfs("mlx5_0", v2("172.16.0.11"), v2("172.16.0.12"), "")})
	gone := wait("172.16.0.9")
	gone.Device.Name, gone.Targets[0].Link = "mlx5_9", "net0"
	all, set := plan.OnHost(gone), setting("net0", "172.16.0.9")
	for i, link := range []conf.LinkName{"net1", "net1-1", "net1-2"} {
		g := wait([]string{"172.16.0.10", "172.16.0.11", "172.16.0.12"}[i])
		g.Targets[0].Link = link
		all = append(all, plan.OnHost(g)...)
		if i > 0 {
			set = append(set, setting(link, g.Targets[0].Addr.String())...)
		}
	}
	must(t, s.LookBefore(all, set))
	for link, want := range map[conf.LinkName]string{"net1": "[] []", "net1-1": "[0] []", "net1-2": "[] [1]"} {
		before := s.of(link).Before
		if got := fmt.Sprint(before.Others(addrs("172.16.0.11")[0]), before.Others(addrs("172.16.0.12")[0])); got != want {
			t.Errorf("%s: others have %s, want %s", link, got, want)
		}
	}
}

// TestRepairDoesNotTakeTheEntryOfThePodForThatOfAnother has the pod keep the entry of an
// address that repair sets: it has the address with another prefix.
func TestRepairDoesNotTakeTheEntryOfThePodForThatOfAnother(t *testing.T) {
	t.Parallel()
	const addr = "172.16.0.11"
	for index, found := range map[int]bool{1: true, 3: false} {
		synctest.Test(t, func(t *testing.T) {
			s := New(Config{Enter: here, Sys: sysfs("mlx5_0", v2("10.0.0.1"), v2(addr), "", ""), Log: slog.New(slog.DiscardHandler)})
			op := wait(addr)
			op.Targets[0].Index = &index
			must(t, s.LookBefore(plan.OnHost(op), setting("net1", addr)))
			at, err := s.Place(t.Context(), rail(time.Second), addrs(addr), nil)
			if (err == nil) != found || found && at[addrs(addr)[0]] != 1 {
				t.Errorf("ADD found index %d: got %v, %v", index, at, err)
			}
		})
	}
}

// TestTwoEntriesOfAnAddressThatWasSetBeforeAreAnError has another plugin set the address, so
// that nothing looked at the table before.
func TestTwoEntriesOfAnAddressThatWasSetBeforeAreAnError(t *testing.T) {
	t.Parallel()
	const addr = "172.16.0.11"
	s := New(Config{Enter: here, Sys: sysfs("mlx5_0", v2("10.0.0.1"), v2(addr), "", v2(addr), "")})
	err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: wait(addr)})
	if cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(err.Error(), "at the indexes 1 and 3, and each is of an interface called net1") || hintOf(err) == "" {
		t.Errorf("got %v", err)
	}
}

// TestPlaceWaitsForItsOwnEntriesToGo has an entry of another interface stay.
func TestPlaceWaitsForItsOwnEntriesToGo(t *testing.T) {
	t.Parallel()
	const addr = "172.16.0.11"
	sys := sysfs("mlx5_0", v2(addr), "", "")
	s := New(Config{Enter: here, Sys: sys})
	must(t, s.LookBefore(plan.OnHost(wait(addr)), setting("net1", addr)))
	maps.Copy(sys, sysfs("mlx5_0", v2(addr), v2("169.254.77.0"), ""))
	at, err := s.Place(t.Context(), rail(time.Second), addrs("169.254.77.0"), addrs(addr))
	if err != nil || at[addrs("169.254.77.0")[0]] != 1 {
		t.Errorf("got %v, %v, want 1", at, err)
	}
	if own := (gidtable.Entry{Index: 1, GID: addrs(addr)[0], Netdev: "net1"}); !s.Has("net1", own) || s.Has("net1", gidtable.Entry{GID: own.GID, Netdev: "net1"}) || s.Has("eth7", own) {
		t.Error("Has does not know the entries apart")
	}
}

// TestALookAgainSeesWhoTookTheIndexOfThePod has another interface of the same name get the
// address at the index of the pod, after the pod gave the address up for a moment.
func TestALookAgainSeesWhoTookTheIndexOfThePod(t *testing.T) {
	t.Parallel()
	const addr, other = "172.16.0.11", "172.16.0.12"
	sys := sysfs("mlx5_0", v2(other), "", "")
	s := New(Config{Enter: here, Sys: sys})
	set := append(setting("net1", addr), setting("net1", other)...)
	must(t, s.LookBefore(plan.OnHost(wait(addr, other)), set))
	maps.Copy(sys, sysfs("mlx5_0", v2(other), v2(addr), ""))
	must(t, s.Look(rail(time.Second), addrs(addr), 0))
	maps.Copy(sys, sysfs("mlx5_0", v2(other), v2(addr), v2(addr), v2(other)))
	at, err := s.Place(t.Context(), rail(time.Second), addrs(addr, other), nil)
	if err != nil || at[addrs(addr)[0]] != 2 || at[addrs(other)[0]] != 3 {
		t.Errorf("got %v, %v, want 2 and 3", at, err)
	}
}

// TestAnEntryBehindAGapIsNotTakenForOneThatIsLate has another interface of the same name
// hold the address far behind the first free index, and has the NIC make the entry of the
// pod late.
func TestAnEntryBehindAGapIsNotTakenForOneThatIsLate(t *testing.T) {
	t.Parallel()
	const addr = "172.16.0.11"
	for _, unused := range []int{2, 40, 200} {
		synctest.Test(t, func(t *testing.T) {
			before := make([]string, unused+2)
			before[0], before[unused+1] = v2("10.0.0.1"), v2(addr)
			after := slices.Clone(before)
			after[1] = v2(addr)
			sys := changing{sysfs("mlx5_0", before...), sysfs("mlx5_0", after...), time.Now().Add(5 * time.Millisecond)}
			s := New(Config{Enter: here, Sys: sys, Log: slog.New(slog.DiscardHandler)})
			op := wait(addr)
			must(t, s.LookBefore(plan.OnHost(op), setting("net1", addr)))
			at, placeErr := s.Place(t.Context(), rail(time.Second), addrs(addr), nil)
			err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op})
			a := addrs(addr)[0]
			if err != nil || placeErr != nil || s.Located()[a] != 1 || at[a] != 1 {
				t.Errorf("%d unused: got %v, %v and %v, %v, want 1", unused, s.Located(), err, at, placeErr)
			}
		})
	}
}

// TestAnEntryThatWentAndCameIsThatOfThePod has an entry of the address go after the look,
// and the pod get its index: the entry was of an address that the pod had until now, or the
// other interface has lost the address.
func TestAnEntryThatWentAndCameIsThatOfThePod(t *testing.T) {
	t.Parallel()
	const addr = "172.16.0.11"
	synctest.Test(t, func(t *testing.T) {
		was, gone := sysfs("mlx5_0", v2("10.0.0.1"), v2(addr)), sysfs("mlx5_0", v2("10.0.0.1"), "")
		now := time.Now()
		s := New(Config{Enter: here, Log: slog.New(slog.DiscardHandler), Sys: changing{
			was, changing{gone, was, now.Add(8 * time.Millisecond)}, now.Add(3 * time.Millisecond),
		}})
		op := wait(addr)
		must(t, s.LookBefore(plan.OnHost(op), setting("net1", addr)))
		if err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil || s.Located()[addrs(addr)[0]] != 1 {
			t.Errorf("got %v, %v, want 1", s.Located(), err)
		}
	})
}

// TestRepairFindsARecordedIndexBehindAGap has the pod get an index far behind the first free
// one again, which ADD gave it behind fillers.
func TestRepairFindsARecordedIndexBehindAGap(t *testing.T) {
	t.Parallel()
	const addr, index = "172.16.0.11", 200
	places := make([]string, 256)
	places[0] = v2("10.0.0.1")
	sys := sysfs("mlx5_0", places...)
	s := New(Config{Enter: here, Sys: sys, Log: slog.New(slog.DiscardHandler)})
	op := wait(addr)
	at := index
	op.Targets[0].Index = &at
	must(t, s.LookBefore(plan.OnHost(op), setting("net1", addr)))
	places[index] = v2(addr)
	maps.Copy(sys, sysfs("mlx5_0", places...))
	if at, err := s.Place(t.Context(), rail(time.Second), addrs(addr), nil); err != nil || at[addrs(addr)[0]] != index {
		t.Errorf("got %v, %v, want %d", at, err, index)
	}
}

// TestASecondInterfaceOfAPodIsFoundBehindHiddenEntries has the driver hide the entries of
// others, and show the pod that of its first interface.
func TestASecondInterfaceOfAPodIsFoundBehindHiddenEntries(t *testing.T) {
	t.Parallel()
	const addr = "172.16.0.11"
	places := make([]string, 60)
	places[1] = entry("172.16.0.10", gidtable.RoCEv2, "net0")
	sys := sysfs("mlx5_0", places...)
	s := New(Config{Enter: here, Sys: sys, Log: slog.New(slog.DiscardHandler)})
	op := wait(addr)
	must(t, s.LookBefore(plan.OnHost(op), setting("net1", addr)))
	places[42] = v2(addr)
	maps.Copy(sys, sysfs("mlx5_0", places...))
	if err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil || s.Located()[addrs(addr)[0]] != 42 {
		t.Errorf("got %v, %v, want 42", s.Located(), err)
	}
}
