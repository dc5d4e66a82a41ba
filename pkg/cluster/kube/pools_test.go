// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

const (
	railPool = `{"apiVersion": "roce-cni.io/v1alpha1", "kind": "RailPool", "metadata": {"name": "gpu", "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"a": "b"}},
		"spec": {"blockSize": 8, "nodeSelector": {"x": "y"}, "template": {"count": 8, "subnets": [{"subnet": "10.{rail}.0.0/16", "ranges": ["10.{rail}.1.0/24"]}]}},
		"status": {"claimed": 3, "conditions": [{"type": "Valid", "status": "True"}]}}`
	railPools = `{"apiVersion": "roce-cni.io/v1alpha1", "kind": "RailPoolList", "metadata": {"resourceVersion": "7"}, "items": [` + railPool + `]}`
)

// want is what package block makes of it.
func want() block.Pool {
	return block.Pool{Name: "gpu", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Spec: block.PoolSpec{
		BlockSize: 8, NodeSelector: map[string]string{"x": "y"},
		Template: &block.Template{Count: 8, Subnets: []block.Subnet{{Subnet: "10.{rail}.0.0/16", Ranges: []string{"10.{rail}.1.0/24"}}}},
	}}
}

func TestAllPoolsAreListed(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: 200, body: railPools})
	got, err := s.api(t).Pools(t.Context())
	if err != nil || len(got) != 1 {
		t.Fatalf("%d pools, error %v", len(got), err)
	}
	if diff := cmp.Diff(want(), got[0].Pool()); diff != "" || got[0].Status.Claimed != 3 {
		t.Errorf("status %+v (-want +got)\n%s", got[0].Status, diff)
	}
}

