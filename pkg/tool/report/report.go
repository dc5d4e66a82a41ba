// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package report has what a check of a node, of rails or of NICs answers, and prints it.
//
// Each answer has one of three values: ok, problem, or cannot tell, with what is missing
// for an answer. It never prints what a terminal would obey. It knows no check; doctor,
// verify and hwtest stand on it. file.go writes a report into a file.
package report

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/trusted"
)

// Verdict is the value of an answer.
type Verdict string

// The verdicts.
const (
	OK         Verdict = "ok"
	Problem    Verdict = "problem"
	CannotTell Verdict = "cannot tell"
)

// Finding is what a check has found out about one thing.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	// Of is the thing, such as a port ("mlx5_0/1"); "" is the node.
	Of    string `json:"of,omitempty"`
	Found string `json:"found"`
	// Fix is the command that solves a problem, several with a new line between
	// them. A comment for the reader starts with "#", as for a shell.
	Fix string `json:"fix,omitempty"`
	// Missing is what the check needs to tell.
	Missing string `json:"missing,omitempty"`
}

// About says what a finding is about.
func (f Finding) About(thing string) Finding {
	f.Of = thing
	return f
}

// Answer is a finding of a check.
type Answer struct {
	Check string `json:"check"`
	Finding
	// Why says why a problem matters; "" if it is none.
	Why string `json:"why,omitempty"`
}

// Status returns the exit status of a program that has got these answers: 0 if all
// are ok, 1 if there is a problem, and 2 if there is none but something could not
// be told.
func Status(answers []Answer) int {
	status := 0
	for _, a := range answers {
		switch a.Verdict {
		case Problem:
			return 1
		case CannotTell:
			status = 2
		}
	}
	return status
}

// NameWidth is the width of the column with the names of checks.
const NameWidth = 16

// WriteText writes an answer for people: a line, and below it, indented, why a
// problem matters, the commands that solve it, or what is missing to tell.
func WriteText(w io.Writer, a Answer) error {
	found := a.Found
	if a.Of != "" {
		found = strings.ReplaceAll(a.Of, "\n", "?") + ": " + found
	}
	found, more, _ := strings.Cut(found, "\n")
	var b strings.Builder
	fmt.Fprintf(&b, "%s%*s %-*s %s\n", a.Verdict.Colour(w, string(a.Verdict)), 12-len(a.Verdict), "", NameWidth, Printable(a.Check), Printable(found))
	for _, part := range []struct{ label, text string }{{"", more}, {"why: ", a.Why}, {"", a.Fix}, {"needs: ", a.Missing}} {
		for line := range strings.Lines(part.text) {
			fmt.Fprintf(&b, "%13s%s%s\n", "", part.label, Printable(strings.TrimSuffix(line, "\n")))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Colour returns a text for a writer: on a terminal, in the colour of a verdict, or in none for "".
func (v Verdict) Colour(w io.Writer, text string) string {
	colour := map[Verdict]string{OK: "32", Problem: "31", CannotTell: "33"}[v] // green, red, yellow
	if colour == "" || !Terminal(w) {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// Terminal says whether a writer is a terminal.
func Terminal(w io.Writer) bool {
	f, isFile := w.(*os.File)
	if !isFile {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Printable returns a line for a terminal. A pod, a NIC or another host may have chosen
// words of it, and a terminal obeys what it cannot print.
func Printable(line string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, line)
}

// Summary counts answers by verdict, in one line.
func Summary(answers []Answer) string { return Summarize(0, answers) }

// Summarize counts answers, and others that are ok.
func Summarize(others int, answers []Answer) string {
	n := map[Verdict]int{OK: others}
	for _, a := range answers {
		n[a.Verdict]++
	}
	return fmt.Sprintf("%d ok, %s, %d cannot tell", n[OK], Count(n[Problem], "problem"), n[CannotTell])
}

// Count returns a number with its noun, which takes an s in the plural.
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// RunProgram runs a program and returns what it prints, also with an error. It refuses a
// program of an absolute path that others than root can have put there, because the
// caller is root.
func RunProgram(ctx context.Context, program string, args ...string) (string, error) {
	if filepath.IsAbs(program) {
		if err := trusted.Program(program); err != nil {
			return "", err
		}
	}
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput() //nolint:gosec // the callers name it, and it is of root
	return string(out), err
}
