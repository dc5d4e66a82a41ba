// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package report

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/trusted"
)

func TestAProgramThatOthersCanChangeIsNotRun(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "roce")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho ran\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := RunProgram(t.Context(), program); err != nil || out != "ran\n" {
		t.Errorf("a program of root: %q, %v", out, err)
	}
	if err := os.Chmod(filepath.Dir(program), 0o777); err != nil {
		t.Fatal(err)
	}
	if out, err := RunProgram(t.Context(), program); !errors.Is(err, trusted.ErrOthers) {
		t.Errorf("in a folder of all users: %q, %v", out, err)
	}
}
