// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

const manyRails = 8

func (w opened) rails() plan.Ops {
	return Attachment(w.Container, slices.Repeat([]conf.LinkName{w.NIC}, manyRails)...)
}

func railsOneByOne(t *testing.T, w opened) {
	before, ops := w.Show(), w.rails()
	if n := len(ops.Runs()); n != 6 {
		t.Fatalf("%d runs, want 6", n)
	}
	w.undo(t, ops)
	w.unchanged(t, before)
	w.must(t, ops...)
	done := w.Show()
	for _, op := range ops { // one by one they are the same
		w.must(t, op)
		w.holds(t, op)
	}
	w.unchanged(t, done)
	for _, op := range slices.Backward(ops) {
		w.undo(t, plan.Ops{op})
	}
	w.unchanged(t, before)
}

func railsInRuns(t *testing.T, w opened) {
	w.foreign()
	ops := w.rails()
	if n := len(ops.Teardown().Runs()); n != 2 {
		t.Fatalf("%d runs, want the links and the rules", n)
	}
	w.cycle(t, ops)
}

// runsThatFail lets one operation in the middle of each run fail.
func runsThatFail(t *testing.T, w opened) {
	before := w.Show()
	for _, c := range []struct {
		kind string
		harm func(plan.Op) plan.Op
		code cnierr.Code
	}{
		{"Child", func(op plan.Op) plan.Op { m := op.Kind.(plan.Child); m.Parent = "nosuch0"; return plan.Op{Kind: m} }, cnierr.BadParent},
		{"Child", func(op plan.Op) plan.Op { m := op.Kind.(plan.Child); m.MTU = 9000; return plan.Op{Kind: m} }, cnierr.BadParent},
		{"Sysctl", func(op plan.Op) plan.Op { s := op.Kind.(plan.Sysctl); s.Link = "all"; return plan.Op{Kind: s} }, cnierr.Bug},
		{"Up", func(plan.Op) plan.Op { return plan.Op{Kind: plan.Up{Link: "nosuch0"}} }, cnierr.IO},
		{"Address", func(op plan.Op) plan.Op { a := op.Kind.(plan.Address); a.Link = "nosuch0"; return plan.Op{Kind: a} }, cnierr.IO},
		{"Route", func(op plan.Op) plan.Op { r := op.Kind.(plan.Route); r.Link = "nosuch0"; return plan.Op{Kind: r} }, cnierr.IO},
		{"Route", func(op plan.Op) plan.Op {
			r := op.Kind.(plan.Route)
			r.Dst, r.Via, r.Scope = netip.MustParsePrefix("10.99.0.0/16"), netip.MustParseAddr("10.98.0.1"), 0
			return plan.Op{Kind: r}
		}, cnierr.BadConfig},
	} {
		ops := w.rails()
		first := slices.IndexFunc(ops, func(op plan.Op) bool { return kindName(op) == c.kind })
		ops[first+3] = c.harm(ops[first+3])
		var err error
		for _, run := range ops.Runs() {
			if err = w.Do(t.Context(), run...); err != nil {
				if kindName(run[0]) != c.kind {
					t.Errorf("%s failed: %v, want %s to fail", kindName(run[0]), err, c.kind)
				}
				break
			}
		}
		wantCode(t, err, c.code)
		w.undo(t, ops)
		w.unchanged(t, before)
	}
	// One link is foreign: it stays, and all others go.
	w.IP("link add net1-5 type bridge")
	before = w.Show()
	ops := w.rails()
	wantCode(t, w.Do(t.Context(), ops.Runs()[0]...), cnierr.BadEnv)
	w.undo(t, ops.Teardown())
	w.unchanged(t, before)
}

func kindName(op plan.Op) string { return strings.TrimPrefix(fmt.Sprintf("%T", op.Kind), "plan.") }

// foreignGroups has foreign links in groups, also in the groups with which the
// kernel removes several links at once.
func foreignGroups(t *testing.T, w opened) {
	for i, group := range []uint32{1, 0x726f6365, 0x726f6366, ^uint32(0) >> 1} {
		w.IP(fmt.Sprintf("link add eth%d type bridge", i))
		w.IP(fmt.Sprintf("link set eth%d group %d", i, group))
	}
	before, ops := w.Show(), w.rails()
	for range 2 {
		w.must(t, ops...)
		w.undo(t, ops.Teardown())
		w.unchanged(t, before)
	}
}

