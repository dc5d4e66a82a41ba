// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
)

const groups, empty = "/apis/roce-cni.io/v1alpha1/", `{"metadata": {}, "items": []}`

// TestEachQuestionIsAskedAtItsPlace has the whole requests, and no answer the second time, which is
// an error and not an empty answer.
func TestEachQuestionIsAskedAtItsPlace(t *testing.T) {
	t.Parallel()
	see := func(*kube.RailBlock) {}
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		ask  func(context.Context, *kube.API) error
		want request
	}{
		"a block, of etcd": {func(ctx context.Context, a *kube.API) error {
			_, err := a.Blocks().Get(ctx, "gpu-3")
			return err
		}, request{method: "GET", path: groups + "railblocks/gpu-3"}},
		"a block, of the cache": {func(ctx context.Context, a *kube.API) error {
			_, err := a.Blocks().Peek(ctx, "gpu-3")
			return err
		}, request{method: "GET", path: groups + "railblocks/gpu-3", query: "resourceVersion=0"}},
		"a lease": {func(ctx context.Context, a *kube.API) error {
			_, err := a.Leases().Get(ctx, "gpu-s70")
			return err
		}, request{method: "GET", path: groups + "railleases/gpu-s70"}},
		"a new lease": {func(ctx context.Context, a *kube.API) error {
			_, err := a.Leases().Create(ctx, lease())
			return err
		}, request{method: "POST", path: groups + "railleases", kind: "application/json", body: `{"kind":"RailLease","apiVersion":"roce-cni.io/v1alpha1",` +
			`"metadata":{"name":"gpu-s70","annotations":{"roce-cni.io/created-by":"node-1"}},"spec":{"pool":"gpu","slot":70,"namespace":"default","pod":"db-0",` +
			`"interface":"net1","holder":{"nodeName":"node-1","machineID":"abc"},"written":"2026-01-02T03:04:05.000006Z"}}`}},
		"a new lease without a holder": {func(ctx context.Context, a *kube.API) error {
			l := lease()
			l.Spec.Holder, l.Spec.Written = block.Owner{}, time.Time{}
			_, err := a.Leases().Create(ctx, l)
			return err
		}, request{method: "POST", path: groups + "railleases", kind: "application/json", body: `{"kind":"RailLease","apiVersion":"roce-cni.io/v1alpha1",` +
			`"metadata":{"name":"gpu-s70"},"spec":{"pool":"gpu","slot":70,"namespace":"default","pod":"db-0","interface":"net1"}}`}},
		"blocks of no pool": {func(ctx context.Context, a *kube.API) error {
			return a.Strangers(ctx, nil, see)
		}, request{method: "GET", path: groups + "railblocks", query: "labelSelector=roce-cni.io%2Fpool&limit=500"}},
		"blocks of other pools": {func(ctx context.Context, a *kube.API) error {
			return a.Strangers(ctx, []string{"gpu", "storage"}, see)
		}, request{method: "GET", path: groups + "railblocks", query: "labelSelector=roce-cni.io%2Fpool+notin+%28gpu%2Cstorage%29&limit=500"}},
		"reports": {func(ctx context.Context, a *kube.API) error {
			_, err := a.RailNodes(ctx)
			return err
		}, request{method: "GET", path: groups + "railnodes", query: "resourceVersion=0"}},
		"pools": {func(ctx context.Context, a *kube.API) error {
			_, err := a.Pools(ctx)
			return err
		}, request{method: "GET", path: groups + "railpools", query: "limit=500"}},
		"pools, for an informer": {func(ctx context.Context, a *kube.API) error {
			_, err := a.WatchPools().ListWithContextFunc(ctx, metav1.ListOptions{})
			return err
		}, request{method: "GET", path: groups + "railpools"}},
		"ServiceCIDRs, for an informer": {func(ctx context.Context, a *kube.API) error {
			_, err := a.WatchServices().ListWithContextFunc(ctx, metav1.ListOptions{})
			return err
		}, request{method: "GET", path: "/apis/networking.k8s.io/v1/servicecidrs"}},
		"one of the ServiceCIDRs": {func(ctx context.Context, a *kube.API) error {
			return a.ServesCIDRs(ctx)
		}, request{method: "GET", path: "/apis/networking.k8s.io/v1/servicecidrs", query: "limit=1"}},
		"nodes": {func(ctx context.Context, a *kube.API) error {
			_, err := a.Nodes(ctx)
			return err
		}, request{method: "GET", path: "/api/v1/nodes", query: "limit=500"}},
		"an event of a pod": {func(ctx context.Context, a *kube.API) error {
			return a.TellHealed(ctx, "gpu-1", calls.Call{At: at, Verb: calls.Heal, Pod: "ml/job", UID: "u1", Code: 102, Error: "net1 is gone"})
		}, request{method: "POST", path: "/api/v1/namespaces/ml/events", kind: "application/json", body: `@Pod@`}},
		"an event of a node": {func(ctx context.Context, a *kube.API) error {
			return a.TellHealed(ctx, "gpu-1", calls.Call{At: at, Verb: calls.Heal, Code: 102, Error: "r0 is gone"})
		}, request{method: "POST", path: "/api/v1/namespaces/default/events", kind: "application/json", body: `@Node@`}},
	} {
		s := serve(t, answer{code: 200, body: strings.Replace(empty, "{", `{"apiVersion": "roce-cni.io/v1alpha1", "kind": "RailPoolList", `, 1)}, status(500, "InternalError"))
		a := s.api(t)
		if err := tt.ask(t.Context(), a); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got := s.requests()[0]
		if kind, whole := strings.CutPrefix(tt.want.body, "@"); whole { // the tests of events have all of it
			if !strings.Contains(got.body, `"involvedObject":{"kind":"`+strings.TrimSuffix(kind, "@")+`"`) {
				t.Errorf("%s: sent %s", name, got.body)
			}
			tt.want.body = got.body
		}
		if diff := cmp.Diff([]request{tt.want}, s.requests(), cmp.AllowUnexported(request{})); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		if err := tt.ask(t.Context(), a); err == nil {
			t.Errorf("%s: no error without an answer", name)
		}
	}
}

