// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package redact replaces what identifies a user in texts: addresses, hardware
// addresses, IDs, and the names that it is told.
//
// The same value becomes the same text wherever it appears, so that a reader can still
// follow it: 172.16.11.5 is "ip-1" in the records and in the GID table. It knows no
// format: it works on words. A redactor can also replace a value by another one of its
// kind, so that programs can still read the text: alike.go.
package redact

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Redactor replaces values. It is for one bundle, and not for concurrent use.
type Redactor struct {
	names   []name
	numbers map[string]int // of each value among those of its kind, from 1
	counts  map[string]int // of each kind
	alike   bool
	kept    []netip.Addr
}

type name struct{ kind, text string }

// words are what can be addresses.
const words = `[0-9a-fA-F:.]{2,}`

// Keep says that nothing in a text is an address of the user, such as in the version of
// a firmware: 218.0.219.1. A redactor that replaces values by others of their kind
// keeps these words everywhere.
func (r *Redactor) Keep(text string) {
	for _, word := range regexp.MustCompile(words).FindAllString(text, -1) {
		if a, err := netip.ParseAddr(strings.TrimRight(word, ".:")); err == nil {
			r.kept = append(r.kept, a)
		}
	}
}

// New returns a redactor that knows no names.
func New() *Redactor { return &Redactor{numbers: map[string]int{}, counts: map[string]int{}} }

// Name adds a name of a kind, such as "pod". The empty name is none.
func (r *Redactor) Name(kind, text string) {
	if text == "" || slices.ContainsFunc(r.names, func(n name) bool { return n.text == text }) {
		return
	}
	r.names = append(r.names, name{kind, text})
	slices.SortStableFunc(r.names, func(a, b name) int { return cmp.Compare(len(b.text), len(a.text)) })
}

// Usual says that a name is also a word of a text that does not come from the user, in
// capitals or not, or that it can be a part of a number or an address. If it were replaced,
// texts could not be read any more.
func Usual(name, text string) bool {
	if number := regexp.MustCompile(`^[0-9.:_-]*$|^(0x)?[0-9a-fA-F]{1,4}$`); number.MatchString(name) {
		return true
	}
	r := New()
	r.Name("name", strings.ToLower(name))
	return len(r.Left(strings.ToLower(text))) > 0
}

func (r *Redactor) alias(kind, value string) string {
	if r.alike {
		if like, ok := r.like(kind, value); ok {
			return like
		}
	}
	return r.numbered(kind, value)
}

// numbered returns the name of a value, such as "pod-2".
func (r *Redactor) numbered(kind, value string) string {
	return fmt.Sprintf("%s-%d", kind, r.number(kind, value))
}

func (r *Redactor) number(kind, value string) int {
	key := kind + " " + value
	if r.numbers[key] == 0 {
		r.counts[kind]++
		r.numbers[key] = r.counts[kind]
	}
	return r.numbers[key]
}

// Text returns a text without what identifies a user.
func (r *Redactor) Text(s string) string {
	for _, n := range r.names {
		s = r.replaceName(s, n)
	}
	for _, p := range []struct{ kind, pattern string }{
		{"id", `\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b`},
		{"id", `\b[0-9a-f]{32,128}\b`},
		{"mac", `\b[0-9a-fA-F]{2}(?:[:-][0-9a-fA-F]{2}){5}\b`},
		{"device", `\b(?:en|roce|ib|iw)x[0-9a-f]{12}(?:[0-9a-f]{4})?\b`}, // udev's name for a MAC or GUID
		{"guid", `\b[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}\b`},
	} {
		s = r.pattern(s, p.kind, p.pattern)
	}
	if !r.alike { // programs read the others, in which these forms are numbers too
		s = r.loose(s)
	}
	return regexp.MustCompile(words).ReplaceAllStringFunc(s, r.address)
}

