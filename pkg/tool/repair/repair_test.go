// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package repair_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
)

// node returns a node with a damaged lease database. It has a pod of which only the
// address is known.
func node(t *testing.T) repair.Node {
	t.Helper()
	records := record.Store{Dir: t.TempDir(), BootID: boot}
	n := repair.Node{
		Leases:  ledger.Store{Dir: records.Dir, BootID: boot, Now: now},
		Records: records,
		Scan: func(context.Context) ([]repair.Namespace, int, error) {
			return []repair.Namespace{{
				Ref: netns.Ref{Path: "/run/netns/x", ID: netns.ID{Dev: 4, Ino: 77}},
				Addrs: []repair.Addr{
					{IfName: "lo", Addr: netip.MustParseAddr("127.0.0.1")},
					{IfName: "eth0", Addr: netip.MustParseAddr("fe80::1")},
					{IfName: "eth0", Addr: netip.MustParseAddr("10.0.0.77")},
				},
			}}, 3, nil
		},
	}
	write(t, n, "leases.lock", boot)
	write(t, n, "leases.db", "lost")
	return n
}

const boot = "5f0c2d1e-8a3b-4c6d-9e7f-000000000001"

func now() time.Duration { return time.Hour }

// write puts a file into the state folder.
func write(t *testing.T, n repair.Node, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.Records.Dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// book returns the leases as the plugins use them.
func book(n repair.Node) *ipam.Book {
	return ipam.New(ipam.Config{
		Dir: n.Records.Dir, BootID: n.Records.BootID, Now: now,
		Observe: everyNetnsLives,
	})
}

// lines returns what a database is rebuilt to.
func lines(r repair.Rebuilt) []string {
	var out []string
	for _, h := range r.Leased {
		for _, p := range h.Places {
			out = append(out, fmt.Sprint(p.Pool, " ", p.Addr, " early ", p.Early, " since ", p.Since, " ", h.Owner, " ", h.Owner.Network))
		}
	}
	for _, a := range r.Aside {
		out = append(out, fmt.Sprint("aside ", a.Addr, " ", a.Owner, " ", a.Owner.IfName))
	}
	return out
}

// save records an attachment with one address.
func save(t *testing.T, s record.Store, id conf.ContainerID, change func(*record.Record)) {
	t.Helper()
	unlock, err := s.Lock(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	rec := record.Record{
		Network: "net", Attachment: conf.Attachment{ContainerID: id, IfName: "net1"}, Pod: conf.Pod{Namespace: "ns", Name: "pod-" + string(id), UID: "u"},
		Netns: "/run/netns/" + string(id), NetnsID: netns.ID{Dev: 4, Ino: 5}, IPAM: "roce-ipam", Pool: "rail", Saved: time.Minute,
		Plan: plan.Plan{Interfaces: []plan.Interface{{
			Name: "net1", Addresses: []plan.LeasedAddress{{Prefix: netip.MustParsePrefix("10.0.0." + string(id[1:]) + "/24"), Early: id == "c1"}},
		}}},
	}
	change(&rec)
	if err := s.Save(rec); err != nil {
		t.Fatal(err)
	}
}

func TestRecordsHaveTheOwnerOfEach(t *testing.T) {
	t.Parallel()
	n := node(t)
	save(t, n.Records, "c1", func(*record.Record) {})
	save(t, n.Records, "c2", func(r *record.Record) { r.Pool = "" })
	save(t, n.Records, "c3", func(r *record.Record) { r.IPAM = "host-local" })
	save(t, n.Records, "c4", func(r *record.Record) { r.Plan.Interfaces[0].Addresses = nil })
	save(t, record.Store{Dir: n.Records.Dir, BootID: "5f0c2d1e-8a3b-4c6d-9e7f-000000000000"}, "c5", func(*record.Record) {})
	save(t, n.Records, "c6", func(*record.Record) {})
	if err := os.WriteFile(filepath.Join(n.Records.Dir, "attachments/c6/net1.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	plan, err := n.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	did, err := n.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"rail 10.0.0.1 early true since 1m0s pod ns/pod-c1 net",
		"aside 10.0.0.77 namespace /run/netns/x eth0",
	}
	for what, r := range map[string]repair.Rebuilt{"plan": plan, "did": did} {
		if diff := cmp.Diff(want, lines(r)); diff != "" || r.Hidden != 3 || r.Looked != 1 {
			t.Errorf("%s: %+v (-want +got):\n%s", what, r, diff)
		}
	}
	place := ledger.Place{Spot: ledger.Spot{Pool: "rail", Addr: netip.MustParseAddr("10.0.0.1")}, Since: time.Minute, Early: true}
	holding := ledger.Holding{Places: []ledger.Place{place}, Owner: ledger.Owner{
		ContainerID: "c1", IfName: "net1", Network: "net", Program: conf.PluginType, PodNamespace: "ns", PodName: "pod-c1", PodUID: "u",
		Netns: netns.Ref{Path: "/run/netns/c1", ID: netns.ID{Dev: 4, Ino: 5}},
	}}
	if diff := cmp.Diff([]ledger.Holding{holding}, did.Leased, cmpopts.EquateComparable(netip.Addr{})); diff != "" || plan.Why == nil || did.Why == nil {
		t.Errorf("why %v (-want +got):\n%s", did.Why, diff)
	}
	if kept, err := os.ReadFile(did.Kept); err != nil || string(kept) != "lost" {
		t.Errorf("the damaged file is not kept: %q, %v", kept, err)
	}
	if again, err := n.Do(t.Context()); err != nil || again.Why != nil {
		t.Errorf("the rebuilt database: %v, %v", again.Why, err)
	}
}

// An address that a record has leased, or that a namespace has, is leased to no other
// pod, whatever happened to the file.
func TestNoAddressInUseIsLeasedAfterARepair(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty": "", "a line": "this is no database\n", "zeroes": string(make([]byte, 40960)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := node(t)
			save(t, n.Records, "c1", func(*record.Record) {})
			write(t, n, "leases.db", text)
			ask := ipam.Ask{Pool: "rail", Owner: ipam.Owner{ContainerID: "c9", IfName: "net1"}, Subnets: []ipam.Subnet{{
				Prefix: netip.MustParsePrefix("10.0.0.0/24"),
				Ranges: []netrange.Range{one("10.0.0.1"), one("10.0.0.77")},
			}}}
			if _, err := book(n).Acquire(t.Context(), ask); cnierr.CodeOf(err) != cnierr.Unreadable {
				t.Errorf("before the repair: got %v, want code %d", err, cnierr.Unreadable)
			}
			if _, err := n.Do(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, err := book(n).Acquire(t.Context(), ask); cnierr.CodeOf(err) != cnierr.PoolExhausted {
				t.Errorf("got %v, %v, want code %d", got, err, cnierr.PoolExhausted)
			}
		})
	}
}

func one(addr string) netrange.Range {
	a := netip.MustParseAddr(addr)
	return netrange.Range{First: a, Last: a}
}

func TestASoundDatabaseIsLeftAlone(t *testing.T) {
	t.Parallel()
	n := node(t)
	if _, err := n.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(n.Records.Dir, "leases.db")
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	n.Scan = func(context.Context) ([]repair.Namespace, int, error) { return nil, 0, errors.New("no scan is needed") }
	if got, err := n.Do(t.Context()); err != nil || got.Why != nil || len(lines(got)) > 0 {
		t.Errorf("got %v, %v", got, err)
	}
	after, err := os.Stat(path)
	if err != nil || !os.SameFile(before, after) || before.ModTime() != after.ModTime() {
		t.Errorf("the file has changed (%v)", err)
	}
	n.Leases.Dir = filepath.Join(t.TempDir(), "none")
	if got, err := n.Do(t.Context()); err != nil || got.Why != nil {
		t.Errorf("without a database: got %v, %v", got, err)
	}
}

// A DEL that was killed has given its address back, and its record is still there.
func TestTheLaterOfTwoRecordsHasTheAddress(t *testing.T) {
	t.Parallel()
	n := node(t)
	n.Scan = func(context.Context) ([]repair.Namespace, int, error) { return nil, 0, nil }
	save(t, n.Records, "c1", func(*record.Record) {})
	save(t, n.Records, "c2", func(r *record.Record) {
		r.Plan.Interfaces[0].Addresses[0].Prefix = netip.MustParsePrefix("10.0.0.1/24")
		r.Saved = 2 * time.Minute
	})
	for _, id := range []conf.ContainerID{"c3", "c4"} { // these are equal
		save(t, n.Records, id, func(r *record.Record) {
			r.Plan.Interfaces[0].Addresses[0].Prefix = netip.MustParsePrefix("10.0.0.3/24")
		})
	}
	got, err := n.Do(t.Context())
	want := []string{"rail 10.0.0.1 early false since 2m0s pod ns/pod-c2 net", "rail 10.0.0.3 early false since 1m0s pod ns/pod-c3 net"}
	if diff := cmp.Diff(want, lines(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestWhatNoRecordExplainsIsSetAside, in the order of the addresses. What the interface of a record has
// in its own namespace is explained, and what another namespace has is not.
func TestWhatNoRecordExplainsIsSetAside(t *testing.T) {
	t.Parallel()
	n := node(t)
	save(t, n.Records, "c1", func(*record.Record) {})
	own, other := netns.Ref{Path: "/run/netns/c1", ID: netns.ID{Dev: 4, Ino: 5}}, netns.Ref{Path: "/run/netns/d", ID: netns.ID{Dev: 4, Ino: 6}}
	has := func(name string, marked bool, addrs ...string) (out []repair.Addr) {
		for _, a := range addrs {
			out = append(out, repair.Addr{IfName: name, Addr: netip.MustParseAddr(a), Marked: marked})
		}
		return out
	}
	n.Scan = func(context.Context) ([]repair.Namespace, int, error) {
		return []repair.Namespace{
			{Ref: own, Addrs: has("net1", true, "10.0.0.1", "10.0.0.9", "10.0.0.8", "fd00::8", "10.0.0.7", "224.0.0.1", "::1")},
			{Ref: other, Addrs: append(has("eth0", false, "10.0.0.6"), has("eth1", false, "10.0.0.6")...)},
		}, 0, nil
	}
	got, err := n.Do(t.Context())
	aside := func(addr, ifName, program string, ns netns.Ref) ledger.Aside {
		return ledger.Aside{Addr: netip.MustParseAddr(addr), Owner: ledger.Owner{IfName: ifName, Program: program, Netns: ns}}
	}
	want := []ledger.Aside{
		aside("10.0.0.6", "eth1", "", other), aside("10.0.0.7", "net1", conf.PluginType, own), aside("10.0.0.8", "net1", conf.PluginType, own),
		aside("10.0.0.9", "net1", conf.PluginType, own), aside("fd00::8", "net1", conf.PluginType, own),
	}
	if diff := cmp.Diff(want, got.Aside, cmpopts.EquateComparable(netip.Addr{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestRecordsThatCannotBeReadStopTheRepair: a folder is in the place of one, or of all.
func TestRecordsThatCannotBeReadStopTheRepair(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"attachments/c1/net1.json", "attachments"} {
		n := node(t)
		path := filepath.Join(n.Records.Dir, name)
		if name == "attachments" {
			write(t, n, name, "no folder")
		} else if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if got, err := n.Do(t.Context()); err == nil || len(lines(got)) > 0 {
			t.Errorf("%s: got %v, %v, want an error", name, lines(got), err)
		}
		if _, err := book(n).List(t.Context(), ""); cnierr.CodeOf(err) != cnierr.Unreadable {
			t.Errorf("%s: the database: got %v", name, err)
		}
	}
}

// When one of two namespaces with one address goes, the address is not free.
func TestAnAddressOfTwoNamespacesIsOfNone(t *testing.T) {
	t.Parallel()
	n := node(t)
	addr := []repair.Addr{{IfName: "net1", Addr: netip.MustParseAddr("10.0.0.1")}}
	n.Scan = func(context.Context) ([]repair.Namespace, int, error) {
		return []repair.Namespace{
			{Ref: netns.Ref{Path: "/run/netns/a", ID: netns.ID{Dev: 4, Ino: 7}}, Addrs: addr},
			{Ref: netns.Ref{Path: "/run/netns/b", ID: netns.ID{Dev: 4, Ino: 8}}, Addrs: addr},
			{Ref: netns.Ref{Path: "/run/netns/c", ID: netns.ID{Dev: 4, Ino: 9}}, Addrs: addr},
		}, 0, nil
	}
	got, err := n.Do(t.Context())
	if diff := cmp.Diff([]string{"aside 10.0.0.1 several namespaces "}, lines(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// A call that is at work may have leased an address that is not on record.
func TestACallThatIsAtWorkIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := node(t)
		unlock, err := n.Records.Lock(t.Context(), "c1")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if _, err := n.Do(ctx); cnierr.CodeOf(err) != cnierr.TryAgain || time.Since(began) != time.Minute {
			t.Errorf("got %v after %v, want code %d", err, time.Since(began), cnierr.TryAgain)
		}
		done := make(chan error, 1)
		go func() {
			_, err := n.Do(t.Context())
			done <- err
		}()
		synctest.Wait()
		unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestWithoutAScanNothingIsRebuilt(t *testing.T) {
	t.Parallel()
	n := node(t)
	mine := errors.New("mine")
	n.Scan = func(context.Context) ([]repair.Namespace, int, error) { return nil, 0, mine }
	if _, err := n.Do(t.Context()); !errors.Is(err, mine) {
		t.Errorf("got %v", err)
	}
	if _, err := book(n).List(t.Context(), ""); cnierr.CodeOf(err) != cnierr.Unreadable {
		t.Errorf("the database: got %v", err)
	}
}

// everyNetnsLives is an observation of a node on which no namespace ends.
func everyNetnsLives() func(netns.Ref) (bool, error) {
	return func(netns.Ref) (bool, error) { return true, nil }
}
