// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bytes"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/plan"
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
	hole := make([]string, 40)
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
		{"not there yet", []string{v2("10.0.0.1"), v2(addr), ""}, []string{v2("10.0.0.1"), v2(addr), ""}, -1, "no RoCE v2 entry"},
		{
			"both behind what was read", append([]string{v2("10.0.0.1")}, hole...),
			append(append([]string{v2("10.0.0.1")}, hole...), v2(addr), v2(addr)), -1, "at the indexes 41 and 42, and each is of an interface called net1",
		},
		{"behind what was read, alone", append([]string{v2("10.0.0.1")}, hole...), append(append([]string{v2("10.0.0.1")}, hole...), v2(addr)), 41, ""},
		{"the driver hides others", hole, append(append([]string{}, hole...), v2(addr)), 40, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			sys := fstest.MapFS{}
			maps.Copy(sys, sysfs("mlx5_0", c.before...))
			s := New(Config{Enter: here, Sys: sys, Log: slog.New(slog.NewTextHandler(&log, nil))})
			op := wait(addr)
			if err := s.LookBefore(plan.OnHost(op), setting("net1", addr)); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			maps.Copy(sys, sysfs("mlx5_0", c.after...))
			at, placeErr := s.Place(t.Context(), rail(time.Second), addrs(addr), nil)
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

// TestPlaceWaitsForItsOwnEntriesToGo has an entry of another interface stay.
func TestPlaceWaitsForItsOwnEntriesToGo(t *testing.T) {
	t.Parallel()
	const addr = "172.16.0.11"
	sys := sysfs("mlx5_0", v2(addr), "", "")
	s := New(Config{Enter: here, Sys: sys})
	if err := s.LookBefore(plan.OnHost(wait(addr)), setting("net1", addr)); err != nil {
		t.Fatal(err)
	}
	maps.Copy(sys, sysfs("mlx5_0", v2(addr), v2("169.254.77.0"), ""))
	at, err := s.Place(t.Context(), rail(time.Second), addrs("169.254.77.0"), addrs(addr))
	if err != nil || at[addrs("169.254.77.0")[0]] != 1 {
		t.Errorf("got %v, %v, want 1", at, err)
	}
	if own := (Entry{Index: 1, GID: addrs(addr)[0], Netdev: "net1"}); !s.Has("net1", own) || s.Has("net1", Entry{GID: own.GID, Netdev: "net1"}) || s.Has("eth7", own) {
		t.Error("Has does not know the entries apart")
	}
}
