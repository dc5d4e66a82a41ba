// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package report

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/trusted"
)

func TestOnlyATerminalHasColours(t *testing.T) {
	t.Parallel()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer terminal.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		to   io.Writer
		want string
	}{
		{terminal, "\x1b[31mproblem\x1b[0m"}, {file, "problem"}, {struct{ io.Writer }{terminal}, "problem"},
	} {
		if got := Problem.Colour(c.to, "problem"); got != c.want {
			t.Errorf("to %T: %q, want %q", c.to, got, c.want)
		}
	}
}

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

func TestANumberHasItsNoun(t *testing.T) {
	t.Parallel()
	for n, want := range []string{"0 problems", "1 problem", "2 problems"} {
		if got := Count(n, "problem"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
