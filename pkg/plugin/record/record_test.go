// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
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
		NetnsID: netns.ID{Dev: 4, Ino: 4026532000}, Committed: true, Saved: time.Hour, IPAM: "host-local", Config: []byte(`{"name":"rail"}`),
		Pool: "pool", Digest: "digest", LeftOut: []string{"rail 1"}, Trace: "00-trace-01",
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

// c1 is the attachment of the example.
var c1 = conf.Attachment{ContainerID: "c1", IfName: "net1"}

// must is for what a test needs and does not test.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// locked runs fn with the lock of the example's container held.
func locked(t *testing.T, s Store, fn func()) {
	t.Helper()
	release, err := s.Lock(t.Context(), "c1")
	must(t, err)
	fn()
	release()
}

// empty returns a store without records, saved one with the example.
func empty(t *testing.T) Store { return Store{Dir: t.TempDir(), BootID: "boot-1"} }

func saved(t *testing.T) Store {
	t.Helper()
	s := empty(t)
	r := example()
	r.Version, r.BootID = 0, "" // Save sets them
	locked(t, s, func() { must(t, s.Save(r)) })
	return s
}

// plant writes a file of the store, with the folder of its container.
func plant(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// behind makes a link in the store to a file that is not of the store, which must
// stay as it is.
func behind(t *testing.T, link string) {
	t.Helper()
	legit := filepath.Join(t.TempDir(), "legit")
	plant(t, legit, "legit")
	must(t, os.MkdirAll(filepath.Dir(link), 0o700))
	must(t, os.Symlink(legit, link))
	t.Cleanup(func() {
		if b, err := os.ReadFile(legit); err != nil || string(b) != "legit" {
			t.Errorf("behind the link: %q, %v", b, err)
		}
	})
}

func TestSavedRecordLoadsAsItWas(t *testing.T) {
	t.Parallel()
	s := saved(t)
	plant(t, filepath.Join(s.root(), "a-file"), "") // is no container
	got, err := s.Load(c1)
	must(t, err)
	if diff := cmp.Diff(example(), got, comparable); diff != "" {
		t.Errorf("record changed on disk (-want +got):\n%s", diff)
	}
	if keys, err := s.List(); err != nil || !cmp.Equal(keys, []conf.Attachment{c1}) {
		t.Errorf("List() = %v, %v", keys, err)
	}
	plant(t, s.path(conf.Attachment{ContainerID: "no-lock", IfName: "net1"}), "")
	locked(t, s, func() {
		if busy, err := s.Busy(); err != nil || !cmp.Equal(busy, []conf.ContainerID{"c1"}) {
			t.Errorf("Busy() = %v, %v", busy, err)
		}
	})
	if busy, err := s.Busy(); err != nil || len(busy) > 0 {
		t.Errorf("Busy() = %v, %v, want none", busy, err)
	}
	if of, err := s.Of("a-file"); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("Of a file: %v, %v", of, err)
	}
	s.BootID = "boot-2"
	got, err = s.Load(c1)
	want := example()
	want.Plan.Ops, want.Committed, want.Saved = nil, false, 0
	if diff := cmp.Diff(want, got, comparable); diff != "" || err != nil {
		t.Errorf("in another boot: %v (-want +got):\n%s", err, diff)
	}
}

// TestARecordIsWrittenAsOtherReleasesReadIt: a DEL may be of another release than the ADD.
func TestARecordIsWrittenAsOtherReleasesReadIt(t *testing.T) {
	t.Parallel()
	s, r := empty(t), example()
	r.Plan = plan.Plan{}
	locked(t, s, func() { must(t, s.Save(r)) })
	got, err := os.ReadFile(filepath.Join(s.Dir, "attachments", "c1", "net1.json"))
	const want = `{"version":3,"bootID":"boot-1","network":"rail","containerID":"c1","ifName":"net1",` +
		`"pod":{"namespace":"ns","name":"pod","uid":"uid"},"netns":"/run/netns/c1","netnsID":{"dev":4,"ino":4026532000},` +
		`"ipam":"host-local","pool":"pool","config":{"name":"rail"},"digest":"digest","leftOut":["rail 1"],"trace":"00-trace-01",` +
		`"committed":true,"saved":3600000000000,"plan":`
	if text, _, _ := strings.Cut(string(got), `"plan":`); text+`"plan":` != want || err != nil {
		t.Errorf("%v, got\n%s, want\n%s", err, text, want)
	}
}

