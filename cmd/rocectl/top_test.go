// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
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
