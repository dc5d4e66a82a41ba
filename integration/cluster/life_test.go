// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// reaper looks at one pool, in a clock of its own.
type reaper struct {
	api  *kube.API
	pool string
	seen block.Sightings
}

// look is one sighting, and returns what is due.
func (r *reaper) look(t *testing.T, now time.Duration) (due []block.Block) {
	t.Helper()
	blocks, err := r.api.Blocks().List(t.Context(), block.Query{Pool: r.pool, Freshness: block.Latest})
	must(t, err)
	all, err := r.api.Nodes().All(t.Context())
	must(t, err)
	nodes := block.Nodes{}
	for _, n := range all {
		nodes[n.Name] = n.MachineID
	}
	bound := map[string]bool{}
	for _, name := range nodes.Missing(block.Owners(blocks)) {
		bound[name], err = r.api.Nodes().Bound(t.Context(), name)
		must(t, err)
	}
	r.seen, due = r.seen.Look(now, blocks, nodes, bound)
	return due
}

// reap says whether a block that is due was deleted.
func (r *reaper) reap(t *testing.T, due block.Block) bool {
	t.Helper()
	done, err := block.Reap(t.Context(), r.api.Blocks(), r.api.Nodes(), due)
	must(t, err)
	return done
}

func mustClaim(t *testing.T, c *block.Claimer, s block.Space, have ...block.Block) block.Block {
	t.Helper()
	b, err := c.Claim(t.Context(), s, have)
	must(t, err)
	return b.Block
}

// TestABlockIsFreedOnlyWhenItsNodeIsGoneForGood deletes a Node object, and lets
// each thing that must keep the block happen between the last sighting and the
// deletion.
func TestABlockIsFreedOnlyWhenItsNodeIsGoneForGood(t *testing.T) {
	t.Parallel()
	c := shared(t)
	admin, a := client(t, c.Admin()), api(t, c.Admin())
	s := space(t, "gone", 64)
	node(t, admin, "gone-node")
	owner := claimer(a, "gone-node")
	b := mustClaim(t, owner, s)
	remove := func() {
		must(t, admin.CoreV1().Nodes().Delete(t.Context(), "gone-node", meta.DeleteOptions{}))
	}
	pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Namespace: "default", Name: "gone-pod"}, Spec: core.PodSpec{NodeName: "gone-node"}}
	at := time.Duration(0)
	for _, tt := range []struct {
		what        string
		then, after func() // between the last sighting and the deletion; before the next
	}{
		{"its Node object is created again", func() { node(t, admin, "gone-node") }, remove},
		{
			"its owner asserts it",
			func() {
				_, lost, err := owner.Assert(t.Context(), s, []block.Block{b})
				must(t, err)
				if len(lost) > 0 {
					t.Errorf("lost %v", lost)
				}
			}, func() {},
		},
		{
			"a pod is bound to its name",
			func() { _, err := ground.MakePod(t.Context(), admin, pod.DeepCopy()); must(t, err) },
			func() {
				now := int64(0)
				must(t, admin.CoreV1().Pods("default").Delete(t.Context(), "gone-pod", meta.DeleteOptions{GracePeriodSeconds: &now}))
			},
		},
	} {
		if at == 0 {
			remove()
		}
		r := &reaper{api: a, pool: "gone"}
		at += 24 * time.Hour
		for _, early := range []time.Duration{0, block.Grace - time.Second} {
			if due := r.look(t, at+early); len(due) != 0 {
				t.Fatalf("%s: %v is due after %v", tt.what, due, early)
			}
		}
		due := r.look(t, at+block.Grace)
		if len(due) != 1 {
			t.Fatalf("%s: %d blocks are due", tt.what, len(due))
		}
		tt.then()
		if r.reap(t, due[0]) {
			t.Fatalf("%s, and the block is deleted", tt.what)
		}
		tt.after()
	}
	r := &reaper{api: a, pool: "gone"}
	r.look(t, 0)
	due := r.look(t, block.Grace)
	if len(due) != 1 || !r.reap(t, due[0]) {
		t.Fatalf("the block of a node that is gone stays; due is %v", due)
	}
	b.Spec.NodeName = "gone-heir"
	_, err := a.Blocks().Create(t.Context(), b)
	must(t, err)
	b.Spec.NodeName = "gone-node"
	_, lost, err := owner.Assert(t.Context(), s, []block.Block{b})
	if len(lost) != 1 || cnierr.CodeOf(err) != cnierr.Limited {
		t.Errorf("the owner that comes back has lost %v: %v", lost, err)
	}
}

