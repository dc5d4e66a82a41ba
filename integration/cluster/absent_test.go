// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// ready makes a node as one with a kubelet that works.
func (g guarded) ready(t *testing.T, node string) {
	t.Helper()
	admin := client(t, g.Admin()).CoreV1().Nodes()
	n, err := admin.Get(t.Context(), g.pool+"-"+node, meta.GetOptions{})
	must(t, err)
	n.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue}}
	_, err = admin.UpdateStatus(t.Context(), n, meta.UpdateOptions{})
	must(t, err)
}

// binds makes a pod on a node.
func (g guarded) binds(t *testing.T, pod, node string) {
	t.Helper()
	_, err := ground.MakePod(t.Context(), client(t, g.Admin()), &core.Pod{
		ObjectMeta: meta.ObjectMeta{Namespace: "default", Name: pod},
		Spec:       core.PodSpec{NodeName: g.pool + "-" + node},
	})
	must(t, err)
}

// TestTheReaperTakesLeasesFromANodeThatDoesNotRunTheirPods: with the token of one node,
// leases are held for pods of another node, for pods that do not exist, and for names that
// no pod can have. The reaper, with the rights that are deployed, frees them all.
func TestTheReaperTakesLeasesFromANodeThatDoesNotRunTheirPods(t *testing.T) {
	t.Parallel()
	g := guard(t, "absent")
	ctx := t.Context()
	g.ready(t, "a")
	g.ready(t, "b")
	g.binds(t, "absent-own", "a")
	g.binds(t, "absent-victim", "b")
	want := map[string]string{}
	for i, tt := range []struct{ namespace, pod, holder string }{
		{"default", "absent-own", g.pool + "-a"},
		{"default", "absent-victim", ""},
		{"default", "absent-none", ""},
		{"kube-system", "absent-own", ""},
		{"default/pods/absent-own?x=", "absent-own", ""},
		{"..", "..", ""},
		{"default", "absent-own,spec.nodeName!=x", ""},
		{"default", "absent-own\n", ""},
		{"default", strings.Repeat("x", 253), ""},
	} {
		l := g.lease(1024+i, "a")
		l.Spec.Namespace, l.Spec.Pod = tt.namespace, tt.pod
		_, err := api(t, g.a).Leases().Create(ctx, l)
		must(t, err)
		want[l.Name] = tt.holder
	}
	gc := api(t, g.gc)
	look := func(a sticky.Absences, now time.Duration) (sticky.Absences, []sticky.Lease) {
		t.Helper()
		held, err := gc.Leases().List(ctx, sticky.Query{Pool: g.pool})
		must(t, err)
		a, due, err := a.Look(now, held, func(l sticky.Lease) (bool, error) {
			return gc.Runs(ctx, l.Spec.Namespace, l.Spec.Pod, l.Spec.Holder.NodeName)
		})
		must(t, err)
		return a, due
	}
	a, _ := look(sticky.Absences{}, 0)
	for name := range want { // the node writes what it holds
		must(t, g.pass(ctx, t, g.a, name, "a"))
	}
	_, due := look(a, time.Hour)
	if len(due) != len(want)-1 {
		t.Fatalf("due: %+v", due)
	}
	for _, l := range due {
		must(t, g.pass(ctx, t, g.a, l.Name, "a"))
		freed, err := sticky.Free(ctx, gc.Leases(), gc, time.Now(), l)
		must(t, err)
		if !freed {
			t.Errorf("%s is not freed", l.Name)
		}
	}
	got := map[string]string{}
	all, err := gc.Leases().List(ctx, sticky.Query{Pool: g.pool})
	must(t, err)
	for _, l := range all {
		got[l.Name] = l.Spec.Holder.NodeName
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the holders (-want +got)\n%s", diff)
	}
	b := stickyClaimer(t, g.Cluster, g.pool+"-b")
	b.Store = api(t, g.b).Leases()
	k := g.lease(1024, "").Spec.Key()
	k.Pod = "absent-victim"
	if l, err := b.Take(ctx, stickySlots(t, g.pool), k); err != nil || l.Name != g.pool+"-s1025" {
		t.Errorf("the node of the pod gets %+v, error %v", l, err)
	}
}
