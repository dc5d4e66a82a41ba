// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package report_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func TestAReportIsWrittenIntoNoFileOfAnotherUser(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, link, fifo := filepath.Join(dir, "report"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	fatal(t, errors.Join(os.WriteFile(path, []byte("others"), 0o600), os.Symlink(path, link), unix.Mkfifo(fifo, 0o666)))
	for _, irregular := range []string{link, fifo, "/dev/null", dir} {
		named := new(fs.PathError)
		if _, err := report.Output(irregular, 0o600); !errors.Is(err, trusted.ErrIrregular) || !errors.As(err, &named) || named.Path != irregular {
			t.Errorf("%s: %v", irregular, err)
		}
	}
	if _, err := report.Output(filepath.Join(dir, "none", "report"), 0o600); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in no folder: %v", err)
	}
	before, err := os.Open(path)
	fatal(t, err)
	defer before.Close()
	for _, mode := range []fs.FileMode{0o400, 0o600} {
		r, err := report.Output(path, mode)
		fatal(t, err)
		_, err = r.WriteString("report")
		fatal(t, errors.Join(err, r.Keep()))
		if _, err := r.WriteString("more"); !errors.Is(err, os.ErrClosed) {
			t.Errorf("a report that is kept is open: %v", err)
		}
		r.Discard()
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%v, %v, want %v", info, err, mode)
		}
	}
	if b, err := io.ReadAll(before); err != nil || string(b) != "others" {
		t.Errorf("the file of another user: %q, %v", b, err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "report" {
		t.Errorf("the report: %q, %v", b, err)
	}
	r, err := report.Output(path, 0o600)
	fatal(t, err)
	r.Discard()
	if got, err := os.ReadDir(dir); err != nil || len(got) != 3 {
		t.Errorf("%v is left, %v", got, err)
	}
	r, err = report.Output(path, 0o600)
	fatal(t, errors.Join(err, os.Remove(path), os.Mkdir(path, 0o700)))
	if err := r.Keep(); err == nil {
		t.Error("a folder was replaced")
	}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
