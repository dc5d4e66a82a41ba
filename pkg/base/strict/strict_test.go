// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package strict_test

import (
	"errors"
	"fmt"
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
	for _, document := range []string{`{}`, `{"n": null, "t": null, "d": null, "w": null}`, `{"n": "1", "t": 1, "d": {}, "w": []}`, `{"n": 9, "t": "x", "d": "9h", "w": "z"}`} {
		read(t, document, func(o *strict.Object) {
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
		})
	}
}

func TestReadersReturnWhatIsThere(t *testing.T) {
	t.Parallel()
	got := read(t, ` {"n": -0, "t": true, "d": "1m", "w": "b", "l": ["x", "y"], "e": [], "p": "fd00::/8", "a": "fd00::1", "o": {"k": 1}, "s": "v"} `, func(o *strict.Object) {
		n, d, w := o.At("n").Whole(4, 0, 8), o.At("d").Duration(0, 0, time.Hour), strict.Choice(o.At("w"), "a", "b")
		p, isPrefix := o.At("p").Prefix()
		a, isAddr := o.At("a").Address()
		s, isText := o.At("s").Text("")
		have := fmt.Sprintln(n, o.At("t").True(), d, w, o.At("l").Texts(), o.At("e").Empty(), o.At("l").Empty(), p, isPrefix, a, isAddr,
			o.At("o").Object().At("k").Raw(), o.At("s").ObjectOr("m").At("m").Raw(), s, isText)
		if want := "0 true 1m0s b [x y] true false fd00::/8 true fd00::1 true 1 \"v\" v true\n"; have != want {
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
	} {
		same(t, read(t, `{"k": `+c.value+`}`, func(o *strict.Object) { c.read(o.At("k")) }), `"k": `+c.want)
	}
}
