// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// input returns a call with name, version, master and the members of the
// configuration.
func input(members string) conf.Input {
	if members != "" {
		members = ", " + members
	}
	return call(`{"cniVersion": "1.1.0", "name": "rail1", "master": "ens1f0"` + members + `}`)
}

// call returns a call with a whole configuration.
func call(config string) conf.Input {
	return conf.Input{ContainerID: "c1", Netns: "/run/netns/pod", IfName: "net1", Stdin: []byte(config)}
}

// ofPool returns an ipam member of our type.
func ofPool(members string) string { return `"ipam": {"type": "roce-ipam", ` + members + `}` }

// subnet returns an ipam member of our type with one subnet.
func subnet(members string) string { return ofPool(`"subnets": [{` + members + `}]`) }

// one is a pool that has no fault.
const one = `"subnets": [{"subnet": "172.16.11.0/24", "gateway": "172.16.11.254"}]`

// bad is one wrong input and what must be said about it.
type bad struct {
	in   string // members of a configuration, or what the test makes of it
	code cnierr.Code
	msg  string // subject and cause
	hint string // "" is the remedy for the code
}

// check checks that err has exactly the one fault that b expects.
func (b bad) check(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		t.Fatalf("%s: accepted", b.in)
	}
	list := faults(t, err)
	if len(list) != 1 {
		t.Fatalf("%s: got %d faults, want one: %v", b.in, len(list), err)
	}
	if got := list[0].Error(); !strings.Contains(got, b.msg) {
		t.Errorf("%s:\n got %s\nwant %s", b.in, got, b.msg)
	}
	want := b.hint
	if want == "" {
		want = cnierr.Explain(b.code).Remedy
	}
	e := cnierr.CNI("roce", err)
	if e.Code != uint(b.code) || !strings.Contains(e.Details, want) {
		t.Errorf("%s:\n got %d, %s\nwant %d, %s", b.in, e.Code, e.Details, b.code, want)
	}
	if strings.ContainsAny(e.Msg+e.Details, "\n\r\t") {
		t.Errorf("%s: more than one line: %q, %q", b.in, e.Msg, e.Details)
	}
}

// faults returns what err joins.
func faults(t *testing.T, err error) []*cnierr.Error {
	t.Helper()
	var whole *cnierr.Error
	if !errors.As(err, &whole) {
		t.Fatalf("%v is not a *cnierr.Error", err)
	}
	joined, ok := whole.Err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%v joins nothing", err)
	}
	var out []*cnierr.Error
	for _, err := range joined.Unwrap() {
		var e *cnierr.Error
		if !errors.As(err, &e) {
			t.Fatalf("%v is not a *cnierr.Error", err)
		}
		out = append(out, e)
	}
	return out
}

// diff compares requests.
func diff(want, got any) string {
	return cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.IgnoreFields(conf.Request{}, "Digest"))
}

// must is for what a test needs and does not test.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
