// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package strict_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// read returns what the faults say after reading the document.
func read(t *testing.T, document string, read func(o *strict.Object)) []string {
	t.Helper()
	var f strict.Faults
	o, ok := f.Document(strict.Whole, []byte(document))
	if ok != (o != nil) || ok != (f.Len() == 0) {
		t.Fatalf("%s: object %v, %v, and %d faults", document, o, ok, f.Len())
	}
	if ok {
		read(o)
	}
	err := f.Err("", "")
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
}

func TestReadersReturnTheDefaultForWhatIsAbsentOrWrong(t *testing.T) {
	t.Parallel()
	for document, faults := range map[string]int{
		`{}`: 0, `{"n": null, "t": null, "d": null, "w": null, "o": null, "l": null}`: 0, `{"n": "1", "t": 1, "d": {}, "w": [], "o": 1, "l": {}}`: 6,
		`{"n": 9, "t": "x", "d": "9h", "w": "z"}`: 4, `{"n": 0, "t": false, "d": "-1s", "w": ""}`: 2,
	} {
		got := read(t, document, func(o *strict.Object) {
			if n := o.At("n").Whole(4, 1, 8); n != 4 {
				t.Errorf("%s: number %d", document, n)
			}
			if o.At("t").True() {
				t.Errorf("%s: true", document)
			}
			if d := o.At("d").Duration(time.Second, 0, time.Hour); d != time.Second {
				t.Errorf("%s: time %s", document, d)
			}
			if w := strict.Choice(o.At("w"), "a", "b"); w != "a" {
				t.Errorf("%s: word %s", document, w)
			}
			if o.At("b").Octet() != nil || o.At("o").Object().Present() || o.At("l").List() != nil || o.At("z").Empty() {
				t.Errorf("%s: a value that is absent is there", document)
			}
		})
		if len(got) != faults {
			t.Errorf("%s: got %q, want %d faults", document, got, faults)
		}
	}
}

func TestReadersReturnWhatIsThere(t *testing.T) {
	t.Parallel()
	got := read(t, ` {"n": -0, "t": true, "d": "1m", "w": "b", "l": ["x", "", "y"], "e": [], "b": 255, "c": 0, "p": "fd00::/8", "a": "fd00::1", "o": {"k": 1}, "s": "v"} `, func(o *strict.Object) {
		n, d, w := o.At("n").Whole(4, 0, 8), o.At("d").Duration(0, 0, time.Hour), strict.Choice(o.At("w"), "a", "b")
		p, isPrefix := o.At("p").Prefix()
		a, isAddr := o.At("a").Address()
		s, isText := o.At("s").Text("")
		have := fmt.Sprintln(n, o.At("t").True(), d, w, o.At("l").Texts(), o.At("e").Empty(), o.At("l").Empty(), *o.At("b").Octet(), *o.At("c").Octet(), o.At("n").Empty(), p, isPrefix, a, isAddr,
			o.At("o").Object().At("k").Raw(), o.At("s").ObjectOr("m").At("m").Raw(), s, isText)
		if want := "0 true 1m0s b [x  y] true false 255 0 false fd00::/8 true fd00::1 true 1 \"v\" v true\n"; have != want {
			t.Errorf("\n got %s\nwant %s", have, want)
		}
		o.Strict(nil)
	})
	same(t, got)
}