// TestBlocksThatABackupLacksAreAssertedAgain restores etcd to before half of the
// claims. One of the forgotten blocks is taken before its owner asserts it: that
// one is lost, and its owner is told.
func TestBlocksThatABackupLacksAreAssertedAgain(t *testing.T) {
	t.Parallel()
	c := withCRDs(t, own(t))
	s := space(t, "restored", 16)
	var nodes []*block.Claimer
	has := map[string]string{} // block by node
	claim := func(n int) {
		for range n {
			node := claimer(api(t, c.Admin()), fmt.Sprintf("restored-%d", len(nodes)))
			has[node.Node.Name] = mustClaim(t, node, s).Name
			nodes = append(nodes, node)
		}
	}
	claim(8)
	backup := filepath.Join(t.TempDir(), "backup")
	must(t, c.Save(t.Context(), backup))
	claim(8)
	must(t, c.Restore(t.Context(), backup))

	newcomer := claimer(api(t, c.Admin()), "restored-newcomer")
	taken := mustClaim(t, newcomer, s)
	var lostBy []string
	for _, node := range nodes {
		recorded := block.Block{Name: has[node.Node.Name], Spec: block.Spec{
			Pool: "restored", Size: 16, Owner: block.Owner{NodeName: node.Node.Name, MachineID: node.Node.MachineID},
		}}
		_, err := fmt.Sscanf(recorded.Name, "restored-%d", &recorded.Spec.Index)
		must(t, err)
		kept, lost, err := node.Assert(t.Context(), s, []block.Block{recorded})
		switch {
		case len(kept) == 1 && err == nil:
		case len(lost) == 1 && cnierr.CodeOf(err) == cnierr.Limited:
			lostBy = append(lostBy, node.Node.Name)
			delete(has, node.Node.Name)
		default:
			t.Errorf("%s keeps %v, has lost %v: %v", node.Node.Name, kept, lost, err)
		}
	}
	if len(lostBy) != 1 {
		t.Errorf("%v have lost their blocks, and the newcomer has %s", lostBy, taken.Name)
	}
	has[newcomer.Node.Name] = taken.Name
	there, err := api(t, c.Admin()).Blocks().List(t.Context(), block.Query{Pool: "restored", Freshness: block.Latest})
	must(t, err)
	for _, b := range there {
		if has[b.Spec.NodeName] != b.Name {
			t.Errorf("%s is %s's, which has %s", b.Name, b.Spec.NodeName, has[b.Spec.NodeName])
		}
	}
	if len(there) != 16 || len(has) != 16 {
		t.Errorf("%d blocks, and %d nodes have one", len(there), len(has))
	}
}

// TestClocksThatJumpChangeNothing gives nodes clocks that are decades off, and go
// back between two writes.
func TestClocksThatJumpChangeNothing(t *testing.T) {
	t.Parallel()
	c := shared(t)
	admin := client(t, c.Admin())
	s := space(t, "clocks", 64)
	times := []time.Time{time.Unix(0, 0), time.Date(2199, 1, 1, 0, 0, 0, 0, time.UTC), time.Now(), time.Unix(1, 0)}
	var names []string
	for i := range times {
		calls := i
		skewed, err := kube.Open(c.Admin(), func() time.Time { calls++; return times[calls%len(times)] })
		must(t, err)
		name := fmt.Sprintf("clocks-%d", i)
		node(t, admin, name)
		owner := claimer(skewed, name)
		b := mustClaim(t, owner, s)
		names = append(names, b.Name)
		for range times {
			kept, lost, err := owner.Assert(t.Context(), s, []block.Block{b})
			if err != nil || len(lost) != 0 || len(kept) != 1 || kept[0].UID != b.UID || kept[0].ResourceVersion == b.ResourceVersion {
				t.Fatalf("%s keeps %v, has lost %v: %v", name, kept, lost, err)
			}
			b = kept[0]
		}
	}
	slices.Sort(names)
	if len(slices.Compact(names)) != len(times) {
		t.Errorf("nodes share blocks: %v", names)
	}
	// Whenever its owner thinks that it was: it is gone for as long as the
	// reaper has seen.
	must(t, admin.CoreV1().Nodes().Delete(t.Context(), "clocks-0", meta.DeleteOptions{}))
	r := &reaper{api: api(t, c.Admin()), pool: "clocks"}
	if due := append(r.look(t, 0), r.look(t, block.Grace-1)...); len(due) != 0 {
		t.Errorf("%v is due at once", due)
	}
	if due := r.look(t, block.Grace); len(due) != 1 || due[0].Spec.NodeName != "clocks-0" {
		t.Errorf("%v is due after an hour", due)
	}
}
