// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package foreign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

// The lines are those of Linux 7.3 and 6.1. The program of the second one has the name of a
// line that is made up, as far as a name can be.
const text = ` ibv_rc_pingpong-165     [000] .....    32.899836: gid: (rdma_get_gid_attr+0x4/0xf0 [ib_core]) dev=0xffff888007312000 port=1 index=1 from=0xffffffffc045dd4d caller=rdma_fill_sgid_attr+0x9d/0xc0 [ib_core]
a
-9 [0] . 1.1: g-168     [001] d..1.    44.521242: gid: (rdma_get_gid_attr+0x0/0xf0 [ib_core]) dev=0xffff888006ad4000 port=2 index=7 from=0xffffffffc0324480 caller=rdma_fill_sgid_attr.isra.0+0xa0/0xc0 [ib_core]
CPU:1 [LOST 17 EVENTS]
    kworker/u8:1-14      [001] .....    33.116061: gid: (rdma_get_gid_attr+0x4/0xf0 [ib_core]) dev=0xffff888007312000 port=1 index=1 from=0xffffffffc04e9cc4 caller=rxe_init_packet+0x34/0x150 [rdma_rxe]
CPU:0 [LOST EVENTS]
            odd-170     [000] .....    33.200000: gid: (rdma_get_gid_attr+0x4/0xf0 [ib_core]) dev=0xffff888007312000 port=1 index=99999999999999999999 from=0xffffffffc045dd4d caller=rdma_fill_sgid_attr+0x9d/0xc0 [ib_core]
`

func TestLinesOfTheKernelAreRead(t *testing.T) {
	t.Parallel()
	uses, lost := parse([]byte(text))
	want := []use{
		{165, 0xffff888007312000, 1, 1, 0xffffffffc045dd4d, "rdma_fill_sgid_attr"},
		{168, 0xffff888006ad4000, 2, 7, 0xffffffffc0324480, "rdma_fill_sgid_attr"},
		{14, 0xffff888007312000, 1, 1, 0xffffffffc04e9cc4, "rxe_init_packet"},
	}
	if diff := cmp.Diff(want, uses, cmp.AllowUnexported(use{})); diff != "" {
		t.Errorf("uses (-want +got)\n%s", diff)
	}
	if lost != 18 {
		t.Errorf("%d are lost, want 18", lost)
	}
	for i, is := range []bool{true, true, false} {
		if uses[i].setsGID() != is {
			t.Errorf("%+v: want %v", uses[i], is)
		}
	}
}

// There is more than is read at once, and what is read ends within a line.
func TestALookIsBoundedAndLosesNothing(t *testing.T) {
	t.Parallel()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	if _, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, 1<<20); err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(text, "\n")
	wrote := 3 * most / len(line)
	if n, err := unix.Write(fds[1], []byte(strings.Repeat(line+"\n", wrote))); err != nil || n != wrote*(len(line)+1) {
		t.Fatalf("%d bytes, error %v", n, err)
	}
	p := &probe{pipe: fds[0]}
	for left := wrote; left > 0; {
		uses, _, err := p.read()
		if n := len(uses); err != nil || n == 0 || n*len(line) > most+4<<10 {
			t.Fatalf("%d uses of %d, error %v, want some, and at most %d bytes of them", n, left, err, most)
		}
		left -= len(uses)
	}
	if uses, _, err := p.read(); len(uses) > 0 || err != nil {
		t.Errorf("%d uses more than there are, error %v", len(uses), err)
	}
}

// The probe sees all that its own thread reads.
func TestTablesAreReadOnAnotherThread(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	on := 0
	elsewhere(func() { on = unix.Gettid() })
	if on == 0 || on == unix.Gettid() {
		t.Errorf("they are read on thread %d, want one that is not %d", on, unix.Gettid())
	}
}