func TestAskingForAKeyDeclaresIt(t *testing.T) {
	t.Parallel()
	const document = `{"master": 1, "mtu": 2, "mut": 3, "MODE": 4, "zzz": 5, "via": 6, "mtu": 7}`
	hint := func(key string) string {
		if key == "via" {
			return "it is called gw"
		}
		return ""
	}
	var f strict.Faults
	o, _ := f.Document(strict.Whole, []byte(document))
	if v := o.At("mtu"); v.Raw() != "7" {
		t.Errorf("of two values got %s", v.Raw())
	}
	o.At("mtu")
	o.At("mode")
	if !o.Has("master") || o.Has("mode") {
		t.Errorf("Has(master), Has(mode) = %v, %v", o.Has("master"), o.Has("mode"))
	}
	o.Strict(hint)
	want := []string{
		`"mtu": the key appears twice: keep one of the two`,
		`"master": unknown key: use one of mtu, mode`,
		`"mut": unknown key: did you mean "mtu"?`,
		`"MODE": unknown key: did you mean "mode"?`,
		`"zzz": unknown key: use one of mtu, mode`,
		`"via": unknown key: it is called gw`,
	}
	var got []string
	var whole *cnierr.Error
	if !errors.As(f.Err("read", "x"), &whole) {
		t.Fatal("no error")
	}
	for _, err := range whole.Err.(interface{ Unwrap() []error }).Unwrap() {
		var e *cnierr.Error
		if errors.As(err, &e) {
			got = append(got, e.Error()+": "+e.Hint)
		}
	}
	same(t, got, want...)
	same(t, read(t, document, func(o *strict.Object) {
		o.At("mode")
		o.Lenient(strings.EqualFold)
	}), `"MODE": unknown key`)
	same(t, read(t, `{"mode": 1, "Mod": 1, "models": 1, "m": 1, "`+strings.Repeat("x", 1<<17)+`": 1}`, func(o *strict.Object) {
		o.At("mode")
		o.Lenient(strict.Resembles)
	}), `"Mod": unknown key`, `"models": unknown key`)
	f = strict.Faults{}
	o, _ = f.Document(strict.Whole, []byte(`{"mut": 1, "zzz": 2}`))
	o.At("mtu")
	o.Strict(nil)
	want = []string{`"mut": did you mean "mtu"?`, `"zzz": use one of mtu`}
	same(t, strings.Split(cnierr.CNI("roce", f.Err("read", "x")).Details, "; "), want...)
}

func TestPathsLeadToTheValue(t *testing.T) {
	t.Parallel()
	got := read(t, `{"a": {"b": [{"c": 1}, {"c": "x"}, 5]}, "w": "x", "v": {"m": "x"}}`, func(o *strict.Object) {
		for _, e := range o.At("a").Object().At("b").List() {
			e.Object().At("c").Text("")
		}
		o.At("w").ObjectOr("m").At("m").Whole(0, 0, 1)
		o.At("v").ObjectOr("m").At("m").Whole(0, 0, 1)
		if o.At("x").ObjectOr("m").Present() {
			t.Error("a value that is absent stands for an object")
		}
		o.At("x").Missing("")
		o.At("w").Missing("")
	})
	same(t, got, `"a.b[0].c": want a string, got a number`, `"a.b[2]": want an object, got a number`,
		`"w": want a number, got a string`, `"v.m": want a number, got a string`, `"x": missing`)
}

func TestOneElementThatIsWrongHidesNoOther(t *testing.T) {
	t.Parallel()
	same(t, read(t, `{"l": [1, "x", null, "y"]}`, func(o *strict.Object) {
		if got := o.At("l").Texts(); strings.Join(got, " ") != "x y" {
			t.Errorf("got %q", got)
		}
	}), `"l[0]": want a string, got a number`, `"l[2]": want a string, got null`)
}

func TestSyntaxErrorsHaveAPosition(t *testing.T) {
	t.Parallel()
	for document, want := range map[string]string{
		``:               `"JSON": unexpected end of JSON input`,
		"{\n\n  'a': 1}": `"JSON": line 3, column 3: invalid character '\'' looking for beginning of object key string`,
		`{"a": 1} x`:     `"JSON": line 1, column 10: invalid character 'x' after top-level value`,
		` 5`:             `"JSON": want an object, got a number`,
		"\ufeff{}":       `"JSON": line 1, column 1: invalid character 'ï' looking for beginning of value`,
	} {
		same(t, read(t, document, func(*strict.Object) { t.Errorf("%s is accepted", document) }), want)
	}
}

func TestErrJoinsFaultsAndHints(t *testing.T) {
	t.Parallel()
	var f strict.Faults
	if err := f.Err("read", "x"); err != nil {
		t.Errorf("without faults: %v", err)
	}
	f.Add(cnierr.Decode, "a", "do this", "wrong %d", 1)
	e := cnierr.CNI("roce", f.Err("read", "x"))
	if e.Code != 6 || e.Msg != `roce[6] read "x": "a": wrong 1` || e.Details != "do this" {
		t.Errorf("one fault: %d, %s, %s", e.Code, e.Msg, e.Details)
	}
	f.Add(cnierr.BadEnv, "B", "do that", "wrong")
	f.Add(cnierr.BadEnv, "c", "", "wrong")
	e = cnierr.CNI("roce", f.Err("read", "x"))
	if e.Code != 7 || e.Msg != `roce[7] read "x": "a": wrong 1; "B": wrong; "c": wrong` || e.Details != `"a": do this; "B": do that` {
		t.Errorf("three faults: %d, %s, %s", e.Code, e.Msg, e.Details)
	}
}

