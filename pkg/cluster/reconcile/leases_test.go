// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/reconcile"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

const kept = `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}], "sticky": {"ttl": "3h", "slots": "128-159"}}`

func (c *cluster) claimer(node string) sticky.Claimer {
	return sticky.Claimer{Store: c.kept, Node: block.Node{Name: node, MachineID: "machine-of-" + node}, Now: c.date}
}

// hold has a node hold a slot for a pod.
func (c *cluster) hold(pod, node string) sticky.Lease {
	c.t.Helper()
	slots, err := c.pools[0].Slots("")
	if err != nil {
		c.t.Fatal(err)
	}
	l, err := c.claimer(node).Take(c.t.Context(), slots, nodefile.Key{Namespace: "train", Pod: pod, Interface: "net1"})
	if err != nil {
		c.t.Fatal(err)
	}
	return l
}

func (c *cluster) release(l sticky.Lease) {
	c.t.Helper()
	if err := c.claimer(l.Spec.Holder.NodeName).Release(c.t.Context(), l); err != nil {
		c.t.Fatal(err)
	}
}

// holders fails the test unless the leases are held so: pod, and node or "".
func (c *cluster) holders(want ...string) {
	c.t.Helper()
	var got []string
	for _, l := range c.kept.Snapshot() {
		got = append(got, l.Spec.Pod+" "+l.Spec.Holder.NodeName)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Errorf("after %v: (-want +got)\n%s\n%s", c.now, diff, c.log.String())
	}
}

// logs fails the test unless a line of the log has these texts.
func (c *cluster) logs(texts ...string) {
	c.t.Helper()
	for line := range strings.Lines(c.log.String()) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			return
		}
	}
	c.t.Errorf("no line of the log has all of %q:\n%s", texts, c.log.String())
}

func TestALeaseEndsWhenItsPodDoesNotComeBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, kept))
	c.join("n", nil)
	c.release(c.hold("db-0", "n"))
	c.hold("db-1", "n")
	for _, l := range c.kept.Snapshot() {
		if l.Spec.Pod == "db-0" { // and one that an operator keeps
			l.Name, l.Spec.Pod, l.Spec.Keep, l.Spec.Slot = "p-s150", "db-2", true, 150
			if _, err := c.kept.Create(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.rounds(3 * time.Hour)
	c.holders("db-0 ", "db-1 n", "db-2 ")
	c.rounds(20 * time.Minute)
	c.holders("db-1 n", "db-2 ")
	c.logs("ended a lease: its pod has not come back", "pod=db-0")
	c.rounds(24 * time.Hour)
	c.holders("db-1 n", "db-2 ")
}

// TestALeaseThatCannotBeEndedHoldsUpNothingElse has two leases to end, and two to take from a node. One
// of each gets no answer.
func TestALeaseThatCannotBeEndedHoldsUpNothingElse(t *testing.T) {
	t.Parallel()
	for _, stuck := range [][2]string{{"db-0", "db-2"}, {"db-1", "db-3"}} {
		c := newCluster(t, poolOf(t, "p", 1, kept))
		c.join("n", nil)
		c.join("foe", nil)
		of, want := map[string]string{}, []string{}
		for _, pod := range []string{"db-0", "db-1", "db-2", "db-3"} {
			node := "n"
			if c.absent[pod] = pod >= "db-2"; c.absent[pod] {
				node = "foe"
			}
			l := c.hold(pod, node)
			if of[pod] = l.Name; !c.absent[pod] {
				c.release(l)
				node = ""
			} else if pod != stuck[1] {
				node = ""
			}
			want = append(want, pod+" "+node)
		}
		c.kept.Fault = func(op blocktest.Op, name string) blocktest.Fault {
			if op == blocktest.Delete && name == of[stuck[0]] || op == stickytest.Update && name == of[stuck[1]] {
				return blocktest.Lost
			}
			return blocktest.None
		}
		c.rounds(2 * time.Hour)
		c.holders(want...)
		clear(c.said)
		c.rounds(90 * time.Minute)
		c.holders(slices.DeleteFunc(want, func(s string) bool { return s == "db-0 " && stuck[0] != "db-0" || s == "db-1 " && stuck[0] != "db-1" })...)
		if c.logs("not completed"); len(c.said) == 0 {
			t.Error("it says nothing of the pool")
		}
	}
}

func TestAReaperThatIsOftenRestartedEndsLeasesToo(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, kept))
	c.join("n", nil)
	c.release(c.hold("db-0", "n"))
	for range 5 {
		c.Reconciler = reconcile.New(c.Config)
		c.rounds(40 * time.Minute)
	}
	c.holders()
}

