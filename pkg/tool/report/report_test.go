// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package report

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	if got := Verdict("").Colour(terminal, "text"); got != "text" {
		t.Errorf("without a verdict: %q", got)
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

func TestWhatAProgramPrintsIsReturnedWithItsError(t *testing.T) {
	t.Parallel()
	out, err := RunProgram(t.Context(), "sh", "-c", "echo out; echo complaint >&2; exit 3")
	if status := new(exec.ExitError); out != "out\ncomplaint\n" || !errors.As(err, &status) || status.ExitCode() != 3 {
		t.Errorf("%q, %v", out, err)
	}
}

func TestAnAnswerThatCannotBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := WriteText(full, Answer{Check: "kernel"}); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
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

// TestAnAnswerForPeople has all parts, of several lines and with characters that a terminal obeys.
func TestAnAnswerForPeople(t *testing.T) {
	t.Parallel()
	for want, a := range map[string]Answer{
		"problem      gid-table        mlx5_0/1?x: full?[2J\n" +
			"             second line\n" +
			"             why: pods fail\n             why: all of them\n" +
			"             # look\n             rocectl gids?\n" +
			"             needs: root\n": {Check: "gid-table", Why: "pods fail\nall of them", Finding: Finding{
			Verdict: Problem, Of: "mlx5_0/1\nx", Found: "full\x1b[2J\nsecond line", Fix: "# look\nrocectl gids\a", Missing: "root",
		}},
		"ok           kernel           7.3 of today\n":       {Check: "kernel", Finding: Finding{Verdict: OK, Found: "7.3\tof today"}},
		"cannot tell  a-check-with-a-long-name ens1: away\n": {Check: "a-check-with-a-long-name", Finding: Finding{Verdict: CannotTell, Found: "away"}.About("ens1")},
	} {
		var out strings.Builder
		if err := WriteText(&out, a); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

func TestAProblemCountsMoreThanWhatCannotBeTold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		verdicts []Verdict
		status   int
		summary  string // with three others that are ok
	}{
		{nil, 0, "3 ok, 0 problems, 0 cannot tell"},
		{[]Verdict{OK, OK}, 0, "5 ok, 0 problems, 0 cannot tell"},
		{[]Verdict{CannotTell, OK}, 2, "4 ok, 0 problems, 1 cannot tell"},
		{[]Verdict{Problem, CannotTell, OK}, 1, "4 ok, 1 problem, 1 cannot tell"},
		{[]Verdict{CannotTell, CannotTell, Problem, Problem}, 1, "3 ok, 2 problems, 2 cannot tell"},
	} {
		var all []Answer
		for _, v := range c.verdicts {
			all = append(all, Answer{Finding: Finding{Verdict: v}})
		}
		if status, summary := Status(all), Summarize(3, all); status != c.status || summary != c.summary {
			t.Errorf("%q: status %d, %q, want %d, %q", c.verdicts, status, summary, c.status, c.summary)
		}
	}
}