// TestAFaultIsAdoptedOnce: of a subject that has faults already, none is adopted.
func TestAFaultIsAdoptedOnce(t *testing.T) {
	t.Parallel()
	var f, other strict.Faults
	f.Add(cnierr.BadConfig, "a", "do this", "wrong")
	f.Add(cnierr.BadConfig, "a", "do this", "also wrong")
	other.Add(cnierr.BadConfig, "a", "do that", "wrong there")
	other.Add(cnierr.Decode, "b", "do more", "wrong there")
	other.Add(cnierr.Decode, "b", "do more", "twice")
	f.Adopt(&other, "in net.d: ")
	e := cnierr.CNI("roce", f.Err("read", "x"))
	if want := `roce[7] read "x": "a": wrong; "a": also wrong; "b": in net.d: wrong there; "b": in net.d: twice`; e.Msg != want || e.Details != `"a": do this; "b": do more` {
		t.Errorf("got %s, %s\nwant %s", e.Msg, e.Details, want)
	}
	for range 30 {
		other.Add(cnierr.Decode, "c", "", "no")
	}
	var all strict.Faults
	all.Adopt(&other, "")
	if all.Len() != 33 {
		t.Errorf("%d faults, want those that were only counted, too", all.Len())
	}
	if all.Adopt(&other, ""); all.Len() != 46 {
		t.Errorf("%d faults, want those that were counted before, too", all.Len())
	}
}

func TestAMisspellingResemblesTheWord(t *testing.T) {
	t.Parallel()
	var f strict.Faults
	strict.Choice(f.ValueAt("w", []byte(`"ab3"`)), "x", "ab1", "ab2")
	if got := cnierr.CNI("roce", f.Err("", "")).Details; got != `did you mean "ab1"?` { // the first one of those
		t.Errorf("got %s", got)
	}
	for word, want := range map[string]bool{
		"mode": true, "Mode": true, "mod": true, "moed": true, "omde": true, "modes": true, "xode": true, "nodes": false, "mdoe": true, "xyde": false, "models": true, "": false, "m": false,
	} {
		if strict.Resembles(word, "mode") != want {
			t.Errorf("%q: got %v", word, !want)
		}
	}
}

func TestStringsAreFoundAtAnyDepth(t *testing.T) {
	t.Parallel()
	same(t, read(t, `{"k": {"a": "x", "n": 5, "l": ["y", {"b": "z", "c": null, "b": "w"}, [["v"]]], "t": true}, "s": "u", "e": {}}`, func(o *strict.Object) {
		var got []string
		for _, v := range slices.Concat(o.At("k").Strings(), o.At("s").Strings(), o.At("e").Strings(), o.At("none").Strings()) {
			got = append(got, v.Path+"="+v.Raw())
		}
		if want := `k.a="x" k.l[0]="y" k.l[1].b="w" k.l[2][0][0]="v" s="u"`; strings.Join(got, " ") != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}))
}

func TestTheEndsOfAReadersRangeAreInIt(t *testing.T) {
	t.Parallel()
	path := "/" + strings.Repeat("x", 1023)
	same(t, read(t, `{"n": 1, "m": 8, "d": "1s", "e": "1h", "w": "", "p": "`+path+`"}`, func(o *strict.Object) {
		have := fmt.Sprintln(o.At("n").Whole(4, 1, 8), o.At("m").Whole(4, 1, 8),
			o.At("d").Duration(0, time.Second, time.Hour), o.At("e").Duration(0, time.Second, time.Hour), strict.Choice(o.At("w"), "a", "b"))
		if want := "1 8 1s 1h0m0s a\n"; have != want {
			t.Errorf("got %s, want %s", have, want)
		}
		if got, ok := o.At("p").Absolute(); got != path || !ok {
			t.Errorf("got the path %s, %t", got, ok)
		}
	}))
}