func TestTheSlotOfANodeThatIsGoneForAnHourIsFreeForItsPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, kept))
	for _, n := range []string{"stays", "goes", "with-pods"} {
		c.join(n, nil)
	}
	c.hold("db-0", "stays")
	c.hold("db-1", "goes")
	c.hold("db-2", "with-pods")
	c.rounds(2 * time.Hour)
	c.leave("goes")
	c.leave("with-pods")
	c.bound["with-pods"] = true
	c.rounds(time.Hour)
	c.holders("db-0 stays", "db-1 goes", "db-2 with-pods")
	c.rounds(20 * time.Minute)
	c.holders("db-0 stays", "db-1 ", "db-2 with-pods")
	c.logs("took a lease from a node that is gone", "pod=db-1", "node=goes")
	c.rounds(2 * time.Hour) // since it was freed: its TTL has begun
	c.holders("db-0 stays", "db-1 ", "db-2 with-pods")
	c.rounds(time.Hour)
	c.holders("db-0 stays", "db-2 with-pods")
}

func TestOrphansListUnusedLeases(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, kept))
	for _, n := range []string{"here", "gone", "with-pods", "replaced"} {
		c.join(n, nil)
	}
	c.hold("db-0", "here")
	c.hold("db-1", "gone")
	c.hold("db-2", "with-pods")
	c.release(c.hold("db-3", "here"))
	c.hold("db-4", "here")
	c.hold("db-5", "replaced")
	c.absent["db-4"], c.absent["db-5"] = true, true
	c.nodes[3].MachineID = "a new one"
	c.leave("gone")
	c.leave("with-pods")
	c.bound["with-pods"] = true
	o, err := c.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := o.Idle
	slices.SortFunc(got, func(a, b reconcile.Idle) int { return strings.Compare(a.Spec.Pod, b.Spec.Pod) })
	want := []reconcile.Idle{
		{Owner: block.Gone, TTL: 3 * time.Hour},
		{Owner: block.Gone, Bound: true, TTL: 3 * time.Hour},
		{TTL: 3 * time.Hour},
		{Owner: block.Here, Absent: true, TTL: 3 * time.Hour},
		{Owner: block.Replaced, TTL: 3 * time.Hour},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(reconcile.Idle{}, "Lease")); diff != "" {
		t.Error(diff)
	}
}

