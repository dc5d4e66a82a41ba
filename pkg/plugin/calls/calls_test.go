// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package calls_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

func call(n int) calls.Call {
	return calls.Call{
		At: time.Unix(int64(n), 0).UTC(), Verb: "ADD", Network: "rails", Attachment: conf.Attachment{ContainerID: conf.ContainerID(fmt.Sprint("c", n)), IfName: "net1"},
		Pod: "ml/trainer-0", Took: 7 * time.Millisecond, Code: 106, Error: "the gateway does not answer", Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}
}

func all(t *testing.T, f calls.File) []calls.Call {
	t.Helper()
	got, _, err := f.After("")
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestCallsAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	f := calls.File{Dir: t.TempDir()}
	if got := all(t, f); got != nil {
		t.Errorf("without a file there are %v", got)
	}
	want := []calls.Call{call(1), {At: time.Unix(2, 0).UTC(), Verb: "DEL", Took: time.Millisecond}, call(3)}
	for _, c := range want {
		if err := f.Append(c); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, all(t, f)); diff != "" {
		t.Error(diff)
	}
	info, err := os.Stat(filepath.Join(f.Dir, "calls"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the file has mode %v, error %v", info.Mode(), err)
	}
}

func TestHeldIndexesAreFoundAmongTheCalls(t *testing.T) {
	t.Parallel()
	f := calls.File{Dir: t.TempDir()}
	held := call(2)
	held.Held = []calls.Held{{Device: "mlx5_0", Port: 1, Index: 3, Netns: 7, BootID: "boot", Since: time.Hour}}
	named := call(3)
	named.Error = `"held":`
	again := calls.Call{Verb: "DEL", Held: []calls.Held{{Device: "mlx5_1", Index: 4}}}
	write(t, f, "calls", `{"verb": "DEL", "held":[]}`+"\n")
	for _, c := range []calls.Call{call(1), held, named, again} {
		if err := f.Append(c); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := f.Held(); err != nil || !cmp.Equal(got, []calls.Call{held, again}) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestOnlyTheHealerMakesAgain(t *testing.T) {
	t.Parallel()
	c := calls.Call{Verb: calls.Heal, Steps: []calls.Step{{Name: "route"}, {Name: "rule"}, {Name: "route"}}}
	for verb, want := range map[string][]string{calls.Heal: {"route", "rule"}, calls.Alarm: nil, "ADD": nil} {
		c.Verb = verb
		if got := c.Made(); !slices.Equal(got, want) || c.ByHealer() != (verb != "ADD") {
			t.Errorf("%s: made %q, by the healer: %t", verb, got, c.ByHealer())
		}
	}
}

func TestOnlyCallsBehindTheMarkAreRead(t *testing.T) {
	t.Parallel()
	f := calls.File{Dir: t.TempDir()}
	var mark calls.Mark
	for n := range 4000 { // more than a part
		if err := f.Append(call(n)); err != nil {
			t.Fatal(err)
		}
		if n%1000 != 1 {
			continue
		}
		got, next, err := f.After(mark)
		if err != nil || len(got) != min(n+1, 1000) && n > 1 || got[len(got)-1].ContainerID != call(n).ContainerID {
			t.Fatalf("behind %d there are %d calls, error %v", n, len(got), err)
		}
		if again, _, _ := f.After(next); len(again) != 0 {
			t.Errorf("behind the last call there is %v", again)
		}
		mark = next
	}
	if got, _, err := f.After("a call of long ago\n"); err != nil || len(got) < 1500 {
		t.Errorf("behind a call that is not kept there are %d calls, error %v", len(got), err)
	}
}

func write(t *testing.T, f calls.File, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.Dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAMarkThatIsNotKeptIsBeforeAllCalls(t *testing.T) {
	t.Parallel()
	f := calls.File{Dir: t.TempDir()}
	write(t, f, "calls", "{\"took\": 1}\n") // a mark at the very beginning
	_, first, err := f.After("")
	if err != nil {
		t.Fatal(err)
	}
	if got, mark, err := f.After(first); len(got) > 0 || mark != first || err != nil {
		t.Errorf("behind the only call: %v, %q, %v", got, mark, err)
	}
	for n := range 2 {
		if err := f.Append(call(n)); err != nil {
			t.Fatal(err)
		}
	}
	if got, _, err := f.After(first); err != nil || !cmp.Equal(got, []calls.Call{call(0), call(1)}) {
		t.Errorf("behind the first call: %v, %v", got, err)
	}
	if got, _, err := f.After("a call of long ago\n"); err != nil || !cmp.Equal(got, []calls.Call{{Took: 1}, call(0), call(1)}) {
		t.Errorf("behind a call that is not kept: %v, %v", got, err)
	}
}

// A part is full at 512 KiB. Who finds it full makes it the older one, unless another does.
func TestAFullPartBecomesTheOlderOne(t *testing.T) {
	t.Parallel()
	probe := calls.File{Dir: t.TempDir()}
	if err := probe.Append(call(1)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(probe.Dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	full := 512<<10 - int(info.Size())
	for _, c := range []struct {
		size   int
		locked bool
		turned bool
	}{{full - 1, false, false}, {full, false, true}, {full, true, false}} {
		f := calls.File{Dir: t.TempDir()}
		write(t, f, "calls", strings.Repeat("x", c.size))
		write(t, f, "calls.1", "{\"took\": 1}\n")
		if c.locked {
			other, err := os.Open(filepath.Join(f.Dir, "calls"))
			if err == nil {
				err = unix.Flock(int(other.Fd()), unix.LOCK_EX)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
		}
		if err := f.Append(call(1)); err != nil {
			t.Error(err)
		}
		want := []calls.Call{{Took: 1}, call(1)}
		if c.turned {
			want = want[1:]
		}
		_, err := os.Stat(filepath.Join(f.Dir, "calls"))
		if got := all(t, f); !cmp.Equal(got, want) || (err != nil) != c.turned {
			t.Errorf("%+v: got %v, and of the newer part %v", c, got, err)
		}
	}
}

func TestACallThatCannotBeWrittenOrReadIsAnError(t *testing.T) {
	t.Parallel()
	f := calls.File{Dir: filepath.Join(t.TempDir(), "none")}
	var p *fs.PathError
	if err := f.Append(call(1)); !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &p) || p.Path != filepath.Join(f.Dir, "calls") {
		t.Errorf("in no folder: %v", err)
	}
	f.Dir = t.TempDir()
	late := call(1)
	late.At = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC) // RFC 3339 has no such year
	if err := f.Append(late); err == nil || all(t, f) != nil {
		t.Errorf("of what cannot be encoded: %v, written %v", err, all(t, f))
	}
	write(t, f, "calls", strings.Repeat("x", 512<<10))
	if err := os.MkdirAll(filepath.Join(f.Dir, "calls.1", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Append(call(1)); err == nil {
		t.Error("of a part that cannot become the older one: no error")
	}
	got, mark, err := f.After("a mark\n")
	if got != nil || mark != "a mark\n" || err == nil {
		t.Errorf("of a part that is a folder: %v, %q, %v", got, mark, err)
	}
	if held, err := f.Held(); held != nil || err == nil {
		t.Errorf("of a part that is a folder: %v, %v", held, err)
	}
}

// No other test runs at the same time, so that the number of open files is this one's.
func TestNoFileStaysOpen(t *testing.T) { //nolint:paralleltest // see above
	f := calls.File{Dir: t.TempDir()}
	before := cnitest.OpenFiles(t)
	for n := range 5 {
		if err := f.Append(call(n)); err != nil {
			t.Fatal(err)
		}
		all(t, f)
	}
	if after := cnitest.OpenFiles(t); after != before {
		t.Errorf("%d files are open, %d were", after, before)
	}
}

func TestALongErrorIsCut(t *testing.T) {
	t.Parallel()
	f := calls.File{Dir: t.TempDir()}
	c := call(1)
	c.Error = strings.Repeat("x", 1<<20)
	if err := f.Append(c); err != nil {
		t.Fatal(err)
	}
	if got := all(t, f); len(got) != 1 || len(got[0].Error) != 500 {
		t.Errorf("got %d calls", len(got))
	}
}

// TestTheFileKeepsTheLastCalls has eight processes that write more than the file keeps.
func TestTheFileKeepsTheLastCalls(t *testing.T) {
	t.Parallel()
	f := calls.File{Dir: t.TempDir()}
	const writers, each = 8, 1000
	var done sync.WaitGroup
	for w := range writers {
		done.Go(func() {
			for i := range each {
				if err := f.Append(call(w*each + i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
	seen := map[conf.ContainerID]bool{}
	for _, c := range all(t, f) {
		if seen[c.ContainerID] {
			t.Errorf("%s is there twice", c.ContainerID)
		}
		seen[c.ContainerID] = true
		if c.Network != "rails" || c.Took != 7*time.Millisecond {
			t.Errorf("lines are mixed: %v", c)
		}
	}
	entries, err := os.ReadDir(f.Dir)
	if err != nil || len(entries) != 2 {
		t.Fatalf("the folder has %v, error %v", entries, err)
	}
	var size int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > 1<<20+10_000 || len(seen) < 1500 {
		t.Errorf("it keeps %d calls in %d bytes", len(seen), size)
	}
}

// TestALinkIsNotFollowed has what another program puts in the place of the file.
func TestALinkIsNotFollowed(t *testing.T) {
	t.Parallel()
	f := calls.File{Dir: t.TempDir()}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Symlink(other, filepath.Join(f.Dir, "calls")); err != nil {
		t.Fatal(err)
	}
	if err := f.Append(call(1)); err == nil {
		t.Error("it was written through a link")
	}
	if _, err := os.Stat(other); err == nil {
		t.Error("the other file was made")
	}
}

// TestALineThatIsNoCallLosesNoOther has what a full file system leaves, and what no call writes.
func TestALineThatIsNoCallLosesNoOther(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"{\"verb\": \"AD", "{\"verb\": \"AD\n[]\nnull{}\n"} {
		f := calls.File{Dir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(f.Dir, "calls"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for n := range 2 {
			if err := f.Append(call(n)); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff([]calls.Call{call(0), call(1)}, all(t, f)); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}

// TestNoCallIsReadTwiceOrNever reads while another process appends.
func TestNoCallIsReadTwiceOrNever(t *testing.T) {
	t.Parallel()
	f := calls.File{Dir: t.TempDir()}
	const all = 2500 // the file keeps them
	go func() {
		for n := range all {
			if err := f.Append(call(n)); err != nil {
				t.Error(err)
			}
		}
	}()
	var mark calls.Mark
	for next := 0; next < all; {
		got, behind, err := f.After(mark)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range got {
			if c.ContainerID != call(next).ContainerID {
				t.Fatalf("after c%d comes %s", next-1, c.ContainerID)
			}
			next++
		}
		mark = behind
	}
}

// FuzzCalls: whatever a part of the file has, the calls that are appended are read, and once.
func FuzzCalls(f *testing.F) {
	f.Add([]byte("{\"verb\": \"AD\n[]\nnull{}\n"), []byte("{\"took\": 1}\n"))
	f.Add([]byte{}, []byte("{\"took\": 1}\n"))
	f.Fuzz(func(t *testing.T, older, newer []byte) {
		file := calls.File{Dir: t.TempDir()}
		for name, b := range map[string][]byte{"calls.1": older, "calls": newer} {
			if err := os.WriteFile(filepath.Join(file.Dir, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		before := all(t, file)
		_, mark, err := file.After("")
		if err != nil || file.Append(call(1)) != nil {
			t.Fatal(err)
		}
		if got := all(t, file); len(got) != len(before)+1 || !cmp.Equal(got[len(before)], call(1)) {
			t.Errorf("before: %v, after: %v", before, got)
		}
		if got, _, err := file.After(mark); err != nil || !cmp.Equal(got, []calls.Call{call(1)}) {
			t.Errorf("behind the mark %q: %v, %v", mark, got, err)
		}
	})
}
