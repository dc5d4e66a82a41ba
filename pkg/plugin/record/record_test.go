// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// comparable makes addresses comparable to go-cmp.
var comparable = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func example() Record {
	addr := netip.MustParsePrefix("172.16.11.9/24")
	return Record{
		Version: version, BootID: "boot-1", Network: "rail", Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"},
		Pod: conf.Pod{Namespace: "ns", Name: "pod", UID: "uid"}, Netns: "/run/netns/c1",
		NetnsID: netns.ID{Dev: 4, Ino: 4026532000}, IPAM: "host-local", Config: []byte(`{"name":"rail"}`),
		Plan: plan.Plan{
			Interfaces: []plan.Interface{{
				Name: "net1", MAC: conf.MAC{2, 1, 2, 3, 4, 5}, MTU: 9000,
				Addresses: []plan.LeasedAddress{{Prefix: addr, Gateway: netip.MustParseAddr("172.16.11.254")}},
			}},
			Ops: plan.InPod(
				plan.Child{Name: "net1", Parent: "ens1", Mode: conf.Bridge, MTU: 9000, MAC: conf.MAC{2, 1, 2, 3, 4, 5}, Mark: "roce:c1/net1"},
				plan.Sysctl{Link: "net1", Set: []plan.Setting{{Path: "net/ipv4/conf/net1/arp_ignore", Value: "1"}}},
				plan.Up{Link: "net1"},
				plan.Conflict{Mode: conf.Require, Probes: 3, Interval: time.Millisecond, Wait: 8 * time.Millisecond, Targets: []plan.Target{{Link: "net1", Addr: addr.Addr()}}},
				plan.Address{Link: "net1", Prefix: addr},
				plan.Route{Link: "net1", Table: 100, Dst: addr.Masked(), Src: addr.Addr(), Scope: plan.ScopeLink},
				plan.Rule{From: netip.MustParsePrefix("172.16.11.9/32"), Table: 100, Priority: 32000},
				plan.Gateway{Mode: conf.Warn, Attempts: 3, Timeout: time.Second},
				plan.Announce{},
			),
		},
	}
}