func TestAfterTwentyFaultsTheyAreOnlyCounted(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1000)
	var f strict.Faults
	for i := range 19 {
		f.Add(cnierr.BadConfig, "a", "", "%d, %q, %s", i, long, long)
	}
	o, _ := f.Document(strict.Whole, []byte(`{"b": 1, "c": 2, "d": 3}`))
	o.Strict(nil)
	f.Add(cnierr.BadConfig, "e", "", "no")
	lines := strings.Split(f.Err("", "").Error(), "\n")
	want := fmt.Sprintf(`"a": 18, "%.64s…", %.256s…`, long, long)
	if n := f.Len(); n != 23 || len(lines) != 21 || lines[18] != want || lines[20] != "and 3 more faults" {
		t.Errorf("%d faults, %d lines, %s, %s", n, len(lines), lines[18], lines[20])
	}
}

func TestEachReaderSaysWhatItWants(t *testing.T) {
	t.Parallel()
	prefix, address := func(v strict.Value) { v.Prefix() }, func(v strict.Value) { v.Address() }
	word := func(v strict.Value) { strict.Choice(v, "a", "b") }
	octet, absolute := func(v strict.Value) { v.Octet() }, func(v strict.Value) { v.Absolute() }
	whole, span := func(v strict.Value) { v.Whole(1, 0, 9) }, func(v strict.Value) { v.Duration(0, 0, time.Hour) }
	for _, c := range []struct {
		value string
		read  func(strict.Value)
		want  string
	}{
		{`"10.0.0.0/33"`, prefix, `"10.0.0.0/33" is not a prefix such as 172.16.11.0/24`},
		{`""`, prefix, `"" is not a prefix such as 172.16.11.0/24`},
		{`"fe80::/64%eth0"`, prefix, `"fe80::/64%eth0" is not a prefix such as 172.16.11.0/24`},
		{`"fd00::1/64"`, prefix, `fd00::1/64 has host bits set`},
		{`"::ffff:10.0.0.0/104"`, prefix, `::ffff:10.0.0.0/104 is IPv4-mapped`},
		{`"10.0.0.1/24"`, address, `"10.0.0.1/24" is not an address`},
		{`"fd00::1%eth0"`, address, `fd00::1%eth0 has a zone or is IPv4-mapped`},
		{`"::ffff:10.0.0.1"`, address, `::ffff:10.0.0.1 has a zone or is IPv4-mapped`},
		{`1e3`, whole, `1e3 is not a whole number`},
		{`-1`, whole, `-1 is not in 0 to 9`},
		{`10`, whole, `10 is not in 0 to 9`},
		{`"4"`, span, `"4" is not a time`},
		{`"-1s"`, span, `-1s is not in 0s to 1h0m0s`},
		{`"2h"`, span, `2h is not in 0s to 1h0m0s`},
		{`7`, span, `want a string, got a number`},
		{`"z"`, word, `"z" is none of a, b`},
		{`5`, func(v strict.Value) { v.List() }, `want a list, got a number`},
		{`9223372036854775808`, func(v strict.Value) { v.Whole(0, 0, math.MaxInt64) }, `9223372036854775808 is not in 0 to 9223372036854775807`},
		{strings.Repeat("7", 1000), whole, strings.Repeat("7", 64) + `… is not in 0 to 9`},
		{`256`, octet, `256 is not in 0 to 255`},
		{`"` + strings.Repeat("é", 100) + `"`, word, `"` + strings.Repeat("é", 32) + `…" is none of a, b`},
		{`"x` + strings.Repeat("é", 100) + `"`, word, `"x` + strings.Repeat("é", 31) + `…" is none of a, b`},
		{`"/"`, absolute, `"/" is not a clean absolute path below /, of at most 1024 bytes`},
		{`"a/b"`, absolute, `"a/b" is not a clean absolute path below /, of at most 1024 bytes`},
		{`"/a/../b"`, absolute, `"/a/../b" is not a clean absolute path below /, of at most 1024 bytes`},
		{`"/a\u0007b"`, absolute, `"/a\ab" is not a clean absolute path below /, of at most 1024 bytes`},
		{`"/` + strings.Repeat("x", 1024) + `"`, absolute, `"/` + strings.Repeat("x", 63) + `…" is not a clean absolute path below /, of at most 1024 bytes`},
		{`true`, absolute, `want a string, got true or false`},
	} {
		same(t, read(t, `{"k": `+c.value+`}`, func(o *strict.Object) { c.read(o.At("k")) }), `"k": `+c.want)
	}
}
