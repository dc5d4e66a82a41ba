// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// archive makes a file of hwtest from a recording, or with other contents.
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
	c.SetArgs([]string{"hwtest", "replay", archive(t, same), "--keep", keep})
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
	c.SetArgs([]string{"hwtest", "replay", archive(t, func(name string, content []byte) (string, []byte) {
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
		c.SetArgs([]string{"hwtest", "replay", archive(t, func(_ string, content []byte) (string, []byte) { return name, content })})
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "is no file of rocectl hwtest") {
			t.Errorf("%s: %v\n%s", name, err, &out)
		}
	}
}
