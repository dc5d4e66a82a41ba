// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

var update = flag.Bool("update", false, "rewrite the answers in testdata")

// TestWhatIsReadAndItsFaults reads inputs: lines that begin with "> ", the name of a reader
// and its parts. The answer is on the lines below, indented: what was read, faults (!) with
// their hints (?). Do -update to write the answers, and read them.
func TestWhatIsReadAndItsFaults(t *testing.T) {
	t.Parallel()
	const golden = "testdata/read.txt"
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(string(want)) {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		got.WriteString(line)
		if in, is := strings.CutPrefix(line, "> "); is {
			reader, in, _ := strings.Cut(strings.TrimSpace(in), " ")
			f := &strict.Faults{}
			for answer := range strings.Lines(readers()[reader](in, f)) {
				fmt.Fprintf(&got, "  %s\n", strings.TrimSpace(answer))
			}
			got.WriteString(faults(f))
		}
	}
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// readers has what a line of the golden can name. Parts of an input are separated by " | ".
func readers() map[string]func(in string, f *strict.Faults) string {
	object := func(f *strict.Faults, path, in string) *strict.Object { return f.ValueAt(path, []byte(in)).Object() }
	return map[string]func(in string, f *strict.Faults) string{
		"subnets": func(in string, f *strict.Faults) string { // of rail 3
			return written(pool.Subnets(value(f, "subnets", in), 3, f))
		},
		"apart": func(in string, f *strict.Faults) string {
			rails, where := ofRails(in), []string{"a", "b", "c"}
			pool.Apart(rails, where[:len(rails)], f)
			v4, v6 := pool.Families(rails[0])
			return fmt.Sprintf("families of the first: %d, %d", v4, v6)
		},
		"braces": func(in string, f *strict.Faults) string {
			pool.Braces(f.ValueAt("ipam", []byte(in)), false)
			pool.Braces(f.ValueAt("rails", []byte(in)), true)
			return ""
		},
		"routes": func(in string, f *strict.Faults) string { return text(pool.Routes(value(f, "routes", in))) },
		"share": func(in string, f *strict.Faults) string {
			routes, rails, _ := strings.Cut(in, " | ")
			return text(pool.Share(pool.Routes(value(&strict.Faults{}, "", routes)), ofRails(rails), f))
		},
		"asked": func(in string, f *strict.Faults) string {
			p := strings.Split(in, " | ")
			asked := pool.ReadAsked(object(f, "runtimeConfig", p[0]), object(f, "args.cni", p[1]), strings.Fields(p[2]), f)
			return text(asked) + "\n" + text(pool.Addresses(asked))
		},
		"give": func(in string, f *strict.Faults) string {
			ips, rails, _ := strings.Cut(in, " | ")
			asked := pool.ReadAsked(object(f, "runtimeConfig", `{"ips": [`+ips+`]}`), object(f, "args", `{}`), nil, f)
			return text(pool.Give(asked, ofRails(rails), f))
		},
		"fromMaster": func(in string, f *strict.Faults) string {
			o := object(f, "ipam", in)
			return "elsewhere: " + pool.Elsewhere(o) + "\n" + text(pool.ReadFromMaster(o, `write "subnets"`))
		},
		"name":       func(in string, f *strict.Faults) string { return pool.Name(value(f, "pool", in), "rail", f) },
		"network":    func(in string, f *strict.Faults) string { return pool.Name(f.ValueAt("pool", nil), in, f) },
		"quarantine": func(in string, f *strict.Faults) string { return pool.Quarantine(value(f, "quarantine", in)).String() },
		"railPool":   func(in string, f *strict.Faults) string { return text(pool.ReadRailPool(object(f, "ipam", in), 1)) },
		"railsPool":  func(in string, f *strict.Faults) string { return text(pool.ReadRailPool(object(f, "ipam", in), 2)) },
		"tableOf": func(in string, f *strict.Faults) string { // so many rails
			n, err := strconv.Atoi(in)
			if err != nil {
				panic(err)
			}
			rails := strings.Repeat(`, {"subnet": "10.0.0.0/24"}`, n)[2:]
			got, err := pool.ParseTable("/etc/roce/rails.json", []byte(`{"nodes": {"gpu-01": [`+rails+`]}}`), "gpu-01")
			return fmt.Sprint(len(got), " rails, ", err)
		},
		"table": func(in string, f *strict.Faults) string {
			rails, err := pool.ParseTable("/etc/roce/rails.json", []byte(in), "gpu-01")
			if err != nil {
				e := cnierr.CNI("roce", err)
				return "! " + e.Msg + "\n? " + e.Details
			}
			var out []string
			for _, subnets := range rails {
				out = append(out, written(subnets))
			}
			return strings.Join(out, "\n")
		},
	}
}

// A file of the node can have them, which no reader here has checked.
func TestSubnetsOfOneRailDoNotOverlap(t *testing.T) {
	t.Parallel()
	both := slices.Concat(ofRails(`[{"subnet": "10.1.0.0/16"}, {"subnet": "10.0.0.0/24"}] / [{"subnet": "10.0.0.128/25"}]`)...)
	for i, want := range []bool{true, false} { // that it is a fault
		f := &strict.Faults{}
		pool.Apart([][]pool.Subnet{both[:len(both)-i]}, []string{"pool"}, f)
		if (f.Len() == 1) != want {
			t.Errorf("%s: %s", written(both[:len(both)-i]), faults(f))
		}
	}
}

// value is "" for a key that is not there.
func value(f *strict.Faults, path, in string) strict.Value {
	if in == "" {
		return f.ValueAt(path, nil)
	}
	return f.ValueAt(path, []byte(in))
}

// ofRails returns the subnets of rails, which are separated by " / ".
func ofRails(in string) (out [][]pool.Subnet) {
	f := &strict.Faults{}
	for i, one := range strings.Split(in, " / ") {
		out = append(out, pool.Subnets(f.ValueAt("subnets", []byte(one)), i, f))
	}
	if f.Len() > 0 {
		panic(faults(f))
	}
	return out
}

// text returns a value as JSON, and what is given for no value.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func faults(f *strict.Faults) string {
	var e *cnierr.Error
	if err := f.Err("read", "input"); !errors.As(err, &e) {
		return ""
	}
	var out strings.Builder
	for _, one := range cnierr.Each(e.Err) {
		var fault *cnierr.Error
		errors.As(one, &fault)
		fmt.Fprintf(&out, "  ! %d %v\n", fault.Code, fault)
		if fault.Hint != "" {
			fmt.Fprintf(&out, "  ? %s\n", fault.Hint)
		}
	}
	return out.String()
}

// written returns subnets in the words of the configuration.
func written(subnets []pool.Subnet) string {
	var out []string
	for _, s := range subnets {
		text := fmt.Sprint(s.Prefix, " ", s.Ranges)
		if len(s.Exclude) > 0 {
			text += fmt.Sprint(" without ", s.Exclude)
		}
		if s.Gateway != (netip.Addr{}) {
			text += fmt.Sprint(" by ", s.Gateway)
		}
		out = append(out, text)
	}
	return strings.Join(out, "\n")
}
