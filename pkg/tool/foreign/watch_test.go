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
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
)

// kernel is a tracefs with a probe, and the sysfs of two devices, which the probe sees being read.
type kernel struct {
	fs.FS
	t      *testing.T
	dir    string
	pipe   int
	hits   int
	blind  bool   // the probe sees nothing
	during string // is in the pipe after the next read of sysfs
}

// newKernel returns the kernel, and the probe of the calling thread.
func newKernel(t *testing.T, sys fs.FS) (*kernel, *probe) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	k := &kernel{FS: sys, t: t, dir: t.TempDir(), pipe: fds[1]}
	p := &probe{tracing: k.dir, thread: unix.Gettid(), pipe: fds[0]}
	t.Cleanup(p.close)
	filter := filepath.Join(k.dir, instance, "events", event, "filter")
	if err := os.MkdirAll(filepath.Dir(filter), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{filter, filepath.Join(k.dir, "kprobe_profile"), filepath.Join(k.dir, "kprobe_events")} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return k, p
}

// Open has the kernel see a read of the type of a GID.
func (k *kernel) Open(name string) (fs.File, error) {
	m := regexp.MustCompile(`^class/infiniband/rxe(\d)/ports/(\d)/gid_attrs/types/(\d+)$`).FindStringSubmatch(name)
	if m != nil && !k.blind {
		k.hits++
		if err := os.WriteFile(filepath.Join(k.dir, "kprobe_profile"), fmt.Appendf(nil, "  gid %d 0\n", k.hits), 0o600); err != nil {
			return nil, err
		}
		k.print(used(unix.Gettid(), m[1], m[2], m[3], "show_gid_type"))
	}
	if m != nil {
		k.print(k.during)
		k.during = ""
	}
	return k.FS.Open(name)
}

// used is a line about a thread that uses an entry of a device.
func used(thread int, device, port, index, caller string) string {
	return fmt.Sprintf("     x-%d     [000] .....    32.899836: gid: (rdma_get_gid_attr+0x4/0xf0 [ib_core]) dev=0xf%s port=%s index=%s from=0x%x caller=%s+0x1/0x2 [m]\n",
		thread, device, port, index, len(caller), caller)
}

func (k *kernel) print(lines string) {
	k.t.Helper()
	if _, err := unix.Write(k.pipe, []byte(lines)); err != nil && lines != "" {
		k.t.Fatal(err)
	}
}