func TestAStoreWithoutFoldersHasNoRecord(t *testing.T) {
	t.Parallel()
	s := empty(t)
	list, listErr := s.List()
	of, ofErr := s.Of("c1")
	busy, busyErr := s.Busy()
	if err := errors.Join(listErr, ofErr, busyErr, s.Sweep(t.Context())); err != nil || len(list)+len(of)+len(busy) > 0 {
		t.Errorf("got %v, %v, %v, %v", list, of, busy, err)
	}
}

func TestUnreadableRecordIsNeverGuessedAt(t *testing.T) {
	t.Parallel()
	s := saved(t)
	for name, content := range map[conf.LinkName]string{
		"empty":             "",
		"torn":              `{"version":3,"bootID":"boot-1","plan":{"ops":[{"op":"mac`,
		"older format":      `{"version":2,"bootID":"boot-1"}`,
		"unknown operation": `{"version":3,"bootID":"boot-1","plan":{"ops":[{"op":"teleport","place":"pod","args":{}}]}}`,
		"unknown place":     `{"version":3,"bootID":"boot-1","plan":{"ops":[{"op":"up","place":"moon","args":{}}]}}`,
		"too long":          strings.Repeat("x", trusted.MaxSize+1),
	} {
		mine := fmt.Sprintf(`{"containerID":"c1","ifName":%q,"version"`, name) // it is refused for what it says
		plant(t, s.path(conf.Attachment{ContainerID: "c1", IfName: name}), strings.Replace(content, `{"version"`, mine, 1))
	}
	behind(t, s.path(conf.Attachment{ContainerID: "c1", IfName: "link"}))
	for _, at := range []conf.Attachment{{ContainerID: "c1", IfName: "of net1"}, {ContainerID: "c2", IfName: "net1"}} {
		must(t, os.MkdirAll(s.folder(at.ContainerID), 0o700))
		must(t, os.Link(s.path(c1), s.path(at)))
	}
	keys, err := s.List()
	if err != nil || len(keys) != 10 {
		t.Fatalf("%v, %v", keys, err)
	}
	for _, at := range keys {
		if rec, err := s.Load(at); at != c1 && (cnierr.CodeOf(err) != cnierr.Unreadable || len(rec.Plan.Ops) > 0) {
			t.Errorf("%v: %v, want code %d: DEL would not come to an end", at, err, cnierr.Unreadable)
		}
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
	for content, want := range map[string]string{`{"version":2}`: "it has format 2, and this version reads 3", `{"version":3,"network":7}`: "cannot unmarshal number"} {
		_, err := Store{}.decode("file", []byte(content))
		if e := cnierr.CNI("roce", err); e == nil || e.Code != uint(cnierr.Unreadable) || !strings.Contains(e.Msg, want) || !strings.Contains(e.Details, "delete the pod") {
			t.Errorf("%s: got %+v, want code %d and %q", content, e, cnierr.Unreadable, want)
		}
	}
}

func TestNothingRemainsOfADeletedContainer(t *testing.T) {
	t.Parallel()
	s := saved(t)
	for path, want := range map[string]fs.FileMode{s.path(c1): 0o600, s.folder("c1"): fs.ModeDir | 0o700} {
		if fi, err := os.Stat(path); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, mode %v, want %v", path, err, fi.Mode(), want)
		}
	}
	locked(t, s, func() {
		for range 2 { // a second DEL finds nothing and succeeds
			must(t, s.Delete(c1))
		}
	})
	if _, err := s.Load(c1); !errors.Is(err, ErrNotExist) {
		t.Errorf("Load() error = %v, want ErrNotExist", err)
	}
	if entries, err := os.ReadDir(s.root()); err != nil || len(entries) != 0 {
		t.Errorf("%v left in %s, %v", entries, s.root(), err)
	}
}

