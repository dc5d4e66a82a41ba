// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/usage"
)

// TestTopShowsEachNumberInItsColumn has a pod that has another number of each thing.
func TestTopShowsEachNumberInItsColumn(t *testing.T) {
	t.Parallel()
	use := usage.Use{
		Device: "rxe0", User: usage.User{Kind: usage.Pod, Pod: conf.Pod{Namespace: "ml", Name: "job"}}, Interface: "net1",
		QueuePairs: map[string]int{"UD": 2, "RC": 1}, Contexts: 3, Regions: 4, RegionBytes: 5 << 20, Connections: 6,
		Sent: &usage.Rate{PerSecond: 7, Unit: "bytes"}, Received: &usage.Rate{PerSecond: 8, Unit: "bytes"},
		Charged: &usage.Charge{Handles: 9, Objects: 10}, Processes: []rdma.Process{{PID: 11, Comm: "train"}},
	}
	var out bytes.Buffer
	top := top{node: &nodeFlags{stateDir: t.TempDir()}, out: &out, format: cli.Format{Name: "wide"}}
	if err := top.write(&out, []usage.Use{use}, nil); err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for line := range strings.Lines(out.String()) {
		got = append(got, regexp.MustCompile(`\s{2,}`).Split(strings.TrimSpace(line), -1))
	}
	want := [][]string{
		{"POD", "INTERFACE", "DEVICE", "QUEUE PAIRS", "CONTEXTS", "REGIONS", "MEMORY", "CONNECTIONS", "SENT", "RECEIVED", "CHARGED", "PROCESSES"},
		{"ml/job", "net1", "rxe0", "RC 1, UD 2", "3", "4", "5 MiB", "6", "7 B/s", "8 B/s", "9 handles, 10 objects", "process 11 (train)"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestTopSaysWhatAllUsersOfADeviceSend, once for each device with users that are not told apart, and
// which alarms there were in the last hour.
func TestTopSaysWhatAllUsersOfADeviceSend(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now().UTC()
	for _, c := range []calls.Call{
		{At: now.Add(-50 * time.Minute), Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Pod: "ml/job", Error: "x\x1b"},
		{At: now.Add(-40 * time.Minute), Attachment: conf.Attachment{ContainerID: "c2", IfName: "net1"}, Error: "y"},
		{At: now.Add(-70 * time.Minute), Attachment: conf.Attachment{ContainerID: "c3", IfName: "net1"}, Error: "old"},
	} {
		c.Verb = calls.Alarm
		if err := (calls.File{Dir: dir}).Append(c); err != nil {
			t.Fatal(err)
		}
	}
	seconds := func(n int, sent uint64) map[usage.Source]usage.Traffic {
		return map[usage.Source]usage.Traffic{
			{Device: "rxe0"}: {At: now.Add(time.Duration(n) * time.Second), Sent: sent, Received: 2 * sent, Unit: "bytes"},
			{Device: "rxe1"}: {At: now.Add(time.Duration(n) * time.Second), Sent: sent, Received: sent, Unit: "bytes"},
		}
	}
	var out bytes.Buffer
	top := top{node: &nodeFlags{stateDir: dir}, out: &out, format: cli.Format{NoHeaders: true}, before: seconds(0, 10), now: seconds(2, 30)}
	uses := []usage.Use{{Device: "rxe0"}, {Device: "rxe0"}, {Device: "rxe1", Sent: &usage.Rate{Unit: "bytes"}}, {Device: "rxe2"}}
	if err := top.write(&out, uses, nil); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(out.String(), "# ")
	want := "rxe0: all together send 10 B/s and receive 20 B/s\n# alarm " + now.Add(-50*time.Minute).Format(time.DateTime) + ": ml/job: x?\n# alarm " +
		now.Add(-40*time.Minute).Format(time.DateTime) + ": c2: y\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s\n%s", diff, out.String())
	}
}

func TestBytesAreShownAsPeopleReadThem(t *testing.T) {
	t.Parallel()
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 20: "1 MiB", 1 << 30: "1 GiB", 5 << 40: "5120 GiB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// TestTopSaysWhatIsMissing has looks that read everything, and looks that did not.
func TestTopSaysWhatIsMissing(t *testing.T) {
	uses := []usage.Use{{Device: "rxe0", Interface: "net1", QueuePairs: map[string]int{"RC": 1}}}
	for _, missing := range []error{nil, errors.Join(errors.New("the calls"), errors.New("a record"))} {
		var out bytes.Buffer
		top := top{node: &nodeFlags{stateDir: t.TempDir()}, out: &out}
		if err := top.write(&out, uses, missing); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "RC 1") || strings.Contains(out.String(), "# missing: the calls\n# missing: a record\n") != (missing != nil) {
			t.Errorf("without %v:\n%s", missing, &out)
		}
	}
}

// TestTopEndsWhenItIsStopped, behind a whole table or with none, and says why it cannot begin.
func TestTopEndsWhenItIsStopped(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	node := &nodeFlags{stateDir: t.TempDir(), sys: fstest.MapFS{}, dial: kernelRDMA(1).Dial}
	file := filepath.Join(node.stateDir, "attachments", "c9", "net1.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	top := top{node: node, out: &out}
	if err := top.once(ctx); err != nil || out.Len() > 0 {
		t.Errorf("once: %v\n%s", err, &out)
	}
	missing := fmt.Sprintf("# missing: read record %q: unexpected end of JSON input\n", file)
	if err := top.run(ctx); err != nil || strings.Count(out.String(), "test0") != 1 || !strings.HasSuffix(out.String(), missing) {
		t.Errorf("got %v\n%s", err, &out)
	}
	node.dial = func() (*nldev.Conn, error) { return nil, unix.EPROTONOSUPPORT }
	for name, do := range map[string]func(context.Context) error{"once": top.once, "run": top.run} {
		if err := do(ctx); cnierr.CodeOf(err) != cnierr.NoRDMA || !strings.Contains(err.Error(), file) {
			t.Errorf("%s without RDMA: %v", name, err)
		}
	}
}

// TestTopSaysWhichRecordItCannotRead, because the pod of that record is an unknown user.
func TestTopSaysWhichRecordItCannotRead(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	file := filepath.Join(state, "attachments", "c9", "net1.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	top := top{node: &nodeFlags{stateDir: state}}
	if _, err := top.look(t.Context()); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v, want an error of %s", err, file)
	}
}
