// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

func lease() sticky.Lease {
	return sticky.Lease{
		Name: "gpu-s70", UID: "one", ResourceVersion: "42", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Spec: sticky.Spec{
			Pool: "gpu", Slot: 70, Namespace: "default", Pod: "db-0", Interface: "net1",
			Holder: block.Owner{NodeName: "node-1", MachineID: "abc"}, Written: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC),
		},
	}
}

// railLease is the object of that lease, with that UID and version.
func railLease(uid, version string) answer {
	return answer{code: http.StatusOK, body: fmt.Sprintf(`{"apiVersion": "roce-cni.io/v1alpha1", "kind": "RailLease",
		"metadata": {"name": "gpu-s70", "uid": %q, "resourceVersion": %q, "creationTimestamp": "2026-01-02T03:04:05Z"},
		"spec": {"pool": "gpu", "slot": 70, "namespace": "default", "pod": "db-0", "interface": "net1",
			"holder": {"nodeName": "node-1", "machineID": "abc"}, "written": "2026-01-02T03:04:05.000006Z"}}`, uid, version)}
}

func TestALeaseIsWrittenWithTheVersionThatWasSeen(t *testing.T) {
	t.Parallel()
	s := serve(t, railLease("one", "43"))
	want := lease()
	want.ResourceVersion = "43"
	written := lease()
	written.Spec.Written = written.Spec.Written.In(time.FixedZone("CET", 3600))
	if got, err := s.api(t).Leases().Update(t.Context(), written); err != nil || got != want {
		t.Errorf("error %v, (-want +got)\n%s", err, cmp.Diff(want, got))
	}
	released := lease()
	released.Spec.Holder = block.Owner{}
	if _, err := s.api(t).Leases().Update(t.Context(), released); err != nil {
		t.Error(err)
	}
	const path, kind, seen = "/apis/roce-cni.io/v1alpha1/railleases/gpu-s70", "application/merge-patch+json", `{"metadata":{"resourceVersion":"42","uid":"one"},"spec":{"holder":`
	asked := []request{
		{"PATCH", path, "", kind, seen + `{"nodeName":"node-1","machineID":"abc"},"written":"2026-01-02T03:04:05.000006Z"}}`},
		{"PATCH", path, "", kind, seen + `null,"written":"2026-01-02T03:04:05.000006Z"}}`},
	}
	if diff := cmp.Diff(asked, s.requests(), cmp.AllowUnexported(request{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestALeaseThatChangedIsAConflictWithAnyAnswer(t *testing.T) {
	t.Parallel()
	refused := func(code int) answer { return status(code, http.StatusText(code)) }
	for name, tt := range map[string]struct {
		answers []answer
		want    func(error) bool
	}{
		"another version":         {[]answer{refused(409)}, is(block.ErrConflict)},
		"gone":                    {[]answer{refused(404)}, is(block.ErrNotFound)},
		"another uid":             {[]answer{refused(422), railLease("two", "42")}, is(block.ErrConflict)},
		"of another holder":       {[]answer{refused(403), railLease("one", "43")}, is(block.ErrConflict)},
		"gone meanwhile":          {[]answer{refused(403), refused(404)}, is(block.ErrNotFound)},
		"unknown":                 {[]answer{refused(403), refused(500)}, is(block.ErrUnknown)},
		"without right":           {[]answer{refused(403), railLease("one", "42")}, lasting(cnierr.NotAvailable, "rbac.yaml")},
		"of another definition":   {[]answer{refused(422), railLease("one", "42")}, lasting(cnierr.BadConfig, "CustomResourceDefinitions")},
		"a connection that broke": {[]answer{{cut: true}}, is(block.ErrUnknown)},
	} {
		if _, err := serve(t, tt.answers...).api(t).Leases().Update(t.Context(), lease()); !tt.want(err) {
			t.Errorf("%s: written with error %v", name, err)
		}
		if err := serve(t, tt.answers...).api(t).Leases().Delete(t.Context(), "gpu-s70", "one", "42"); !tt.want(err) {
			t.Errorf("%s: deleted with error %v", name, err)
		}
	}
}

func TestALeaseIsLookedForByItsFields(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: http.StatusOK, body: `{"metadata": {}, "items": [` + railLease("one", "42").body + `]}`})
	for _, q := range []sticky.Query{
		{},
		{Pool: "gpu", Key: nodefile.Key{Namespace: "default", Pod: "db-0", Interface: "net1"}},
		{Pool: "gpu", Rack: "7", Node: "node-1"},
	} {
		if got, err := s.api(t).Leases().List(t.Context(), q); err != nil || !cmp.Equal(got, []sticky.Lease{lease()}) {
			t.Errorf("%+v: %v, error %v", q, got, err)
		}
	}
	var queries []string
	for _, r := range s.requests() {
		queries = append(queries, r.query)
	}
	want := []string{
		"limit=500",
		"fieldSelector=spec.pool%3Dgpu%2Cspec.namespace%3Ddefault%2Cspec.pod%3Ddb-0%2Cspec.interface%3Dnet1&limit=500",
		"fieldSelector=spec.pool%3Dgpu%2Cspec.rack%3D7%2Cspec.holder.nodeName%3Dnode-1&limit=500",
	}
	if diff := cmp.Diff(want, queries); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