// loose replaces what log files of other programs have: hardware addresses in other forms, IDs
// that were cut, names that clouds give to nodes, addresses of mail, and tokens.
func (r *Redactor) loose(s string) string {
	for _, p := range []struct{ kind, pattern string }{
		{"token", `\beyJ[\w-]+\.[\w-]+\.[\w-]+`},
		{"mail", `\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b`},
		{"node", `\bip-\d{1,3}(?:-\d{1,3}){3}\b|\baks-[a-z0-9]+-\d+-vmss[0-9a-z]+\b|\bgke-[a-z0-9-]+-[a-z0-9]{8}-[a-z0-9]{4}\b`},
		{"mac", `\b[0-9a-fA-F]{4}\.[0-9a-fA-F]{4}\.[0-9a-fA-F]{4}\b`},
	} {
		s = r.pattern(s, p.kind, p.pattern)
	}
	return regexp.MustCompile(`\b(?:0x)?[0-9a-fA-F]{12,31}\b`).ReplaceAllStringFunc(s, func(word string) string {
		digits := strings.TrimPrefix(strings.ToLower(word), "0x")
		kind := map[int]string{12: "mac", 16: "guid"}[len(digits)]
		if !strings.ContainsAny(digits, "abcdef") && !strings.HasPrefix(word, "0x") { // a number, such as a time
			return word
		}
		return r.alias(cmp.Or(kind, "id"), canonical(cmp.Or(kind, "id"), digits))
	})
}

// canonical returns the one form of a hardware address or GUID, so that it has one alias.
func canonical(kind, value string) string {
	size := map[string]int{"mac": 2, "guid": 4}[kind]
	value = strings.ToLower(value)
	if size == 0 {
		return value
	}
	digits := strings.NewReplacer(":", "", "-", "", ".", "").Replace(value)
	var parts []string
	for part := range slices.Chunk([]byte(digits), size) {
		parts = append(parts, string(part))
	}
	return strings.Join(parts, ":")
}

// pattern replaces what matches a pattern. It leaves out what is part of a longer
// address, because that is replaced as a whole.
func (r *Redactor) pattern(s, kind, pattern string) string {
	var b strings.Builder
	at := 0
	for _, m := range regexp.MustCompile(pattern).FindAllStringIndex(s, -1) {
		if m[0] > 0 && s[m[0]-1] == ':' && kind == "guid" || m[1] < len(s) && s[m[1]] == ':' && kind == "guid" {
			continue
		}
		b.WriteString(s[at:m[0]] + r.alias(kind, canonical(kind, s[m[0]:m[1]])))
		at = m[1]
	}
	return b.String() + s[at:]
}

// address replaces an IP address, however it is written. It keeps those that every
// machine has.
func (r *Redactor) address(word string) string {
	text := strings.TrimRight(word, ".:")
	a, err := netip.ParseAddr(text)
	if err != nil { // an address and a port
		port := max(strings.LastIndex(text, ":"), 0)
		if a, err := netip.ParseAddr(text[:port]); err == nil && a.Is4() {
			return r.address(text[:port]) + word[port:]
		}
		return word
	}
	a = a.Unmap()
	if a.IsUnspecified() || a.IsLoopback() {
		return word
	}
	if r.alike {
		return alikeText(text, r.Addr(a)) + word[len(text):]
	}
	return r.alias("ip", a.String()) + word[len(text):]
}

// replaceName replaces a name where it is a whole word, in capitals or not.
func (r *Redactor) replaceName(s string, n name) string {
	part := func(c rune) bool { return unicode.IsLetter(c) || unicode.IsDigit(c) }
	var b strings.Builder
	lower, text := strings.ToLower(s), strings.ToLower(n.text)
	if len(lower) != len(s) || len(text) != len(n.text) { // some letters have another size
		lower, text = s, n.text
	}
	for {
		i := strings.Index(lower, text)
		if i < 0 {
			return b.String() + s
		}
		end := i + len(n.text)
		before, _ := utf8.DecodeLastRuneInString(s[:i])
		after, _ := utf8.DecodeRuneInString(s[end:])
		if part(before) || part(after) { // at an end there is none
			b.WriteString(s[:end])
		} else {
			b.WriteString(s[:i] + r.alias(n.kind, n.text))
		}
		s, lower = s[end:], lower[end:]
	}
}
