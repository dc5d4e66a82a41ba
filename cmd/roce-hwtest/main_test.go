// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/hwtest"
	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
)

// TestHWTestOpensItsFileFirst has a file that cannot be made: a run would be lost.
func TestHWTestOpensItsFileFirst(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	cmd, file := root(&out, &out), filepath.Join(t.TempDir(), "none", "x.tar.gz")
	cmd.SetArgs([]string{"--out", file})
	var e *cnierr.Error
	if err := cmd.Execute(); !errors.As(err, &e) || e.Code != cnierr.IO || e.Subject != file || !strings.Contains(e.Hint, "--out") {
		t.Errorf("got %v, want an error that names the file", err)
	}
	if out.Len() > 0 {
		t.Errorf("steps ran: %s", out.String())
	}
}

// TestHWTestLeavesNoEmptyFile has a node without RDMA devices, as that of a typing error.
func TestHWTestLeavesNoEmptyFile(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	cmd, file := root(&out, &out), filepath.Join(t.TempDir(), "x.tar.gz")
	cmd.SetArgs([]string{"--out", file})
	err := cmd.Execute()
	if cnierr.CodeOf(err) != cnierr.NoRDMA {
		t.Skipf("the node has RDMA devices: %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the file is there, with nothing in it")
	}
}

// TestHWTestRefusesNamesThatSpoilItsFile has words that the file has anyway.
func TestHWTestRefusesNamesThatSpoilItsFile(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ok", "ports", "1"} {
		var out bytes.Buffer
		cmd, file := root(&out, &out), filepath.Join(t.TempDir(), "x.tar.gz")
		cmd.SetArgs([]string{"--out", file, "--name", "acme", "--name", name})
		var e *cnierr.Error
		if err := cmd.Execute(); !errors.As(err, &e) || e.Code != cnierr.BadConfig || !strings.Contains(err.Error(), strconv.Quote(name)) {
			t.Errorf("%s: got %v, want an error that names it", name, err)
		}
		if _, err := os.Stat(file); err == nil || out.Len() > 0 {
			t.Errorf("%s: the run began: %s", name, out.String())
		}
	}
}

// TestTheFileStaysReadableWhateverTheNodeIsCalled writes a recording as the run of a node
// with a name that is a word of it, and replays it.
func TestTheFileStaysReadableWhateverTheNodeIsCalled(t *testing.T) {
	const recorded = "../../pkg/hwtest/testdata/mlx5-like"
	rec, err := recording.Read(os.DirFS(recorded))
	if err != nil {
		t.Fatal(err)
	}
	n, r, end, err := hwtest.Open(recorded, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	r.Answers = nil
	if _, err := n.Look(t.Context(), func(a hwtest.Answer) { r.Answers = append(r.Answers, a) }); err != nil {
		t.Fatal(err)
	}
	for name, kept := range map[string]bool{"ok": true, "infiniband": true, "net": true, "mlx5": true, "gpu-07": false} {
		t.Setenv("NODE_NAME", name)
		var said bytes.Buffer
		file, err := os.Create(filepath.Join(t.TempDir(), "x.tar.gz"))
		if err == nil {
			err = errors.Join(flags{}.write(&said, file, r, rec), file.Close())
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if says := strings.Contains(said.String(), strconv.Quote(name)); says != kept {
			t.Errorf("%s: it says %q", name, said.String())
		}
		var out bytes.Buffer
		c := root(&out, &out)
		c.SetArgs([]string{"replay", file.Name()})
		if err := c.Execute(); err == nil || err.Error() != "exit status 1" || strings.Contains(out.String(), " in the file") {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
}
