// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// WriteText writes an answer for people: a line, and below it, indented, why a
// problem matters, the commands that solve it, or what is missing to tell.
func WriteText(w io.Writer, a Answer) error {
	found := a.Found
	if a.Of != "" {
		found = strings.ReplaceAll(a.Of, "\n", "?") + ": " + found
	}
	found, more, _ := strings.Cut(found, "\n")
	var b strings.Builder
	fmt.Fprintf(&b, "%-12s %-*s %s\n", a.Verdict, longestName(), Printable(a.Check), Printable(found))
	for _, part := range []struct{ label, text string }{{"", more}, {"why: ", a.Why}, {"", a.Fix}, {"needs: ", a.Missing}} {
		for line := range strings.Lines(part.text) {
			fmt.Fprintf(&b, "%13s%s%s\n", "", part.label, Printable(strings.TrimSuffix(line, "\n")))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
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

func longestName() int {
	n := 0
	for _, c := range Checks() {
		n = max(n, len(c.Name))
	}
	return n
}

// Summary counts answers by verdict, in one line.
func Summary(answers []Answer) string { return Summarize(0, answers) }

// Summarize counts answers, and others that are ok.
func Summarize(others int, answers []Answer) string {
	n := map[Verdict]int{OK: others}
	for _, a := range answers {
		n[a.Verdict]++
	}
	return fmt.Sprintf("%d ok, %s, %d cannot tell", n[OK], count(n[Problem], "problem"), n[CannotTell])
}
