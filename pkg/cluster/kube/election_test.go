// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube_test

import (
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

func TestALeaseIsWrittenAsItWasRead(t *testing.T) {
	t.Parallel()
	s := serve(t, status(404, "NotFound"), answer{code: 201, body: `{}`},
		answer{code: 200, body: `{"metadata": {"resourceVersion": "7", "labels": {"team": "net"}}, "spec": {"holderIdentity": "a"}}`}, status(409, "Conflict"))
	e := s.api(t).Election("net", "gc")
	l, err := e.Get(t.Context())
	if !is(block.ErrNotFound)(err) {
		t.Fatal(err)
	}
	if err := e.Put(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if l, err = e.Get(t.Context()); err != nil || *l.Spec.HolderIdentity != "a" {
		t.Fatalf("got %+v, error %v", l, err)
	}
	if err := e.Put(t.Context(), l); !is(block.ErrConflict)(err) {
		t.Error(err)
	}
	const all = "/apis/coordination.k8s.io/v1/namespaces/net/leases"
	for i, want := range []request{
		{method: "GET", path: all + "/gc"},
		{method: "POST", path: all, kind: "application/json", body: `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"gc","namespace":"net"},"spec":{}}`},
		{method: "GET", path: all + "/gc"},
		{method: "PUT", path: all + "/gc", kind: "application/json", body: `"resourceVersion":"7"`},
	} {
		if got := s.requests()[i]; got.method != want.method || got.path != want.path || got.kind != want.kind || !strings.Contains(got.body, want.body) {
			t.Errorf("asked %+v, want %+v", got, want)
		}
	}
	if got := s.requests()[3].body; !strings.Contains(got, `"team":"net"`) {
		t.Errorf("wrote %s", got)
	}
}