// locked runs fn with the lock of the example's container held.
func locked(t *testing.T, s Store, fn func()) {
	t.Helper()
	release, err := s.Lock(context.Background(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	fn()
	release()
}

func TestSavedRecordLoadsAsItWas(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	want := example()
	locked(t, s, func() {
		if err := s.Save(want); err != nil {
			t.Fatal(err)
		}
	})
	got, err := s.Load(conf.Attachment{ContainerID: "c1", IfName: "net1"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, comparable); diff != "" {
		t.Errorf("record changed on disk (-want +got):\n%s", diff)
	}
	keys, err := s.List()
	if err != nil || !cmp.Equal(keys, []conf.Attachment{{ContainerID: "c1", IfName: "net1"}}) {
		t.Errorf("List() = %v, %v", keys, err)
	}
}

func TestRecordOfAnotherBootHasNothingToUndo(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	locked(t, s, func() {
		if err := s.Save(example()); err != nil {
			t.Fatal(err)
		}
	})
	s.BootID = "boot-2"
	got, err := s.Load(conf.Attachment{ContainerID: "c1", IfName: "net1"})
	if err != nil || len(got.Plan.Ops) != 0 || got.Committed {
		t.Errorf("Load() = %d operations, committed %v, %v; want none", len(got.Plan.Ops), got.Committed, err)
	}
}

func TestUnreadableRecordIsNeverGuessedAt(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"empty":             "",
		"torn":              `{"version":3,"bootID":"boot-1","plan":{"ops":[{"op":"mac`,
		"older format":      `{"version":2,"bootID":"boot-1"}`,
		"unknown operation": `{"version":3,"bootID":"boot-1","plan":{"ops":[{"op":"teleport","place":"pod","args":{}}]}}`,
		"unknown place":     `{"version":3,"bootID":"boot-1","plan":{"ops":[{"op":"up","place":"moon","args":{}}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Store{Dir: t.TempDir(), BootID: "boot-1"}
			path := s.path(conf.Attachment{ContainerID: "c1", IfName: "net1"})
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Load(conf.Attachment{ContainerID: "c1", IfName: "net1"}); err == nil || cnierr.CodeOf(err) != cnierr.Unreadable {
				t.Errorf("Load() error = %v, want code %d", err, cnierr.Unreadable)
			}
		})
	}
}

func TestARecordOfANewerFormatNamesTheRemedy(t *testing.T) {
	t.Parallel()
	for _, content := range []string{`{"version":4}`, `{"version":4,"plan":{"ops":[{"op":"teleport","at":"moon"}]}}`, `{"version":4,"network":7}`} {
		_, err := Store{}.decode("file", []byte(content))
		if e := cnierr.CNI("roce", err); e.Code != uint(cnierr.Unreadable) || !strings.Contains(e.Details, "install the version") {
			t.Errorf("%s: got %+v, want code %d and what to install", content, e, cnierr.Unreadable)
		}
	}
}

func TestNothingRemainsOfADeletedContainer(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	locked(t, s, func() {
		if err := s.Save(example()); err != nil {
			t.Fatal(err)
		}
	})
	if fi, err := os.Stat(s.path(conf.Attachment{ContainerID: "c1", IfName: "net1"})); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("record: %v, mode %v; want 0600", err, fi.Mode())
	}
	if fi, err := os.Stat(s.folder("c1")); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("folder: %v, mode %v; want 0700", err, fi.Mode())
	}
	locked(t, s, func() {
		for range 2 { // a second DEL finds nothing and succeeds
			if err := s.Delete(conf.Attachment{ContainerID: "c1", IfName: "net1"}); err != nil {
				t.Fatal(err)
			}
		}
	})
	if _, err := s.Load(conf.Attachment{ContainerID: "c1", IfName: "net1"}); !errors.Is(err, ErrNotExist) {
		t.Errorf("Load() error = %v, want ErrNotExist", err)
	}
	entries, err := os.ReadDir(s.root())
	if err != nil || len(entries) != 0 {
		t.Errorf("%v left in %s, %v", entries, s.root(), err)
	}
}

func TestWhatIsNoFolderOfAContainerIsPassedOver(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	locked(t, s, func() {
		if err := s.Save(example()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.root(), "a-file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := s.List()
		if err != nil || !cmp.Equal(keys, []conf.Attachment{{ContainerID: "c1", IfName: "net1"}}) {
			t.Errorf("List() = %v, %v", keys, err)
		}
		busy, err := s.Busy()
		if err != nil || !cmp.Equal(busy, []conf.ContainerID{"c1"}) {
			t.Errorf("Busy() = %v, %v", busy, err)
		}
	})
}

func TestLockGivesUpWhenItsContextIsOver(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	locked(t, s, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		if _, err := s.Lock(ctx, "c1"); err == nil || cnierr.CodeOf(err) != cnierr.TryAgain {
			t.Errorf("Lock() error = %v, want code %d", err, cnierr.TryAgain)
		}
	})
}

// FuzzRecord checks that no file content makes decoding panic, and that what is
// accepted is the same once it is written and read again.
func FuzzRecord(f *testing.F) {
	good, err := json.Marshal(example())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"version":3,"bootID":"boot-1","plan":{"ops":[{"op":"rule","place":"host","shared":true,"args":{"from":"10.0.0.1/32","priority":1}}]}}`))
	f.Add([]byte(`{"version":3,"plan":{"ops":[{"op":"macvlan","place":"pod","args":null}]}}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		s := Store{BootID: "boot-1"}
		first, err := s.decode("file", content)
		if err != nil {
			if cnierr.CodeOf(err) != cnierr.Unreadable {
				t.Errorf("got %v, want code %d", err, cnierr.Unreadable)
			}
			return
		}
		first.Plan.Ops.Commands("pod")
		first.Plan.Ops.Teardown()
		b, err := json.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		again, err := s.decode("file", b)
		if err != nil {
			t.Fatal(err)
		}
		// The text of a configuration is written again, without spaces and with
		// escapes; what it means is the same.
		var was, is any
		if err := errors.Join(json.Unmarshal(first.Config, &was), json.Unmarshal(again.Config, &is)); err == nil {
			if diff := cmp.Diff(was, is); diff != "" {
				t.Errorf("configuration (-first +again):\n%s", diff)
			}
		}
		first.Config, again.Config = nil, nil
		if diff := cmp.Diff(first, again, comparable, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("(-first +again):\n%s", diff)
		}
	})
}

// TestOneHolderAtATimeThoughTheLockFileComesAndGoes drives the race that
// removing a lock file invites: a waiter that gets a lock on a file that is no
// longer there.
func TestOneHolderAtATimeThoughTheLockFileComesAndGoes(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	var holders, rounds atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 100 {
				release, err := s.Lock(context.Background(), "c1")
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				rounds.Add(1)
				holders.Add(-1)
				release()
			}
		})
	}
	wg.Wait()
	if rounds.Load() != 1600 {
		t.Errorf("%d rounds, want 1600", rounds.Load())
	}
}

func TestUnusableFolderIsAnIOError(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := Store{Dir: file, BootID: "boot-1"}
	if _, err := s.Lock(context.Background(), "c1"); err == nil || cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("Lock() error = %v, want code %d", err, cnierr.IO)
	}
}

func TestUnlockRemovesTornRecordsBesideWholeOnes(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	locked(t, s, func() {
		r := example()
		if err := s.Save(r); err != nil {
			t.Fatal(err)
		}
		r.IfName = "net9"
		if err := os.WriteFile(s.path(r.Attachment)+".new-0123456789abcdef", []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	entries, err := os.ReadDir(s.folder(example().ContainerID))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{lockName, filepath.Base(s.path(example().Attachment))}; err != nil || !cmp.Equal(names, want) {
		t.Errorf("the folder has %q, %v: want %q", names, err, want)
	}
}

func TestSweepRemovesWhatWasLeftBeforeARecordWasWritten(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	for _, id := range []conf.ContainerID{"killed", "torn", "busy"} {
		if err := os.MkdirAll(s.folder(id), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.folder(id), lockName), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(s.path(conf.Attachment{ContainerID: "torn", IfName: "net1"})+".new-0123456789abcdef", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	busy, err := s.Lock(t.Context(), "busy")
	if err != nil {
		t.Fatal(err)
	}
	locked(t, s, func() {
		if err := s.Save(example()); err != nil {
			t.Fatal(err)
		}
	})
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := s.containers()
	if err != nil || !cmp.Equal(got, []conf.ContainerID{"busy", "c1"}) {
		t.Errorf("left are %q, %v: want the one at work and the one with a record", got, err)
	}
	busy()
	if keys, err := s.List(); err != nil || len(keys) != 1 {
		t.Errorf("records are %v, %v", keys, err)
	}
}

func TestAllSkipsWhatIsGoneAndNamesWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	locked(t, s, func() {
		for _, ifName := range []conf.LinkName{"net1", "net2", "net3"} {
			r := example()
			r.IfName = ifName
			if err := s.Save(r); err != nil {
				t.Fatal(err)
			}
		}
	})
	if err := os.WriteFile(s.path(conf.Attachment{ContainerID: "c1", IfName: "net3"}), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var got []string
	for r, err := range s.All() {
		code := cnierr.Code(0)
		if err != nil {
			code = cnierr.CodeOf(err)
		}
		got = append(got, fmt.Sprint(r.ContainerID, "/", r.IfName, " ", uint(code)))
		if err := s.Delete(conf.Attachment{ContainerID: "c1", IfName: "net2"}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"c1/net1 0", fmt.Sprint("c1/net3 ", cnierr.Unreadable)}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := os.RemoveAll(s.root()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.root(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for r, err := range s.All() {
		if r.Attachment != (conf.Attachment{}) || err == nil {
			t.Errorf("no folder: got %v, %v", r.Attachment, err)
		}
	}
}