func TestLockGivesUp(t *testing.T) {
	t.Parallel()
	s := empty(t)
	locked(t, s, func() {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := s.Lock(ctx, "c1"); err == nil || cnierr.CodeOf(err) != cnierr.TryAgain {
			t.Errorf("when its context is over: %v, want code %d", err, cnierr.TryAgain)
		}
		cancel()
		release, err := s.LockMoves(t.Context())
		must(t, err)
		defer release()
		if _, err := s.LockMoves(ctx); err == nil || cnierr.CodeOf(err) != cnierr.TryAgain {
			t.Errorf("a lock of the node when the context is over: %v, want code %d", err, cnierr.TryAgain)
		}
	})
	must(t, os.Mkdir(filepath.Join(s.Dir, "gids.lock"), 0o700))
	_, gids := s.LockGIDs(t.Context())
	others := empty(t)
	must(t, os.Chmod(others.Dir, 0o777))
	_, shared := others.LockShared(t.Context())
	for err, want := range map[error]cnierr.Code{
		context.Canceled: cnierr.TryAgain, context.DeadlineExceeded: cnierr.TryAgain, unix.ENOLCK: cnierr.IO,
	} {
		if got := lockError("lock container", "c1", "/p", err); cnierr.CodeOf(got) != want {
			t.Errorf("%v: got %v, want code %d", err, got, want)
		}
	}
	s.Dir = filepath.Join(s.Dir, "file")
	plant(t, s.Dir, "")
	_, lock := s.Lock(t.Context(), "c1")
	_, moves := s.LockMoves(t.Context())
	_, load := s.Load(c1)
	_, list := s.List()
	_, busy := s.Busy()
	for what, err := range map[string]error{
		"Lock": lock, "LockMoves": moves, "Load": load, "List": list, "Busy": busy, "LockGIDs": gids, "LockShared": shared, "Save": s.Save(example()), "Delete": s.Delete(c1), "Sweep": s.Sweep(t.Context()),
	} {
		if err == nil || cnierr.CodeOf(err) != cnierr.IO {
			t.Errorf("%s where no folder can be: %v, want code %d", what, err, cnierr.IO)
		}
	}
}

func TestEachLockOfTheNodeIsForItself(t *testing.T) {
	t.Parallel()
	s := empty(t)
	locks := []func(context.Context) (func(), error){s.LockMoves, s.LockGIDs, s.LockShared}
	for _, lock := range locks {
		release, err := lock(t.Context())
		must(t, err)
		defer release()
	}
	for i, lock := range locks {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		if _, err := lock(ctx); err == nil || cnierr.CodeOf(err) != cnierr.TryAgain {
			t.Errorf("lock %d twice: %v, want code %d", i, err, cnierr.TryAgain)
		}
		cancel()
	}
}

func TestAMessageNamesThePodOrElseTheContainer(t *testing.T) {
	t.Parallel()
	r := example()
	if got := r.Who(); got != `pod "ns/pod"` {
		t.Errorf("got %s", got)
	}
	r.Pod.Name = ""
	if got := r.Who(); got != `container "c1"` {
		t.Errorf("outside of Kubernetes: got %s", got)
	}
}

func TestASaveThatFailsKeepsTheRecordOfBefore(t *testing.T) {
	t.Parallel()
	s := saved(t)
	torn := example()
	torn.Config, torn.Network = []byte("{"), "other"
	if err := s.Save(torn); err == nil || !strings.Contains(err.Error(), "encode record of c1/net1") {
		t.Errorf("of what cannot be encoded: %v", err)
	}
	for _, change := range []func(r *Record){
		func(r *Record) { r.Netns = strings.Repeat("x", trusted.MaxSize) },
		func(r *Record) { r.Config = []byte(`{"note":"` + strings.Repeat("<", trusted.MaxSize/4) + `"}`) }, // JSON escapes it
	} {
		changed := example()
		change(&changed)
		changed.Network = "other"
		if err := s.Save(changed); cnierr.CodeOf(err) != cnierr.BadConfig {
			t.Errorf("Save: %v, want code %d", err, cnierr.BadConfig)
		}
		if got, err := s.Load(c1); err != nil || got.Network != "rail" || len(got.Plan.Ops) == 0 {
			t.Errorf("Load() = network %q, %d operations, %v; want the record of before", got.Network, len(got.Plan.Ops), err)
		}
	}
}

func TestNoLinkIsFollowed(t *testing.T) {
	t.Parallel()
	s := empty(t)
	behind(t, s.path(c1))
	behind(t, filepath.Join(s.folder("c2"), lockName))
	if _, err := s.Load(c1); err == nil {
		t.Error("Load through a link: no error")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.Lock(ctx, "c2"); err == nil || ctx.Err() != nil {
		t.Errorf("Lock of a link: %v", err)
	}
	if busy, err := s.Busy(); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("Busy with a link: %v, %v", busy, err)
	}
	if _, ok, err := s.TryLock(ctx, "c2"); ok || cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("TryLock of a link: %t, %v", ok, err)
	}
	if err := s.Sweep(ctx); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("Sweep with a link: %v", err)
	}
	locked(t, s, func() { must(t, s.Save(example())) })
	if _, err := s.Load(c1); err != nil {
		t.Error(err)
	}
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