// railsOfOthers undoes four rails: one is gone, one has another name, one has
// lost its mark, and one is a foreign link now.
func railsOfOthers(t *testing.T, w opened) {
	before, ops := w.Show(), w.rails()
	w.must(t, ops...)
	w.IP("link del net1-1")
	w.IP("link set net1-2 down")
	w.IP("link set net1-2 name other0")
	w.IP(`link set net1-3 alias ""`)
	w.IP("link set net1-4 alias roce:another/net7") // only the mark of another attachment tells: its MAC is ours
	w.undo(t, ops.Teardown())
	if links := w.Show(); !strings.Contains(links, "net1-4") || strings.Contains(links, "other0") || strings.Contains(links, "net1-3") {
		t.Errorf("want somebody else's net1-4 alone to be left, got\n%s", links)
	}
	w.IP("link del net1-4")
	w.unchanged(t, before)
}

func differentRails(t *testing.T, w opened) {
	ops := w.rails()
	links := ops.Runs()[0]
	if err := w.Do(t.Context(), links...); err != nil {
		t.Fatal(err)
	}
	w.IP(`link set net1-3 alias ""`)
	w.IP("link set net1-4 mtu 1400")
	w.IP("link set net1-5 address 02:00:00:00:00:99")
	w.IP("link del net1-6")
	w.must(t, ops...)
	w.holds(t, ops...)
}

func mixedRun(t *testing.T, w opened) {
	before := w.Show()
	wantCode(t, w.Do(t.Context(), plan.Op{Kind: w.macvlan()}, plan.Op{Kind: plan.Up{Link: "net1"}}), cnierr.Bug)
	w.unchanged(t, before)
	if err := w.Do(t.Context()); err != nil {
		t.Errorf("a run of nothing: %v", err)
	}
}

// lostRails undoes rails of which only the marks are known. It also does so
// without the first rail.
func lostRails(t *testing.T, w opened) {
	w.foreign()
	w.IP("rule add from 10.8.0.5/32 lookup 100 priority 32000 protocol 82") // another attachment's
	w.IP("link add eth1 type bridge")
	w.IP("link set eth1 alias " + plan.Mark(conf.Attachment{ContainerID: w.Container, IfName: "net1"}) + "/1") // any program can set an alias
	before := w.Show()
	mark := plan.Mark(conf.Attachment{ContainerID: w.Container, IfName: "net1"})
	lost := plan.InPod(plan.Child{Name: "net1", Mark: mark}, plan.Orphans{Link: "net1", Mark: mark})
	others := plan.Ops{}
	for i, mark := range []string{plan.Mark(conf.Attachment{ContainerID: w.Container, IfName: "net11"}), mark + "1/1", mark + "/x", mark + "/", "x" + mark + "/1", mark + "/1/1"} {
		m := w.macvlan()
		m.Name, m.Mark, m.MAC[5] = conf.LinkName(fmt.Sprintf("other%d", i)), mark, byte(100+i)
		others = append(others, plan.Op{Kind: m})
	}
	w.must(t, others...)
	withOthers := w.Show()
	for _, without := range []string{"", "net1", "net1-1"} {
		w.must(t, Attachment(w.Container, w.NIC, w.NIC, w.NIC)...)
		rules := plan.Ops{}
		if without != "" { // its rules cannot be known any more
			for _, op := range Attachment(w.Container, w.NIC, w.NIC, w.NIC) {
				a, ok := op.Kind.(plan.Address)
				if ok && string(a.Link) == without {
					rail := uint32(100)
					if without != "net1" {
						rail++
					}
					rules = append(rules, rulesOf(a.Prefix.Addr(), rail)...)
				}
			}
			w.undo(t, rules)
			w.IP("link del " + without)
		}
		w.undo(t, lost)
		w.unchanged(t, withOthers)
	}
	w.undo(t, lost)
	w.unchanged(t, withOthers)
	w.undo(t, others)
	w.unchanged(t, before)
}
