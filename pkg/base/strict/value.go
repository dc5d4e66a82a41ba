// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package strict

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// Kind is a JSON type, as messages name it.
type Kind string

// The JSON types. Absent is also null as the value of a key.
const (
	Absent    Kind = ""
	AnObject  Kind = "an object"
	AList     Kind = "a list"
	AString   Kind = "a string"
	ANumber   Kind = "a number"
	TrueFalse Kind = "true or false"
	Null      Kind = "null"
)

// Value is one JSON value and the path that leads to it. Its readers report a
// wrong value and return the default. For an absent value they return the
// default without a report.
type Value struct {
	Path   string
	faults *Faults
	raw    json.RawMessage // nil: absent
}

// ValueAt returns a value that another reader has read, nil if it is absent. It
// must be JSON.
func (f *Faults) ValueAt(path string, raw json.RawMessage) Value {
	return Value{path, f, raw}
}

// Kind returns the value's JSON type.
func (v Value) Kind() Kind {
	if v.raw == nil {
		return Absent
	}
	switch v.raw[0] {
	case '{':
		return AnObject
	case '[':
		return AList
	case '"':
		return AString
	case 't', 'f':
		return TrueFalse
	case 'n':
		return Null
	}
	return ANumber
}

// Present says whether there is a value.
func (v Value) Present() bool { return v.raw != nil }

// Raw returns the value as it is written, "" if it is absent.
func (v Value) Raw() string { return string(v.raw) }

// Fault notes a fault of the value.
func (v Value) Fault(code cnierr.Code, hint, format string, args ...any) {
	v.faults.Add(code, v.Path, hint, format, args...)
}

// Bad notes that the value cannot be used: a Fault with cnierr.BadConfig.
func (v Value) Bad(hint, format string, args ...any) {
	v.Fault(cnierr.BadConfig, hint, format, args...)
}

// Missing notes that the value is required and absent.
func (v Value) Missing(hint string) {
	if !v.Present() {
		v.Bad(hint, "missing")
	}
}

// is says whether v has the wanted type. It returns false for an absent value.
// Another type is a fault.
func (v Value) is(want Kind, hint string) bool {
	got := v.Kind()
	if got != want && got != Absent {
		v.Fault(cnierr.Decode, hint, "want %s, got %s", want, got)
	}
	return got == want
}

// Text returns a string. The second result is false if there is none. The fault
// for another type has the hint.
func (v Value) Text(hint string) (string, bool) {
	if !v.is(AString, hint) {
		return "", false
	}
	var s string
	return s, json.Unmarshal(v.raw, &s) == nil
}

// longestPath leaves room for the names of files in a folder: PATH_MAX is 4096.
const longestPath = 1024

// Absolute returns an absolute path below the root, in its shortest form, of printable
// characters. The second result is false if there is none.
func (v Value) Absolute() (string, bool) {
	s, ok := v.Text("")
	if !ok {
		return "", false
	}
	hidden := func(r rune) bool { return !unicode.IsPrint(r) }
	if len(s) > longestPath || !filepath.IsAbs(s) || s == "/" || filepath.Clean(s) != s || strings.ContainsFunc(s, hidden) {
		v.Bad("", "%q is not a clean absolute path below /, of at most %d bytes", s, longestPath)
		return "", false
	}
	return s, true
}

// True says whether the value is true.
func (v Value) True() bool { return v.is(TrueFalse, "write it without quotes") && v.raw[0] == 't' }

// Whole returns a whole number from lo to hi.
func (v Value) Whole(def, lo, hi int64) int64 {
	if !v.is(ANumber, "write it without quotes") {
		return def
	}
	n, err := strconv.ParseInt(string(v.raw), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		v.Bad("", "%s is not a whole number", v.raw)
	case err != nil || n < lo || n > hi:
		v.Bad("", "%s is not in %d to %d", v.raw, lo, hi)
	default:
		return n
	}
	return def
}