// A new use is not told later because an empty look was slow: then it is the machine that is busy.
func TestOnlyALookThatFindsUsesRests(t *testing.T) {
	t.Parallel()
	line, _, _ := strings.Cut(text, "\n")
	for content, want := range map[string]time.Duration{"": lookEvery, line + "\n": restAtMost} {
		path := filepath.Join(t.TempDir(), "trace_pipe")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		pipe, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer pipe.Close()
		var now time.Duration
		w := New(Config{Sys: fstest.MapFS{}, Proc: fstest.MapFS{}, Clock: pace.Clock{Now: func() time.Duration { now += time.Second; return now }}})
		if rest, err := w.look(t.Context(), &probe{pipe: int(pipe.Fd())}); rest != want || err != nil {
			t.Errorf("%q: a rest of %v, error %v, want %v", content, rest, err, want)
		}
	}
}

func TestOnlyTheGIDOfAnotherPodIsForeign(t *testing.T) {
	t.Parallel()
	of := func(ino uint64) gids.Owner { return gids.Owner{ContainerID: "c", ID: netns.ID{Ino: ino}} }
	stranger := gids.Owner{Netns: "/proc/5/ns/net", ID: netns.ID{Ino: 99}}
	entry := func(index int, owners ...gids.Owner) gids.Entry {
		return gids.Entry{Index: index, GID: strconv.Itoa(index), Owners: owners}
	}
	added := func(index int, gid string, owners ...gids.Owner) gids.Entry {
		return gids.Entry{Index: index, GID: gid, Owners: owners}
	}
	tables := []gids.Table{
		{Device: "rxe0", Port: 1, Entries: []gids.Entry{
			entry(0, gids.Owner{Link: "r0"}), entry(1, of(77)), entry(2, of(88)), entry(3), entry(4, of(88), of(77)), entry(5, of(88), gids.Owner{Link: "r0"}),
			entry(6, stranger), added(7, "2"), added(8, "1", stranger), added(10, "fe80:88", of(88)), added(11, "fe80:88"), added(12, "r1"), added(13, "2", stranger),
			added(14, "1", of(88)), entry(15, of(88), of(99)),
		}},
		{Device: "rxe0", Port: 2, Entries: []gids.Entry{added(1, "port 2", of(88)), added(3, "port 2", of(88))}},
		{Device: "rxe1", Port: 1, Entries: []gids.Entry{added(1, "r1", of(88))}},
		{Device: "rxe0", Port: 1, Holder: &gids.Owner{}, Entries: []gids.Entry{entry(1, of(88)), entry(9, of(88))}}, // its pod has it alone
	}
	foreign := []int{2, 7, 10, 12, 13, 14, 15} // 7, 12 and 13 have an address that the pod has added
	for index := range 16 {
		if other := (place{77, "rxe0", 1, index}).owner(tables); (other != nil) != slices.Contains(foreign, index) {
			t.Errorf("index %d: owner %v, want one of %v", index, other, foreign)
		} else if other != nil && other.ID.Ino != 88 {
			t.Errorf("index %d: owner %+v, want the pod that has the address", index, other)
		}
	}
}