// memory is an API server that has each Node.
type memory struct{}

func (memory) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{}`)), Request: r}, nil
}

// TestRequestsAreSentAtOnce: who calls waits between them, and client-go, which has a limit, does not.
func TestRequestsAreSentAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, err := kube.Open(&rest.Config{Host: "http://api", Transport: memory{}}, noon)
		began := time.Now()
		for range 50 {
			_, asked := a.Node(t.Context(), "gpu-1")
			err = errors.Join(err, asked)
		}
		if took := time.Since(began); took > 0 || err != nil {
			t.Errorf("50 requests take %v, error %v", took, err)
		}
	})
}

// TestAPoolIsUsedByABlockOrAHeldLease has an operator make a lease, which no node holds.
func TestAPoolIsUsedByABlockOrAHeldLease(t *testing.T) {
	t.Parallel()
	list := func(items ...string) answer {
		return answer{code: http.StatusOK, body: strings.Replace(empty, "[]", "["+strings.Join(items, ", ")+"]", 1)}
	}
	held, free := railLease("one", "42").body, `{"metadata": {"name": "gpu-s71"}, "spec": {"pool": "gpu", "slot": 71}}`
	blocks := request{method: "GET", path: groups + "railblocks", query: "labelSelector=roce-cni.io%2Fpool%3Dgpu&limit=1"}
	leases := request{method: "GET", path: groups + "railleases", query: "fieldSelector=spec.pool%3Dgpu&limit=500"}
	for name, tt := range map[string]struct {
		answers     []answer
		used, fails bool
		want        []request
	}{
		"a block":         {[]answer{list(`{}`), list()}, true, false, []request{blocks}},
		"a held lease":    {[]answer{list(), list(held, free)}, true, false, []request{blocks, leases}},
		"a free lease":    {[]answer{list(), list(free)}, false, false, []request{blocks, leases}},
		"nothing":         {[]answer{list()}, false, false, []request{blocks, leases}},
		"unknown blocks":  {[]answer{status(500, "InternalError"), list()}, false, true, []request{blocks}},
		"unknown leases":  {[]answer{list(), status(500, "InternalError")}, false, true, []request{blocks, leases}},
		"no leases at it": {[]answer{list(), {code: 200, body: `{"items": [{"spec": {"slot": "one"}}]}`}}, false, true, []request{blocks, leases}},
	} {
		s := serve(t, tt.answers...)
		used, err := s.api(t).Used(t.Context(), "gpu")
		if used != tt.used || (err != nil) != tt.fails {
			t.Errorf("%s: used %t, error %v", name, used, err)
		}
		if diff := cmp.Diff(tt.want, s.requests(), cmp.AllowUnexported(request{})); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		if s.accepts[0] != "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1" { // not their environment
			t.Errorf("%s: it accepts %s", name, s.accepts[0])
		}
	}
}