// Octet returns a number of eight bits, nil if there is none.
func (v Value) Octet() *uint8 {
	if !v.Present() {
		return nil
	}
	return new(uint8(v.Whole(0, 0, math.MaxUint8)))
}

// Duration returns a duration from lo to hi, in the form of time.ParseDuration.
func (v Value) Duration(def, lo, hi time.Duration) time.Duration {
	hint := fmt.Sprintf("write a time with its unit, such as %q", def)
	s, ok := v.Text(hint)
	if !ok {
		return def
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		v.Bad(hint, "%q is not a time", s)
	case d < lo || d > hi:
		v.Bad("", "%s is not in %s to %s", s, lo, hi)
	default:
		return d
	}
	return def
}

// Choice returns one of the allowed words. The first is the default. An empty
// string means the default too, as in upstream macvlan's mode.
func Choice[T ~string](v Value, allowed ...T) T {
	words := make([]string, 0, len(allowed))
	for _, a := range allowed {
		words = append(words, string(a))
	}
	s, ok := v.Text("use one of " + strings.Join(words, ", "))
	if !ok || s == "" {
		return allowed[0]
	}
	if slices.Contains(allowed, T(s)) {
		return T(s)
	}
	v.Bad(didYouMean(s, words), "%q is none of %s", s, strings.Join(words, ", "))
	return allowed[0]
}

// Prefix returns a prefix without host bits that is not IPv4-mapped, so that
// each prefix has only one spelling. The second result is false if there is
// none.
func (v Value) Prefix() (netip.Prefix, bool) {
	s, ok := v.Text("")
	if !ok {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		v.Bad("", "%q is not a prefix such as 172.16.11.0/24", s)
	case p.Addr().Is4In6():
		v.Bad("write it as IPv4", "%s is IPv4-mapped", s)
	case p != p.Masked():
		v.Bad(fmt.Sprintf("did you mean %q?", p.Masked()), "%s has host bits set", s)
	default:
		return p, true
	}
	return netip.Prefix{}, false
}

// Address returns an address without zone that is not IPv4-mapped. The second
// result is false if there is none.
func (v Value) Address() (netip.Addr, bool) {
	s, ok := v.Text("")
	if !ok {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		v.Bad("", "%q is not an address", s)
	case a.Is4In6() || a.Zone() != "":
		v.Bad("write it without zone, and IPv4 as IPv4", "%s has a zone or is IPv4-mapped", s)
	default:
		return a, true
	}
	return netip.Addr{}, false
}

// List returns the elements of a list.
func (v Value) List() []Value {
	if !v.is(AList, "") {
		return nil
	}
	var raws []json.RawMessage
	if err := json.Unmarshal(v.raw, &raws); err != nil {
		panic(fmt.Sprintf("strict: list of a valid document: %v", err))
	}
	out := make([]Value, 0, len(raws))
	for i, raw := range raws {
		out = append(out, Value{fmt.Sprintf("%s[%d]", v.Path, i), v.faults, raw})
	}
	return out
}

// Empty says whether the value is a list without elements.
func (v Value) Empty() bool { return v.Kind() == AList && len(v.List()) == 0 }

// Texts returns the strings of a list.
func (v Value) Texts() []string {
	var out []string
	for _, e := range v.List() {
		if s, ok := e.Text(""); ok {
			out = append(out, s)
		}
	}
	return out
}

// Strings returns the strings in the value, at any depth, in the order of the
// document. It notes no faults.
func (v Value) Strings() []Value {
	quiet, parts := Value{v.Path, &Faults{}, v.raw}, []Value(nil)
	switch v.Kind() {
	case AString:
		return []Value{v}
	case AList:
		parts = quiet.List()
	case AnObject:
		o := quiet.Object()
		for _, key := range o.Keys() {
			parts = append(parts, o.At(key))
		}
	}
	var out []Value
	for _, p := range parts {
		out = append(out, Value{p.Path, v.faults, p.raw}.Strings()...)
	}
	return out
}