// The alarm does not wait for the tables of the node where the records decide.
func TestRecordsDecideOnlyWhatIsCertain(t *testing.T) {
	t.Parallel()
	const port = "class/infiniband/rxe0/ports/1/"
	sys := fstest.MapFS{}
	for index, e := range []struct{ addr, netdev string }{
		{"10.0.0.1", "r0"},
		{"10.1.0.1", "net1"},
		{"10.1.0.2", "net1"},
		{"10.1.0.9", "net1"},
		{"10.1.0.4", "net1"},
		{"10.1.0.5", "r0"},
		{"10.1.0.6", "net1"},
		{"10.1.0.7", "net1"},
		{"10.1.0.8", "net1"},
		{"10.1.0.10", "net1"},
	} {
		sys[fmt.Sprint(port, "gids/", index)] = &fstest.MapFile{Data: []byte(plan.GIDText(netip.MustParseAddr(e.addr)) + "\n")}
		sys[fmt.Sprint(port, "gid_attrs/ndevs/", index)] = &fstest.MapFile{Data: []byte(e.netdev + "\n")}
	}
	rec := func(ino uint64, device, addr string, index int) record.Record {
		g := plan.GID{Device: plan.RDMADevice{Name: device, Port: 1}, Targets: []plan.GIDTarget{{Link: "net1", Addr: netip.MustParseAddr(addr), Index: &index}}}
		return record.Record{Attachment: conf.Attachment{ContainerID: conf.ContainerID(fmt.Sprint(ino))}, NetnsID: netns.ID{Ino: ino}, Plan: plan.Plan{Ops: plan.OnHost(g)}}
	}
	port2 := rec(88, "rxe0", "10.1.0.8", 8) // of another port
	for g := range plan.All[plan.GID](port2.Plan.Ops) {
		g.Device.Port = 2
		port2.Plan.Ops = plan.OnHost(g)
	}
	records := []record.Record{
		rec(77, "rxe0", "10.1.0.1", 1), rec(88, "rxe0", "10.1.0.2", 2),
		rec(88, "rxe0", "10.1.0.3", 3),                                 // its index has another address now
		rec(88, "rxe0", "10.1.0.4", 4), rec(99, "rxe0", "10.1.0.4", 9), // two have the address
		rec(88, "rxe0", "10.1.0.5", 5),                                 // the host has the entry now
		rec(88, "rxe1", "10.1.0.6", 6),                                 // of another device
		rec(88, "rxe0", "10.1.0.7", 7), rec(77, "rxe1", "10.1.0.7", 7), // the user has the address elsewhere
		port2,
		rec(88, "rxe0", "10.1.0.10", 9), rec(99, "rxe0", "10.1.0.10", 9), // two have the place
	}
	w := New(Config{Sys: sys})
	for index := range 11 {
		owner, decided := w.recorded(records, place{77, "rxe0", 1, index})
		if want := index == 1 || index == 2; decided != want || index == 1 && owner != nil {
			t.Errorf("index %d: owner %v, decided %v, want %v", index, owner, decided, want)
		}
		want := gids.Owner{ContainerID: "88", Link: "net1", Addr: netip.MustParseAddr("10.1.0.2"), ID: netns.ID{Ino: 88}}
		if index == 2 && (owner == nil || *owner != want) {
			t.Errorf("index 2: owner %+v, want %+v", owner, want)
		}
	}
}

