// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"strconv"
	"strings"
)

// TemplateHint says which placeholders a string may have: they stand for the number
// of a rail.
const TemplateHint = "write {rail}, {rail+N}, {rail*N} or {rail*N+M}; the first rail is 0"

// placeholder is a placeholder in a string. It stands for the number of the
// rail, times a number and plus a number.
type placeholder struct{ start, end, times, plus int }

// next returns the first placeholder of s at or after from. It uses no regular
// expression: that would be compiled again for each string, because we have no
// package-level variables, and a RailPool may have thousands of subnets.
func next(s string, from int) (p placeholder, ok bool) {
	const opening = "{rail"
	for {
		at := strings.Index(s[from:], opening)
		if at < 0 {
			return placeholder{}, false
		}
		p = placeholder{start: from + at}
		from = p.start + len(opening)
		rest := s[from:]
		p.times, rest = factor(rest, '*', 1)
		p.plus, rest = factor(rest, '+', 0)
		if strings.HasPrefix(rest, "}") {
			p.end = len(s) - len(rest) + 1
			return p, true
		}
	}
}

// factor reads a sign and a number of at most six digits, so that none
// overflows. If there is no such number, it returns standard, and s unchanged.
func factor(s string, sign byte, standard int) (n int, rest string) {
	const most = 6
	if s == "" || s[0] != sign {
		return standard, s
	}
	i := 1
	for ; i < len(s) && i <= most && '0' <= s[i] && s[i] <= '9'; i++ {
		n = 10*n + int(s[i]-'0')
	}
	if i == 1 {
		return standard, s
	}
	return n, s[i:]
}

// IsTemplate says whether s has a brace: it is a template, or was meant to be one.
func IsTemplate(s string) bool { return strings.ContainsAny(s, "{}") }

// Varies says whether s has a placeholder.
func Varies(s string) bool {
	_, ok := next(s, 0)
	return ok
}

// ValidTemplate says whether every brace of s belongs to a placeholder.
func ValidTemplate(s string) bool {
	return !IsTemplate(replace(s, func(placeholder) string { return "" }))
}

// Expand replaces the placeholders of s by their numbers for a rail, in
// decimal, and leaves everything else. In a JSON text it changes only strings:
// outside of strings, no brace is before a letter.
func Expand(s string, rail int) string {
	return replace(s, func(p placeholder) string { return strconv.Itoa(rail*p.times + p.plus) })
}

func replace(s string, by func(placeholder) string) string {
	var out strings.Builder
	done := 0
	for p, ok := next(s, 0); ok; p, ok = next(s, done) {
		out.WriteString(s[done:p.start])
		out.WriteString(by(p))
		done = p.end
	}
	if done == 0 {
		return s
	}
	out.WriteString(s[done:])
	return out.String()
}
