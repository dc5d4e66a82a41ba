// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rebuild_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/ipam"
	"github.com/roce-cni/roce-cni/pkg/kernel/nsscan"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/rebuild"
	"github.com/roce-cni/roce-cni/pkg/record"
)

// node returns a node whose lease database is lost, with a pod of which nothing
// is known but its address.
func node(t *testing.T) rebuild.Node {
	t.Helper()
	n := rebuild.Node{
		Records: record.Store{Dir: t.TempDir(), BootID: "boot-1"},
		Scan: func(context.Context) (nsscan.Result, error) {
			return nsscan.Result{Hidden: 3, Namespaces: []nsscan.Namespace{{
				Path: "/run/netns/x", ID: plan.NetnsID{Dev: 4, Ino: 77},
				Addrs: []nsscan.Addr{{IfName: "eth0", Addr: netip.MustParseAddr("10.0.0.77")}},
			}}}, nil
		},
	}
	n.Book = ipam.New(ipam.Config{
		Dir: n.Records.Dir, BootID: "boot-1", Now: func() time.Duration { return time.Hour },
		Alive: func(ipam.Netns) (bool, error) { return true, nil },
	})
	for name, text := range map[string]string{"leases.lock": "boot-1", "leases.db": "lost"} {
		if err := os.WriteFile(filepath.Join(n.Records.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return n
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
		Network: "net", ContainerID: id, IfName: "net1", Pod: conf.Pod{Namespace: "ns", Name: "pod-" + string(id), UID: "u"},
		Netns: "/run/netns/" + string(id), NetnsID: plan.NetnsID{Dev: 4, Ino: 5}, IPAM: "roce-ipam", Pool: "rail", Saved: time.Minute,
		Plan: plan.Plan{Interfaces: []plan.Interface{{
			Name: "net1", Addresses: []plan.LeasedAddress{{Prefix: netip.MustParsePrefix("10.0.0." + string(id[1:]) + "/24"), Early: id == "c1"}},
		}}},
	}
	change(&rec)
	if err := s.Save(rec); err != nil {
		t.Fatal(err)
	}
}

func TestRecordsTellWhoHasWhat(t *testing.T) {
	t.Parallel()
	n := node(t)
	save(t, n.Records, "c1", func(*record.Record) {})
	save(t, n.Records, "c2", func(r *record.Record) { r.Pool = "" })
	save(t, n.Records, "c3", func(r *record.Record) { r.IPAM = "host-local" })
	save(t, n.Records, "c4", func(r *record.Record) { r.Plan.Interfaces[0].Addresses = nil })
	save(t, record.Store{Dir: n.Records.Dir, BootID: "boot-0"}, "c5", func(*record.Record) {})
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
	for what, r := range map[string]ipam.Rebuilt{"plan": plan, "did": did} {
		var got []string
		for _, e := range r.Entries {
			got = append(got, fmt.Sprint(e.Pool, " ", e.Addr, " ", e.State, " early ", e.Early, " ", e.Owner, " ", e.Owner.Network, " ", e.Age, " from ", e.From))
		}
		want := []string{
			"* 10.0.0.2 leased early false pod ns/pod-c2 net 59m0s from its record",
			"* 10.0.0.77 leased early false namespace /run/netns/x  0s from its namespace",
			"rail 10.0.0.1 leased early true pod ns/pod-c1 net 59m0s from its record",
		}
		if diff := cmp.Diff(want, got); diff != "" || r.Hidden != 3 || r.Looked != 1 {
			t.Errorf("%s: %+v (-want +got):\n%s", what, r, diff)
		}
	}
}

// A call that is at work may have leased an address that is not on record.
func TestACallThatIsAtWorkIsWaitedFor(t *testing.T) {
	t.Parallel()
	n := node(t)
	unlock, err := n.Records.Lock(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 120*time.Millisecond)
	defer cancel()
	if _, err := n.Do(ctx); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v, want code %d", err, cnierr.TryAgain)
	}
	done := make(chan error, 1)
	go func() {
		_, err := n.Do(t.Context())
		done <- err
	}()
	unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWithoutAScanNothingIsRebuilt(t *testing.T) {
	t.Parallel()
	n := node(t)
	mine := errors.New("mine")
	n.Scan = func(context.Context) (nsscan.Result, error) { return nsscan.Result{}, mine }
	if _, err := n.Do(t.Context()); !errors.Is(err, mine) {
		t.Errorf("got %v", err)
	}
	if _, err := n.Book.List(t.Context(), ""); cnierr.CodeOf(err) != cnierr.Unreadable {
		t.Errorf("the database: got %v", err)
	}
}