// TestADeletedPoolIsInUseAsLongAsItHasOurFinalizer, or the finalizer would stay for ever.
func TestADeletedPoolIsInUseAsLongAsItHasOurFinalizer(t *testing.T) {
	t.Parallel()
	p := kube.RailPool{}
	p.Name, p.DeletionTimestamp, p.Finalizers = "gpu", &metav1.Time{Time: time.Unix(1, 0)}, []string{"other", kube.InUse}
	if diff := cmp.Diff(block.Pool{Name: "gpu", InUse: true, Deleted: true}, p.Pool()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A block of any other pool would prevent no removal.
func TestAPoolStandsIfABlockPreventsItsRemoval(t *testing.T) {
	t.Parallel()
	const used = `"finalizers": ["roce-cni.io/in-use"]`
	for meta, want := range map[string]bool{
		`"uid": "u1", ` + used: true, `"uid": "u2", ` + used: false, `"uid": "u1", "finalizers": ["other"]`: false,
		`"uid": "u1", "deletionTimestamp": "2026-01-01T00:00:00Z", ` + used: false,
	} {
		s := serve(t, answer{code: 200, body: `{"metadata": {"name": "gpu", ` + meta + `}}`})
		if got, err := s.api(t).Stands(t.Context(), "gpu", "u1"); err != nil || got != want {
			t.Errorf("%s: stands: %t, %v, want %t", meta, got, err, want)
		}
	}
	for code, unknown := range map[int]bool{404: false, 500: true} {
		s := serve(t, status(code, map[int]string{404: "NotFound", 500: "InternalError"}[code]))
		if got, err := s.api(t).Stands(t.Context(), "gpu", "u1"); got || (err != nil) != unknown {
			t.Errorf("code %d: stands: %t, %v", code, got, err)
		}
	}
}

// A pool gets our finalizer beside those of others, and loses it when it was deleted.
func TestAMarkIsOneFinalizer(t *testing.T) {
	t.Parallel()
	const other = "example.org/other"
	for name, tt := range map[string]struct {
		has     []string
		deleted bool
		want    string
	}{
		"new":               {nil, false, `["roce-cni.io/in-use"]`},
		"with another":      {[]string{other}, false, `["example.org/other", "roce-cni.io/in-use"]`},
		"marked already":    {[]string{kube.InUse, other}, false, `["example.org/other", "roce-cni.io/in-use"]`},
		"deleted":           {[]string{other, kube.InUse}, true, `["example.org/other"]`},
		"deleted, the last": {[]string{kube.InUse}, true, `[]`},
	} {
		s := serve(t, answer{code: 200, body: railPool}, status(409, "Conflict"))
		p := kube.RailPool{ObjectMeta: metav1.ObjectMeta{Name: "gpu", UID: "u", ResourceVersion: "7", Finalizers: tt.has}}
		if tt.deleted {
			p.DeletionTimestamp = new(metav1.NewTime(noon()))
		}
		if err := s.api(t).Mark(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		r := s.requests()[0]
		if r.method != http.MethodPatch || r.path != "/apis/roce-cni.io/v1alpha1/railpools/gpu" || r.kind != "application/merge-patch+json" {
			t.Errorf("%s: asked %+v", name, r)
		}
		sent := `{"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": ` + tt.want + `}}`
		if diff := cmp.Diff(decoded(t, sent), decoded(t, r.body)); diff != "" {
			t.Errorf("%s (-want +sent)\n%s", name, diff)
		}
		if err := s.api(t).Mark(t.Context(), p); !is(block.ErrConflict)(err) {
			t.Errorf("%s: a pool that has changed: %v", name, err)
		}
	}
}

func TestReflectorsListAndWatchPools(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: 200, body: railPools}, answer{code: 200, body: `{"type": "MODIFIED", "object": ` + railPool + `}{"type": "ERROR", "object": ` + status(410, "Expired").body + `}`})
	lw := s.api(t).WatchPools()
	listed, err := lw.ListWithContextFunc(t.Context(), metav1.ListOptions{})
	list, ok := listed.(*kube.RailPoolList)
	if err != nil || !ok || len(list.Items) != 1 {
		t.Fatalf("error %v, got %#v", err, listed)
	}
	events, err := lw.WatchFuncWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "7"})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	e := <-events.ResultChan()
	changed, ok := e.Object.(*kube.RailPool)
	if e.Type != watch.Modified || !ok {
		t.Fatalf("got %#v", e)
	}
	if e = <-events.ResultChan(); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("a watch that must begin again: %#v", e)
	}
	for _, p := range []kube.RailPool{list.Items[0], *changed} {
		if diff := cmp.Diff(want(), p.Pool()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

func TestAReportWritesNothingButTheStatus(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: 200, body: railPool}, status(404, "NotFound"))
	pools := s.api(t)
	report := kube.PoolStatus{Blocks: 12, Claimed: 3, Usage: block.Usage{Size: 190, Used: 20, Free: 170}, Conditions: []metav1.Condition{{
		Type: kube.ValidCondition, Status: metav1.ConditionTrue, Reason: "Valid", LastTransitionTime: metav1.NewTime(noon()),
	}}}
	if err := pools.Report(t.Context(), "gpu", report); err != nil {
		t.Fatal(err)
	}
	r := s.requests()[0]
	if r.method != http.MethodPatch || r.path != "/apis/roce-cni.io/v1alpha1/railpools/gpu/status" || r.kind != "application/merge-patch+json" {
		t.Errorf("asked %+v", r)
	}
	sent := `{"status": {"blocks": 12, "claimed": 3, "size": 190, "used": 20, "quarantined": 0, "free": 170, "reserved": 0,
		"conditions": [{"type": "Valid", "status": "True", "reason": "Valid", "message": "", "lastTransitionTime": "2026-01-02T12:00:00Z"}]}}`
	if diff := cmp.Diff(decoded(t, sent), decoded(t, r.body)); diff != "" {
		t.Errorf("(-want +sent)\n%s", diff)
	}
	if err := pools.Report(t.Context(), "gone", report); !is(block.ErrNotFound)(err) {
		t.Errorf("a pool that is gone: %v", err)
	}
}

func TestCopiesShareNothingThatChanges(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: 200, body: railPools})
	got, err := s.api(t).Pools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := &kube.RailPoolList{Items: got}
	copies := []*kube.RailPool{got[0].DeepCopyObject().(*kube.RailPool), &list.DeepCopyObject().(*kube.RailPoolList).Items[0]}
	for _, c := range copies {
		if diff := cmp.Diff(&got[0], c); diff != "" {
			t.Errorf("(-original +copy)\n%s", diff)
		}
		c.Labels["a"], c.Spec.NodeSelector["x"] = "changed", "changed"
		c.Spec.Template.Subnets[0].Ranges[0], c.Status.Conditions[0].Type = "changed", "changed"
	}
	if diff := cmp.Diff(want(), got[0].Pool()); diff != "" || got[0].Labels["a"] != "b" || got[0].Status.Conditions[0].Type != "Valid" {
		t.Errorf("the original has changed: %+v\n%s", got[0], diff)
	}
}