// TestAContainerThatCannotBeListedIsReported has one with a path that is too long for the kernel. It
// comes first, and the others are swept in spite of it.
func TestAContainerThatCannotBeListedIsReported(t *testing.T) {
	t.Parallel()
	s := empty(t)
	for len(s.root()) < unix.PathMax-220 {
		s.Dir = filepath.Join(s.Dir, strings.Repeat("d", 90))
	}
	plant(t, filepath.Join(s.folder("killed"), lockName), "")
	root, err := os.OpenRoot(s.root())
	must(t, err)
	defer root.Close()
	must(t, root.Mkdir(strings.Repeat("a", unix.NAME_MAX), 0o700))
	list, err := s.List()
	for what, err := range map[string]error{"List": err, "Sweep": s.Sweep(t.Context())} {
		if cnierr.CodeOf(err) != cnierr.IO {
			t.Errorf("%s: %v, %v, want code %d", what, list, err, cnierr.IO)
		}
	}
	if _, err := os.Stat(s.folder("killed")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a container behind it was not swept: %v", err)
	}
}

func TestUnlockRemovesTornRecordsBesideWholeOnes(t *testing.T) {
	t.Parallel()
	s := saved(t)
	locked(t, s, func() {
		plant(t, s.path(conf.Attachment{ContainerID: "c1", IfName: "net9"})+".new-0123456789abcdef", "{")
	})
	entries, err := os.ReadDir(s.folder("c1"))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{lockName, "net1.json"}; err != nil || !cmp.Equal(names, want) {
		t.Errorf("the folder has %q, %v: want %q", names, err, want)
	}
}

func TestSweepRemovesWhatWasLeftBeforeARecordWasWritten(t *testing.T) {
	t.Parallel()
	s := saved(t)
	for _, id := range []conf.ContainerID{"killed", "torn", "busy"} {
		plant(t, filepath.Join(s.folder(id), lockName), "")
	}
	plant(t, s.path(conf.Attachment{ContainerID: "torn", IfName: "net1"})+".new-0123456789abcdef", "{")
	busy, err := s.Lock(t.Context(), "busy")
	must(t, err)
	must(t, s.Sweep(t.Context()))
	if got, err := s.containers(); err != nil || !cmp.Equal(got, []conf.ContainerID{"busy", "c1"}) {
		t.Errorf("left are %q, %v: want the one at work and the one with a record", got, err)
	}
	busy()
	if keys, err := s.List(); err != nil || len(keys) != 1 {
		t.Errorf("records are %v, %v", keys, err)
	}
}

func TestAllSkipsWhatIsGoneAndNamesWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := saved(t)
	gone := example()
	gone.IfName = "net2"
	behind := example()
	behind.IfName = "net4"
	locked(t, s, func() { must(t, errors.Join(s.Save(gone), s.Save(behind))) })
	plant(t, s.path(conf.Attachment{ContainerID: "c1", IfName: "net3"}), "{")
	var got []string
	for r, err := range s.All() {
		got = append(got, fmt.Sprint(r.ContainerID, "/", r.IfName, " ", err == nil || cnierr.CodeOf(err) != cnierr.Unreadable))
		must(t, s.Delete(gone.Attachment))
	}
	if want := []string{"c1/net1 true", "c1/net3 false", "c1/net4 true"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, err := range s.All() {
		must(t, err)
		break // one is enough for this caller
	}
	for r, err := range s.All(c1) {
		if err == nil && r.Attachment == c1 {
			t.Error("All yields what it is to leave out")
		}
	}
	must(t, os.RemoveAll(s.root()))
	plant(t, s.root(), "")
	yielded := 0
	for r, err := range s.All() {
		if yielded++; r.Attachment != (conf.Attachment{}) || cnierr.CodeOf(err) != cnierr.IO {
			t.Errorf("no folder: got %v, %v", r.Attachment, err)
		}
	}
	if yielded != 1 {
		t.Errorf("no folder: %d times", yielded)
	}
}