func TestOrphansSayWhichLeasesKeepNothing(t *testing.T) {
	t.Parallel()
	racks := strings.NewReplacer("10.0.0.0/24", "10.0.{rack}.0/24", `{"rails"`, `{"rackLabel": "rack", "rails"`).Replace(kept)
	c := newCluster(t, poolOf(t, "p", 1, kept), poolOf(t, "plain", 1, `{"rails": [{"subnets": [{"subnet": "10.1.0.0/24"}]}]}`), poolOf(t, "racks", 1, strings.ReplaceAll(racks, "10.0", "10.2")))
	leaving := poolOf(t, "leaving", 1, strings.ReplaceAll(kept, "10.0", "10.3"))
	leaving.Deleted = true
	c.pools = append(c.pools, leaving)
	for name, spec := range map[string]sticky.Spec{
		"leaving-s128": {Pool: "leaving", Slot: 128},
		"p-s161":       {Pool: "p", Slot: 161}, // no operator keeps it
		"p-s128":       {Pool: "p", Slot: 128}, "p-s160": {Pool: "p", Slot: 160}, "p.x-s129": {Pool: "p", Rack: "x", Slot: 129}, "typo-s128": {Pool: "typo", Slot: 128},
		"plain-s128": {Pool: "plain", Slot: 128}, "racks.7-s128": {Pool: "racks", Rack: "7", Slot: 128}, "racks-s128": {Pool: "racks", Slot: 128},
	} {
		spec.Keep, spec.Namespace, spec.Pod, spec.Interface = name != "p-s161", "train", "db-0", "net1"
		if _, err := c.kept.Create(t.Context(), sticky.Lease{Name: name, Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	o, err := c.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, i := range o.Idle {
		got[i.Name] = i.Useless
	}
	want := map[string]string{
		"p-s161": "", "p-s128": "", "p-s160": `host index 160 is outside sticky.slots 128-159 of RailPool "p", or excluded, or reserved`, "p.x-s129": `in RailPool "p" its name would be p-s129`,
		"leaving-s128": `there is no RailPool "leaving"`,
		"typo-s128":    `there is no RailPool "typo"`, "plain-s128": `RailPool "plain" is not sticky`, "racks.7-s128": "", "racks-s128": `RailPool "racks" has a fault, or no rack ""`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestALeaseIsTakenFromANodeThatDoesNotRunItsPod: a node that was taken over holds a
// lease for a pod of another node, and writes it all the time.
func TestALeaseIsTakenFromANodeThatDoesNotRunItsPod(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, kept), poolOf(t, "q", 2, strings.ReplaceAll(kept, "10.0", "10.1")))
	for _, n := range []string{"n", "foe", "sick"} {
		c.join(n, nil)
	}
	c.nodes[2].Ready = false // its kubelet may not know yet that the pod was deleted
	c.hold("db-0", "n")
	l := c.hold("db-1", "foe")
	c.hold("db-2", "sick")
	c.absent["db-1"], c.absent["db-2"] = true, true
	for range 6 {
		c.rounds(10 * time.Minute)
		if _, err := c.claimer("foe").Affirm(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	c.holders("db-0 n", "db-1 foe", "db-2 sick")
	if said := c.attention("p"); !strings.Contains(said, `it holds 1 RailLeases of RailPool p for pods that are not bound to it`) || !strings.Contains(said, "foe") {
		t.Errorf("the pool says %v", said)
	}
	if said := c.attention("q"); said != "" {
		t.Errorf("another pool says %v", said)
	}
	c.rounds(20 * time.Minute)
	c.holders("db-0 n", "db-1 ", "db-2 sick")
	if !strings.Contains(c.log.String(), "took a lease from a node that does not run its pod") || !strings.Contains(c.log.String(), "node=foe") {
		t.Errorf("the log is silent:\n%s", c.log.String())
	}
	c.rounds(20 * time.Minute)
	if said := c.attention("p"); said != "" {
		t.Errorf("the pool still says %v", said)
	}
}

// TestTheNodeThatHoldsMostForOtherNodesIsNamed has three of them.
func TestTheNodeThatHoldsMostForOtherNodesIsNamed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, kept))
	for i, node := range []string{"foe-1", "foe-2", "foe-2", "foe-3", "well", "well", "well"} {
		c.join(node, nil)
		pod := fmt.Sprintf("db-%d", i)
		c.hold(pod, node)
		c.absent[pod] = node != "well"
	}
	c.rounds(20 * time.Minute)
	if said := c.attention("p"); !strings.Contains(said, `"foe-2": it holds 2 RailLeases of RailPool p`) {
		t.Errorf("the pool says %v", said)
	}
}

func TestAPodThatHasJustEndedNeedsNoAttention(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, kept))
	c.join("n", nil)
	c.hold("db-0", "n")
	c.rounds(10 * time.Minute)
	for _, absent := range []bool{true, false} {
		c.absent["db-0"] = absent
		c.rounds(10 * time.Minute)
		if said := c.attention("p"); said != "" {
			t.Errorf("absent %v: the pool says %v", absent, said)
		}
	}
	c.rounds(2 * time.Hour)
	c.holders("db-0 n")
}

func TestTheHoldingsOfTheNodesAreSummedUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, kept))
	c.claim("p", "", 1, "much")
	c.claim("p", "", 2, "much")
	c.claim("p", "", 3, "little")
	c.usage = map[string]block.Usage{"p-1": {Used: 3, Size: 16}, "p-2": {Used: 4, Size: 16}, "p-3": {Size: 16}}
	c.join("foe", nil)
	c.hold("db-0", "much")
	c.hold("db-1", "foe")
	c.hold("db-2", "foe")
	c.absent["db-2"] = true
	c.release(c.hold("db-3", "little"))
	o, err := c.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []reconcile.Holding{
		{Node: "foe", Pool: "p", Leases: 2, Absent: 1},
		{Node: "much", Pool: "p", Blocks: 2, Used: 7, Size: 32, Leases: 1},
		{Node: "little", Pool: "p", Blocks: 1, Size: 16},
	}
	if diff := cmp.Diff(want, o.Holdings); diff != "" {
		t.Error(diff)
	}
}