// filters returns what the filter of the probe was set to.
func (k *kernel) filters() []string {
	k.t.Helper()
	b, err := os.ReadFile(filepath.Join(k.dir, instance, "events", event, "filter"))
	if err != nil {
		k.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// TestAProbeIsFollowedUntilItIsBlind has a pod that uses an entry of another pod while the devices
// are named, another caller, lost uses, and then a probe that sees nothing any more.
func TestAProbeIsFollowedUntilItIsBlind(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w := watcherOf(t)
	sys := maps.Clone(w.Sys.(fstest.MapFS)) //nolint:forcetypeassert // it is
	sys["class/infiniband/rxe1/ports/1/state"] = &fstest.MapFile{}
	k, p := newKernel(t, sys)
	var log bytes.Buffer
	w.Sys, w.devices, w.Log = k, map[uint64]string{9: "of before"}, slog.New(slog.NewTextHandler(&log, nil))
	var told, pauses []string
	now, steps := time.Hour, []func(){
		func() {
			k.print(used(5, "9", "1", "3", "ib_modify_qp") + used(14, "0", "1", "3", "rxe_init_packet") + "CPU:1 [LOST 5 EVENTS]\n")
			k.during = used(5, "0", "1", "3", "ib_modify_qp") + "CPU:1 [LOST 6 EVENTS]\n" // before the kernel had the filter
		},
		func() { k.print("CPU:1 [LOST 17 EVENTS]\n") },
		func() { k.blind = true },
		func() {}, // it is tried once in a minute
	}
	w.Clock.Now = func() time.Duration { return now }
	w.Clock.Wait = func(_ context.Context, d time.Duration) error {
		all, _, err := w.Calls.After("")
		for _, c := range all[len(told):] {
			told = append(told, fmt.Sprintf("%d %s", len(pauses), c.Error))
		}
		pauses = append(pauses, d.String())
		if n := len(pauses); n <= len(steps) {
			steps[n-1]()
		} else {
			t.Errorf("it goes on after %d looks", n)
			return context.Canceled
		}
		now += againEvery / 2
		return err
	}
	err := w.follow(t.Context(), p)
	if cnierr.CodeOf(err) != cnierr.IO || !strings.Contains(fmt.Sprint(err), "the probe does not work any more") {
		t.Errorf("it ends with %v", err)
	}
	want := []string{
		"1 process 5 () uses index 3 of the GID table of rxe0/1, which is 10.1.0.2 of ml/p2: have it use the index that roce-env or rocectl gids shows",
		"2 17 uses of GIDs were not looked at, because there were too many: a foreign one may be among them",
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("alarms, after so many looks (-want +got)\n%s", diff)
	}
	if len(pauses) != len(steps) || slices.ContainsFunc(pauses, func(d string) bool { return d != lookEvery.String() }) {
		t.Errorf("it waits for %v", pauses)
	}
	if diff := cmp.Diff(map[uint64]string{0xf0: "rxe0", 0xf1: "rxe1"}, w.devices); diff != "" || len(w.again) > 0 {
		t.Errorf("%v waits, devices (-want +got)\n%s", w.again, diff)
	}
	filters := []string{"0", fmt.Sprintf("common_pid == %d || (from != 0xf)", p.thread)}
	if diff := cmp.Diff(filters, k.filters()); diff != "" {
		t.Errorf("filters (-want +got)\n%s", diff)
	}
	if !strings.Contains(log.String(), "watching the use of GIDs") || !strings.Contains(log.String(), "devices=2") {
		t.Errorf("the log is\n%s", &log)
	}
}

func TestAProbeThatCannotBeFollowedIsAnError(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	noPipe := func(p *probe) {
		old := p.pipe
		t.Cleanup(func() { _ = unix.Close(old) })
		p.pipe = -1
	}
	for want, spoil := range map[string]func(w *Watcher, k *kernel, p *probe){
		"(hostPID)":         func(_ *Watcher, k *kernel, _ *probe) { k.blind = true },
		"read trace_pipe":   func(_ *Watcher, _ *kernel, p *probe) { noPipe(p) },
		"no such file":      func(_ *Watcher, k *kernel, _ *probe) { _ = os.RemoveAll(filepath.Join(k.dir, instance)) },
		"the context ended": func(*Watcher, *kernel, *probe) {},
		"read trace_pipe: bad file descriptor": func(w *Watcher, _ *kernel, p *probe) {
			w.Clock.Wait = func(context.Context, time.Duration) error { noPipe(p); return nil }
		},
	} {
		w := watcherOf(t)
		w.Clock.Wait = func(context.Context, time.Duration) error { return context.Canceled }
		k, p := newKernel(t, w.Sys)
		w.Sys = k
		spoil(w, k, p)
		err := w.follow(t.Context(), p)
		if err == nil {
			err = errors.New("the context ended")
		}
		if !strings.Contains(err.Error()+cnierr.CNI("", err).Details, want) {
			t.Errorf("want %s: %v", want, err)
		}
	}
	w := watcherOf(t)
	k, p := newKernel(t, fstest.MapFS{})
	k.blind, w.Sys = true, k
	w.Clock.Wait = func(context.Context, time.Duration) error { return context.Canceled }
	if err := w.follow(t.Context(), p); err != nil {
		t.Errorf("without a device: %v", err)
	}
}

// A filter that is too long, the kernel would refuse.
func TestTheFilterHasSoManyCallers(t *testing.T) {
	t.Parallel()
	k, p := newKernel(t, fstest.MapFS{})
	for from := range uint64(2 * mostCallers) {
		for range 2 {
			if err := p.ignore(from + 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := k.filters()
	if last := all[len(all)-1]; len(all) != mostCallers || !strings.HasSuffix(last, " && from != 0x20)") || strings.Count(last, "&&") != mostCallers-1 {
		t.Errorf("%d filters, the last one is %s", len(all), last)
	}
}

func TestAProbeIsRemovedWithItsBuffer(t *testing.T) {
	t.Parallel()
	k, p := newKernel(t, fstest.MapFS{})
	if err := p.remove(); !errors.Is(err, unix.ENOTEMPTY) || !strings.Contains(err.Error(), filepath.Join(k.dir, instance)) {
		t.Errorf("with a buffer that stays: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(k.dir, instance, "events")); err != nil {
		t.Fatal(err)
	}
	p.close()
	p.pipe = -1
	if _, err := unix.Write(k.pipe, []byte("x")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("its pipe is open: %v", err)
	}
	if _, err := os.Stat(filepath.Join(k.dir, instance)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its buffer: %v", err)
	}
	if err := p.remove(); err != nil { // it is gone already
		t.Error(err)
	}
	events := filepath.Join(k.dir, "kprobe_events")
	if b, err := os.ReadFile(events); err != nil || string(b) != "-:roce_cni/gid\n-:roce_cni/gid\n" {
		t.Errorf("the events are %q, error %v", b, err)
	}
	if err := os.Remove(events); err != nil {
		t.Fatal(err)
	}
	if err := p.remove(); err != nil { // a kernel without kprobes
		t.Error(err)
	}
	if err := os.Symlink("/dev/full", events); err != nil {
		t.Fatal(err)
	}
	if err := p.remove(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("with an event that stays: %v", err)
	}
}

// After that long, a message is about something new: the next ones do not wait.
func TestAMessageIsNewAgainTenMinutesAfterItsPause(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]time.Duration{forgetAfter: 10 * time.Second, forgetAfter + 1: 5 * time.Second} {
		w := watcherOf(t)
		var now time.Duration
		w.Clock.Now = func() time.Duration { return now }
		about := subject{"c1", "rxe0"}
		w.alarm(about, calls.Call{}, calls.ForeignGID)
		now = w.told[about].Until + after
		w.alarm(about, calls.Call{}, calls.ForeignGID)
		if got := w.told[about].Wait; got != want {
			t.Errorf("%v after the pause the next one is %v, want %v", after, got, want)
		}
	}
}

func TestAnAlarmThatCannotBeNotedIsLogged(t *testing.T) {
	t.Parallel()
	w := watcherOf(t)
	var log bytes.Buffer
	w.Log, w.Calls.Dir = slog.New(slog.NewTextHandler(&log, nil)), filepath.Join(w.Calls.Dir, "none")
	w.blind(errors.New("it is off"))
	for _, want := range []string{"msg=alarm", "it is off", "an alarm cannot be noted"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, &log)
		}
	}
}

func TestTheCallersThatSetAGIDAreThoseOfEachKernel(t *testing.T) {
	t.Parallel()
	for _, caller := range []string{
		"rdma_fill_sgid_attr", "rdma_create_ah", "rdma_create_user_ah", "rdma_modify_ah",
		"_ib_modify_qp", "ib_modify_qp", "ib_modify_qp_with_udata",
	} {
		if !(use{caller: caller}).setsGID() {
			t.Errorf("%s sets a GID", caller)
		}
	}
}