// watcherOf has a program of namespace 77 in thread 5, and ml/p2, which has index 3 of rxe0.
func watcherOf(t *testing.T) *Watcher {
	t.Helper()
	index := 3
	own, err := netns.At("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr("10.1.0.2")
	w := New(Config{
		Sys: fstest.MapFS{
			"class/infiniband/rxe0/ports/1/gids/3":            {Data: []byte(plan.GIDText(addr) + "\n")},
			"class/infiniband/rxe0/ports/1/gid_attrs/ndevs/3": {Data: []byte("net1\n")},
		},
		Proc: fstest.MapFS{"5/ns/net": {Data: []byte("net:[77]"), Mode: fs.ModeSymlink}},
		Records: func() ([]record.Record, error) {
			g := plan.GID{Device: plan.RDMADevice{Name: "rxe0", Port: 1}, Targets: []plan.GIDTarget{{Link: "net1", Addr: addr, Index: &index}}}
			return []record.Record{{Pod: conf.Pod{Namespace: "ml", Name: "p2"}, Attachment: conf.Attachment{ContainerID: "c2"}, Netns: own.Path, NetnsID: own.ID, Plan: plan.Plan{Ops: plan.OnHost(g)}}}, nil
		},
		Calls: calls.File{Dir: t.TempDir()},
		Clock: pace.Clock{Now: func() time.Duration { return time.Hour }, Rand: func() float64 { return .5 }}, Log: slog.New(slog.DiscardHandler),
	})
	w.devices[1] = "rxe0"
	return w
}

func TestAlarmNeedsNoTableOfTheNodeWhereTheRecordsDecide(t *testing.T) {
	t.Parallel()
	proc := func(text ...string) fstest.MapFS {
		out := fstest.MapFS{}
		for i := 0; i < len(text); i += 2 {
			out[text[i]+"/ns/net"] = &fstest.MapFile{Data: []byte(text[i+1]), Mode: fs.ModeSymlink}
		}
		return out
	}
	own, err := netns.At("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	same := func(r record.Record) []record.Record { return []record.Record{r} }
	for name, c := range map[string]struct {
		proc    fstest.MapFS
		records func(record.Record) []record.Record
		alarms  int
		decided bool
	}{
		"of another pod":       {proc("5", "net:[77]"), same, 1, true},
		"the own one":          {proc("5", fmt.Sprintf("net:[%d]", own.Ino)), same, 0, true},
		"of the host":          {proc("5", "net:[77]", "self", "net:[77]"), same, 0, true},
		"a thread that ended":  {proc(), same, 0, true},
		"a pod that is gone":   {proc("5", "net:[77]"), func(r record.Record) []record.Record { r.Netns, r.NetnsID.Ino = t.TempDir()+"/gone", 6; return same(r) }, 0, false},
		"two with the address": {proc("5", "net:[77]"), func(r record.Record) []record.Record { return []record.Record{r, r} }, 0, false},
	} {
		w := watcherOf(t)
		all := w.Records
		w.Proc, w.Records = c.proc, func() ([]record.Record, error) { r, err := all(); return c.records(r[0]), err }
		w.judge(t.Context(), []use{{thread: 5, device: 1, port: 1, index: 3}})
		told, _, err := w.Calls.After("")
		if err != nil || len(told) != c.alarms || len(told) > 0 && !strings.Contains(told[0].Error, "which is 10.1.0.2 of ml/p2") {
			t.Errorf("%s: alarms %+v, error %v, want %d that name ml/p2", name, told, err, c.alarms)
		}
		if c.decided && (len(w.again) > 0 || w.tables != pace.Pause{}) {
			t.Errorf("%s: the tables were read, and %v waits", name, w.again)
		}
	}
}

// What the records do not decide, the tables do.
func TestAlarmIsAboutTheOwnerInTheTables(t *testing.T) {
	t.Parallel()
	w := watcherOf(t)
	foreign, own := place{77, "rxe0", 1, 4}, place{77, "rxe0", 1, 5}
	w.again, w.tables = map[place]uint32{foreign: 5, own: 5}, pace.Pause{Until: time.Hour, Wait: time.Minute}
	entry := func(index int, ino uint64) gids.Entry {
		o := gids.Owner{Pod: conf.Pod{Namespace: "ml", Name: fmt.Sprint("p", ino)}, ContainerID: "c", Addr: netip.MustParseAddr("10.1.0.4"), ID: netns.ID{Ino: ino}}
		return gids.Entry{Index: index, GID: fmt.Sprint(index), Owners: []gids.Owner{o}}
	}
	w.settle(nil, map[place]uint32{foreign: 5, own: 5}, []gids.Table{{Device: "rxe0", Port: 1, Entries: []gids.Entry{entry(4, 88), entry(5, 77)}}})
	told, _, err := w.Calls.After("")
	if err != nil || len(told) != 1 || !strings.Contains(told[0].Error, "uses index 4 of the GID table of rxe0/1, which is 10.1.0.4 of ml/p88: ") {
		t.Errorf("alarms %+v, error %v, want one that names ml/p88", told, err)
	}
	if len(w.again) > 0 || (w.tables != pace.Pause{}) {
		t.Errorf("%v waits for the tables, which are not read before %v", w.again, w.tables)
	}
}

// A program can set thousands of queue pairs in a second, each a use of the same place.
func TestAUseIsJudgedOnceInAPeriod(t *testing.T) {
	t.Parallel()
	w := watcherOf(t)
	all, now, reads := w.Records, time.Hour, 0
	w.Clock.Now = func() time.Duration { return now }
	w.Records = func() ([]record.Record, error) { reads++; return all() }
	const periods = 5
	for ; now < time.Hour+periods*knownFor; now += lookEvery {
		w.judge(t.Context(), []use{{thread: 5, device: 1, port: 1, index: 3}})
	}
	if reads < periods-1 || reads > periods {
		t.Errorf("judged %d times in %d periods, want once in each", reads, periods)
	}
}

// A queue pair that is set once is told, although the tables could not be read when it was. They
// are tried again after a pause, and the number of a thread may be another pod's by then.
func TestUseIsJudgedAgainAfterTheTablesCouldNotBeRead(t *testing.T) {
	t.Parallel()
	for later, alarms := range map[string]int{"net:[77]": 1, "net:[78]": 0} {
		w := watcherOf(t)
		all, now, reads := w.Records, time.Hour, 0
		w.Clock.Now = func() time.Duration { return now }
		w.Records = func() ([]record.Record, error) { reads++; return nil, nil } // the tables must decide
		ended, end := context.WithCancel(t.Context())
		end()
		w.judge(ended, []use{{thread: 5, device: 1, port: 1, index: 3}})
		for ; now < time.Hour+5*time.Second; now += lookEvery {
			w.judge(ended, nil)
		}
		if told, _, err := w.Calls.After(""); err != nil || len(told) > 0 || reads != 1 {
			t.Fatalf("alarms %+v, error %v, the records were read %d times, want once", told, err, reads)
		}
		w.Records, w.Proc = all, fstest.MapFS{"5/ns/net": {Data: []byte(later), Mode: fs.ModeSymlink}}
		w.judge(t.Context(), nil)
		w.judge(t.Context(), nil)
		if told, _, err := w.Calls.After(""); err != nil || len(told) != alarms || alarms > 0 && !strings.Contains(told[0].Error, "of ml/p2") {
			t.Errorf("thread in %s: alarms %+v, error %v, want %d that name ml/p2", later, told, err, alarms)
		}
		if len(w.again) > 0 {
			t.Errorf("thread in %s: %v still waits", later, w.again)
		}
	}
}

func TestUsesThatCannotWaitForTheTablesAreAnAlarm(t *testing.T) {
	t.Parallel()
	w := watcherOf(t)
	w.Records = func() ([]record.Record, error) { return nil, nil }
	ended, end := context.WithCancel(t.Context())
	end()
	for index := range mostAgain {
		w.judge(ended, []use{{thread: 5, device: 1, port: 1, index: index}})
	}
	if told, _, err := w.Calls.After(""); err != nil || len(told) > 0 {
		t.Fatalf("alarms %+v, error %v, want none as long as all uses wait", told, err)
	}
	w.judge(ended, []use{{thread: 5, device: 1, port: 1, index: mostAgain}})
	told, _, err := w.Calls.After("")
	if err != nil || len(told) != 1 || told[0].Steps[0].Name != calls.LostUses || len(w.again) > 0 {
		t.Errorf("%d uses wait, alarms %+v, error %v, want one of lost uses", len(w.again), told, err)
	}
}

// The inode of a namespace that is gone may be another pod's.
func TestRecordOfANamespaceThatIsGoneDoesNotCount(t *testing.T) {
	t.Parallel()
	own, err := netns.At("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	here := record.Record{Netns: own.Path, NetnsID: own.ID}
	gone := record.Record{Netns: t.TempDir() + "/gone", NetnsID: netns.ID{Dev: own.Dev, Ino: 5}}
	reused := record.Record{Netns: own.Path, NetnsID: netns.ID{Dev: own.Dev, Ino: 6}}
	if got := living([]record.Record{gone, here, reused}); len(got) != 1 || got[0].NetnsID != own.ID {
		t.Errorf("living %+v, want %+v", got, here)
	}
}

// sees is a sysfs. A probe counts what is opened in it.
type sees struct {
	fs.FS
	profile string
	hits    *int
}

func (s sees) Open(name string) (fs.File, error) {
	*s.hits++
	if err := os.WriteFile(s.profile, fmt.Appendf(nil, "  %-44s %15d %15d\n  %-44s %15d %15d\n", "open", 7, 0, "gid", *s.hits, 0), 0o600); err != nil {
		return nil, err
	}
	return s.FS.Open(name)
}

func TestProbeThatCountsNothingIsAnError(t *testing.T) {
	t.Parallel()
	p := &probe{tracing: t.TempDir()}
	profile := filepath.Join(p.tracing, "kprobe_profile")
	if err := os.WriteFile(profile, []byte("  gid\n  gid  5  0\n  gids  6  0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sys := fstest.MapFS{"class/infiniband/rxe0/ports/1/gid_attrs/types/0": {}}
	if err := New(Config{Sys: sys}).try(p); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("a probe that counts nothing: %v", err)
	}
	if err := New(Config{Sys: fstest.MapFS{}}).try(p); err != nil {
		t.Errorf("without a device: %v", err)
	}
	if err := New(Config{Sys: sees{sys, profile, new(int)}}).try(p); err != nil {
		t.Errorf("a probe that counts: %v", err)
	}
	if err := os.Remove(profile); err != nil {
		t.Fatal(err)
	}
	if err := New(Config{Sys: sys}).try(p); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the file of the kernel: %v", err)
	}
}

// One alarm for each reason why nothing is watched, until it is watched again.
func TestBlindWatcherIsToldOnce(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	tries := 0
	w := New(Config{
		Tracing: t.TempDir() + "/none", Calls: calls.File{Dir: t.TempDir()}, Log: slog.New(slog.DiscardHandler),
		Clock: pace.Clock{Wait: func(context.Context, time.Duration) error {
			if tries++; tries == 3 {
				stop()
			}
			return nil
		}},
	})
	w.Run(ctx)
	w.blind(errors.New("another reason"))
	all, _, err := w.Calls.After("")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range all {
		got = append(got, c.Steps[0].Name+": "+c.Error)
	}
	const begin = "lost: it is not told when a pod uses the GID of another one: "
	want := []string{
		begin + "watch the use of GIDs by a kprobe in \"" + w.Tracing + "\": statfs " + w.Tracing + ": no such file or directory",
		begin + "another reason",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("alarms after %d tries (-want +got)\n%s", tries, diff)
	}
}

// A record stays damaged until an operator repairs it, and there are ten looks in a second.
func TestDamagedRecordIsSaidOnceUntilItIsAnother(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var now time.Duration
	ended, end := context.WithCancel(t.Context()) // no table can be read, which is said once, too
	end()
	damaged := errors.New("c1 is damaged")
	w := New(Config{
		Sys: fstest.MapFS{}, Proc: fstest.MapFS{"5/ns/net": {Data: []byte("net:[77]"), Mode: fs.ModeSymlink}},
		Records: func() ([]record.Record, error) { return nil, damaged }, Calls: calls.File{Dir: t.TempDir()},
		Clock: pace.Clock{Now: func() time.Duration { return now }, Rand: func() float64 { return .5 }}, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	w.devices[1] = "rxe0"
	for _, want := range []string{"c1 is damaged", "c2 is damaged"} {
		damaged = errors.New(want)
		for range 3 {
			now += 2 * knownFor
			w.judge(ended, []use{{thread: 5, device: 1, port: 1}})
		}
		if got := strings.Count(log.String(), want); got != 1 {
			t.Errorf("said %d times, want once:\n%s", got, &log)
		}
	}
	if got := strings.Count(log.String(), "the GID tables cannot be read"); got != 1 {
		t.Errorf("the tables: said %d times, want once:\n%s", got, &log)
	}
}

// kprobe_events has the probes of other programs, too.
func TestALineForTheKernelIsAppended(t *testing.T) {
	t.Parallel()
	p := &probe{tracing: t.TempDir()}
	if err := p.write("kprobe_events", "-:x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the file of the kernel: %v", err)
	}
	path := filepath.Join(p.tracing, "kprobe_events")
	if err := errors.Join(os.WriteFile(path, []byte("p:other f\n"), 0o600), p.write("kprobe_events", "p:x g")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "p:other f\np:x g\n" {
		t.Errorf("the file has %q, error %v", b, err)
	}
}

func TestRemoveLeavesWhatIsNoTracefs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, instance), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir); err != nil {
		t.Error(err)
	}
	if err := Remove(dir + "/none"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, instance)); err != nil {
		t.Error(err)
	}
}

// A pod is told once for each NIC, and again later each time. The programs without a record
// are one.
func TestAlarmsOfAPodBackOff(t *testing.T) {
	t.Parallel()
	var now time.Duration
	w := New(Config{
		Proc: fstest.MapFS{"5/comm": {Data: []byte("a\x1bb\n")}}, Calls: calls.File{Dir: t.TempDir()},
		Clock: pace.Clock{Now: func() time.Duration { return now }, Rand: func() float64 { return .5 }}, Log: slog.New(slog.DiscardHandler),
	})
	rec := record.Record{
		Network: "n", Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Pod: conf.Pod{Namespace: "ml", Name: "p1", UID: "u"}, NetnsID: netns.ID{Ino: 77},
		Plan: plan.Plan{Ops: plan.OnHost(plan.GID{Device: plan.RDMADevice{Name: "rxe0"}, Targets: []plan.GIDTarget{{Link: "net1"}}})},
	}
	second := record.Record{
		Network: "m", Attachment: conf.Attachment{ContainerID: "c1", IfName: "net2"}, Pod: rec.Pod, NetnsID: rec.NetnsID,
		Plan: plan.Plan{Ops: plan.OnHost(plan.GID{Device: plan.RDMADevice{Name: "rxe1"}, Targets: []plan.GIDTarget{{Link: "net2"}}})},
	}
	victim := gids.Owner{Pod: conf.Pod{Namespace: "ml", Name: "p2"}, ContainerID: "c2", Addr: netip.MustParseAddr("172.16.0.2")}
	for ; now < time.Hour; now += time.Second {
		for index := range 3 {
			for _, device := range []string{"rxe0", "rxe1"} {
				w.tell([]record.Record{rec, second}, place{77, device, 1, index}, 5, victim)
			}
			w.tell([]record.Record{rec}, place{uint64(1000 + now/time.Second), "rxe0", 1, index}, 5, victim)
		}
	}
	all, _, err := w.Calls.After("")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(all); n < 3*10 || n > 3*20 {
		t.Errorf("%d alarms in an hour, want some for each of three", n)
	}
	first := all[0]
	if first.Attachment != rec.Attachment || first.Pod != "ml/p1" || first.UID != "u" || first.Network != "n" || first.Verb != calls.Alarm || first.Steps[0].Name != calls.ForeignGID {
		t.Errorf("the alarm is %+v", first)
	}
	if on1 := all[1]; on1.Attachment != second.Attachment || on1.Network != "m" {
		t.Errorf("the alarm of the second NIC is %+v", on1)
	}
	if want := "process 5 (a?b) uses index 0 of the GID table of rxe0/1, which is 172.16.0.2 of ml/p2: "; !strings.HasPrefix(first.Error, want) {
		t.Errorf("it says %q, want %q", first.Error, want)
	}
	of := map[conf.ContainerID]int{}
	for _, c := range all {
		of[c.ContainerID]++
	}
	if len(of) != 2 || of["c1"] < 2*of[""]-10 {
		t.Errorf("alarms by container: %v, want those of two NICs of c1, and of the namespaces without record", of)
	}
	if len(w.told) > 3 {
		t.Errorf("%d subjects are kept", len(w.told))
	}
}
