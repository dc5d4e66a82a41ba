// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package template puts the number of a rail into strings: {rail}, {rail+N},
// {rail*N} and {rail*N+M}.
//
// It judges no string but by its braces. It stands below package conf, which
// says where placeholders may be; everything is in this file.
package template

import (
	"regexp"
	"strconv"
	"strings"
)

// Hint says what a string may have.
const Hint = "write {rail}, {rail+N}, {rail*N} or {rail*N+M}; the first rail is 0"

// pattern has at most six digits for a number, so that none overflows.
func pattern() *regexp.Regexp {
	return regexp.MustCompile(`\{rail(?:\*([0-9]{1,6}))?(?:\+([0-9]{1,6}))?\}`)
}

// In says whether s has a brace, so that it is a template, or was to be one.
func In(s string) bool { return strings.ContainsAny(s, "{}") }

// Varies says whether s has a placeholder.
func Varies(s string) bool { return pattern().MatchString(s) }

// Valid says whether all braces of s are those of placeholders.
func Valid(s string) bool { return !In(pattern().ReplaceAllString(s, "")) }

// Expand replaces the placeholders of s by what they are for a rail, in decimal,
// and leaves all else. Of a JSON text it changes nothing but what is in
// strings: outside of them no brace is before a letter.
func Expand(s string, rail int) string {
	if !In(s) {
		return s
	}
	p := pattern()
	return p.ReplaceAllStringFunc(s, func(placeholder string) string {
		n, m := rail, p.FindStringSubmatch(placeholder)
		if m[1] != "" {
			n *= number(m[1])
		}
		if m[2] != "" {
			n += number(m[2])
		}
		return strconv.Itoa(n)
	})
}

// number reads what the pattern lets through.
func number(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		panic("template: " + err.Error())
	}
	return n
}
