// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// without returns the names of the interfaces of all rails but some.
func without(out ...int) []string {
	var names []string
	for i := range rails {
		if !slices.Contains(out, i) {
			names = append(names, railName(i))
		}
	}
	return names
}

func TestRailThatCannotServeIsSkippedWhenEnoughOthersCan(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		form   func(*node, ...func(int) map[string]any) network
		script string
		out    []int
	}{
		{"one that is down, of a list", (*node).listed, "link set dev rail2 down", []int{2}},
		{"one that is gone, of a list", (*node).listed, "link del rail7", []int{7}},
		{"the first, of a list", (*node).listed, "link set dev rail0 down", []int{0}},
		{"two that are down, of a rule", (*node).matched, "link set dev rail0 down\nlink set dev rail5 down", []int{0, 5}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, rails)
			p := w.pod(t)
			w.IP(t, tt.script)
			before := p.snapshot(t)
			c := tt.form(w.node, cnitest.Subnet4, cnitest.Subnet6)
			err := w.attach(c, p, "net1").mustFail(t, 102)
			for _, i := range tt.out {
				if want := fmt.Sprintf("%d (%s)", i, railName(i)); !strings.Contains(err.Msg, want) || !strings.Contains(err.Msg, fmt.Sprintf("rail%d", i)) {
					t.Errorf("%v: want it to say %s and its master", err, want)
				}
			}
			w.attach(c.With("minRails", rails-len(tt.out)+1), p, "net1").mustFail(t, 102)
			p.unchanged(t, before)
			testLeftOut(t, w, p, c.With("minRails", rails-len(tt.out)), tt.out)
		})
	}
}

func testLeftOut(t *testing.T, w *world, p *pod, c network, out []int) {
	t.Helper()
	before := p.snapshot(t)
	a := w.attach(c, p, "net1")
	if err := a.status(t); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	res := a.mustAdd(t)
	var names []string
	for _, in := range res.Interfaces {
		names = append(names, in.Name)
	}
	if diff := cmp.Diff(without(out...), names); diff != "" {
		t.Errorf("interfaces (-want +got)\n%s", diff)
	}
	for n, ip := range res.IPs {
		if got, want := *ip.Interface, n/2; got != want {
			t.Errorf("%v is on interface %d, want %d", ip, got, want)
		}
	}
	for _, i := range out {
		for _, want := range []string{"level=WARN", fmt.Sprintf("%d (%s)", i, railName(i)), fmt.Sprintf("rail%d", i)} {
			if !strings.Contains(a.stderr.String(), want) {
				t.Errorf("the log is %q, want %q in it", a.stderr, want)
			}
		}
	}
	if diff := cmp.Diff(res, a.mustAdd(t)); diff != "" {
		t.Errorf("result of the second ADD (-first +second)\n%s", diff)
	}
	if err := a.check(t); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	a.mustDel(t)
	p.unchanged(t, before)
	w.nothingLeased(t)
	w.noRecords(t)
}

// status calls STATUS.
func (a attachment) status(t *testing.T) error {
	t.Helper()
	if e := a.call().Status(t); e != nil {
		return e
	}
	return nil
}

func TestStatusReportsWhichRailCannotServe(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rails)
	full := w.listed(cnitest.Subnet4).With("rails.4.subnets.0.ranges", []any{"172.16.14.64"})
	w.attach(full, w.pod(t), "net1").mustAdd(t)
	w.IP(t, "link set dev rail6 down")
	node := w.snapshot(t)
	tests := []struct {
		name string
		c    network
		says string // "": ADD can be served
	}{
		{"a master is down", w.listed(cnitest.Subnet4).With("status.rails", "require"), `[51] serve "ADD": rail "6": use master "rail6"`},
		{"a master is down, and not needed", w.listed(cnitest.Subnet4).With("status.rails", "require").With("minRails", 7), ""},
		{"a master is down, and one that is up is enough", w.listed(cnitest.Subnet4), ""},
		{"the pool of one rail is exhausted", full.With("minRails", 7), "172.16.14.0/24"},
		{"fewer NICs than there should be", w.matched(cnitest.Subnet4).With("rails.count", 9), "rail7"},
		{"no RDMA device", w.listed(cnitest.Subnet4).With("rdma", nil), "RDMA"},
	}
	for _, tt := range tests {
		err := w.attach(tt.c, &pod{w.leaf, "", ""}, "").status(t)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v, want one that says %q", tt.name, err, tt.says)
		}
	}
	w.unchanged(t, node)
	for i := range rails {
		w.IP(t, fmt.Sprintf("link set dev rail%d down", i))
	}
	if err := w.attach(w.listed(cnitest.Subnet4), &pod{w.leaf, "", ""}, "").status(t); err == nil || !strings.Contains(err.Error(), `[51] serve "ADD"`) || !strings.Contains(err.Error(), `rail "7": use master "rail7"`) {
		t.Errorf("all masters are down: %v", err)
	}
}
