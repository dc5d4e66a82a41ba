// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
)

// archive makes a file of roce-hwtest from a recording, or with other contents.
func archive(t *testing.T, change func(name string, content []byte) (string, []byte)) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range []string{"results.json", "netlink.json", "sys.json"} {
		content, err := os.ReadFile(filepath.Join("../../pkg/hwtest/testdata/mlx5-like", name))
		if err != nil {
			t.Fatal(err)
		}
		at, content := change("roce-hwtest/"+name, content)
		if err := w.WriteHeader(&tar.Header{Name: at, Mode: 0o600, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "x.tar.gz")
	if err := errors.Join(w.Close(), z.Close(), os.WriteFile(file, b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestReplayTellsWhatIsDifferentNow(t *testing.T) {
	t.Parallel()
	same := func(name string, content []byte) (string, []byte) { return name, content }
	keep := filepath.Join(t.TempDir(), "kept")
	var out bytes.Buffer
	c := root(&out, &out)
	c.SetArgs([]string{"replay", archive(t, same), "--keep", keep})
	if err := c.Execute(); err == nil || err.Error() != "exit status 1" { // its problems are known
		t.Errorf("%v\n%s", err, &out)
	}
	if !strings.Contains(out.String(), "irdma0: it has no GUID") || strings.Contains(out.String(), " in the file") {
		t.Error(out.String())
	}
	if _, err := os.Stat(filepath.Join(keep, "sys.json")); err != nil {
		t.Error(err)
	}

	out.Reset()
	c = root(&out, &out)
	c.SetArgs([]string{"replay", archive(t, func(name string, content []byte) (string, []byte) {
		return name, bytes.ReplaceAll(content, []byte("4: ACTIVE"), []byte("1: DOWN"))
	})})
	if err := c.Execute(); err == nil || !strings.Contains(out.String(), `# ports mlx5_0/1: "problem" now, ["ok"] in the file`) {
		t.Errorf("%v\n%s", err, &out)
	}
}

func TestReplayRefusesOtherFiles(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"../../../etc/x.json", "roce-hwtest/../x.json", "roce-hwtest/a.sh", "/x.json"} {
		var out bytes.Buffer
		c := root(&out, &out)
		c.SetArgs([]string{"replay", archive(t, func(_ string, content []byte) (string, []byte) { return name, content })})
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "is no file of roce-hwtest") {
			t.Errorf("%s: %v\n%s", name, err, &out)
		}
	}
}

// TestReplayNamesAShortRow has a file of a stranger with an answer that is no answer of a
// kernel.
func TestReplayNamesAShortRow(t *testing.T) {
	t.Parallel()
	for typ, want := range map[uint16]string{
		unix.RTM_GETLINK: "row 2 of the answer to RTM_GETLINK has 7 bytes, want at least 16",
		unix.RTM_GETADDR: "row 2 of the answer to RTM_GETADDR has 7 bytes, want at least 8",
	} {
		file := archive(t, func(name string, content []byte) (string, []byte) {
			var ms []recording.Message
			if path.Base(name) != "netlink.json" {
				return name, content
			}
			if err := json.Unmarshal(content, &ms); err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(ms, func(m recording.Message) bool {
				return m.Protocol == unix.NETLINK_ROUTE && m.Type == typ && len(m.Rows) > 1
			})
			ms[i].Rows[1] = ms[i].Rows[1][:7]
			content, err := json.Marshal(ms)
			if err != nil {
				t.Fatal(err)
			}
			return name, content
		})
		var out bytes.Buffer
		c := root(&out, &out)
		c.SetArgs([]string{"replay", file})
		var e *cnierr.Error
		err := c.Execute()
		if !errors.As(err, &e) || e.Code != cnierr.IO || e.Subject != file || !strings.Contains(err.Error(), want) ||
			!strings.Contains(e.Hint, "that roce-hwtest has written") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestReplayKeepsOnlyWhatItCouldReplay has files of strangers that are refused, and a
// folder that has files: nothing may be written.
func TestReplayKeepsOnlyWhatItCouldReplay(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(string, []byte) (string, []byte){
		"no file of roce-hwtest": func(name string, content []byte) (string, []byte) {
			if path.Base(name) == "sys.json" { // the last one
				name = "roce-hwtest/a.sh"
			}
			return name, content
		},
		"no JSON": func(name string, content []byte) (string, []byte) {
			if path.Base(name) == "netlink.json" {
				content = content[:len(content)/2]
			}
			return name, content
		},
		"no answers": func(name string, content []byte) (string, []byte) {
			if path.Base(name) == "netlink.json" {
				content = []byte("[]")
			}
			return name, content
		},
	} {
		var out bytes.Buffer
		keep := filepath.Join(t.TempDir(), "kept")
		c := root(&out, &out)
		c.SetArgs([]string{"replay", archive(t, change), "--keep", keep})
		if err := c.Execute(); cnierr.CodeOf(err) != cnierr.IO {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(keep); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the folder was made (%v)", name, err)
		}
	}
	keep := t.TempDir()
	if err := os.WriteFile(filepath.Join(keep, "results.json"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := root(&out, &out)
	c.SetArgs([]string{"replay", archive(t, func(n string, b []byte) (string, []byte) { return n, b }), "--keep", keep})
	err := c.Execute()
	files, _ := os.ReadDir(keep)
	mine, _ := os.ReadFile(filepath.Join(keep, "results.json"))
	if cnierr.CodeOf(err) != cnierr.IO || len(files) != 1 || string(mine) != "mine" || out.Len() > 0 {
		t.Errorf("a folder with a file: %v, then it has %v, and %q was printed", err, files, out.String())
	}
}
