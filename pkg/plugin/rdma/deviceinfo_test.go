// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

const infoText = `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:0b:00.2","rdma-device":"mlx5_4"}}`

// info returns the operation for a file in a folder that is not there yet, and
// what executes it.
func info(t *testing.T) (*Subsystem, plan.DeviceInfo) {
	t.Helper()
	s := New(Config{})
	t.Cleanup(s.Close)
	return s, plan.DeviceInfo{File: filepath.Join(t.TempDir(), "devinfo", "cni", "rail-c1_net1"), PCI: "0000:0b:00.2", Device: "mlx5_4"}
}

// holds fails the test unless a file has a text, and nothing is beside it.
func holds(t *testing.T, path, want string) {
	t.Helper()
	if b, err := os.ReadFile(path); err != nil || string(b) != want {
		t.Errorf("the file holds %q (%v), want %q", b, err, want)
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("its folder has %v (%v), want the file alone", files, err)
	}
}

func TestDeviceInfoIsWrittenAndRemoved(t *testing.T) {
	t.Parallel()
	s, op := info(t)
	for range 2 {
		must(t, s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
		holds(t, op.File, infoText)
	}
	if err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(op.File+".new-0123456789abcdef", []byte(`{"ty`), 0o600); err != nil { // of a process that was killed
		t.Fatal(err)
	}
	for range 2 {
		must(t, s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
	}
	if files, err := os.ReadDir(filepath.Dir(op.File)); err != nil || len(files) != 0 {
		t.Errorf("the folder has %v (%v), want nothing", files, err)
	}
	if err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op}); cnierr.CodeOf(err) != cnierr.Damaged {
		t.Errorf("Check of a file that is gone: %v", err)
	}
}

func TestDeviceInfoOfTheDevicePluginStays(t *testing.T) {
	t.Parallel()
	s, op := info(t)
	must(t, os.MkdirAll(filepath.Dir(op.File), 0o755))
	const theirs = `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:0b:00.2","vhost-net":"/dev/vhost-net"}}`
	must(t, os.WriteFile(op.File, []byte(theirs), 0o444))
	must(t, s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
	holds(t, op.File, theirs)
	if err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
		t.Error(err)
	}
	must(t, s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
	holds(t, op.File, theirs)
}

func TestDeviceInfoUndoneWhereNothingWasDoneIsSuccess(t *testing.T) {
	t.Parallel()
	s, op := info(t)
	if err := s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
		t.Error(err)
	}
}

func TestDeviceInfoThatCannotBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	s, op := info(t)
	folder := filepath.Dir(filepath.Dir(op.File))
	if err := os.WriteFile(folder, nil, 0o600); err != nil { // a file where the folder should be
		t.Fatal(err)
	}
	for _, do := range []func(context.Context, plan.Op) error{s.Do, s.Undo, s.Check} {
		if err := do(t.Context(), plan.Op{Place: plan.Host, Kind: op}); cnierr.CodeOf(err) != cnierr.IO || !strings.Contains(err.Error(), op.File) {
			t.Errorf("got %v, want code 5", err)
		}
	}
	s, op = info(t)
	op.File += strings.Repeat("x", 240) // the name of its draft is too long
	if err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("without a draft: got %v, want code 5", err)
	}
}

func TestDeviceInfoIsNotWrittenThroughALink(t *testing.T) {
	t.Parallel()
	s, op := info(t)
	legit := filepath.Join(t.TempDir(), "legit")
	must(t, errors.Join(os.WriteFile(legit, []byte("legit"), 0o600), os.MkdirAll(filepath.Dir(op.File), 0o755)))
	for _, link := range []string{op.File, op.File + ".roce"} {
		must(t, os.Symlink(legit, link))
	}
	for _, do := range []func(context.Context, plan.Op) error{s.Do, s.Undo} {
		must(t, do(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
		if b, err := os.ReadFile(legit); err != nil || string(b) != "legit" {
			t.Errorf("behind the links: %q, %v", b, err)
		}
	}
}
