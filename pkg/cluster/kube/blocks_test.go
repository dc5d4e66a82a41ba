// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

const ours = "/apis/roce-cni.io/v1alpha1/railblocks"

// decoded is what JSON says.
func decoded(t *testing.T, body string) any {
	t.Helper()
	var out any
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return out
}

func TestABlockIsCreatedWithTheLabelsThatListsGoBy(t *testing.T) {
	t.Parallel()
	racked := sample()
	racked.Name, racked.Spec.Rack = "gpu.r1-3", "r1"
	for _, tt := range []struct {
		b      block.Block
		rack   string
		labels string
	}{
		{sample(), "", `"roce-cni.io/pool": "gpu", "roce-cni.io/machine-id": "abc"`},
		{racked, `"rack": "r1",`, `"roce-cni.io/pool": "gpu", "roce-cni.io/machine-id": "abc", "roce-cni.io/rack": "r1"`},
	} {
		s := serve(t, railBlock("uid-1"))
		got, err := s.api(t).Blocks().Create(t.Context(), tt.b)
		want := sample()
		want.UID, want.ResourceVersion, want.Created = "uid-1", "42", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		if err != nil || got != want {
			t.Errorf("error %v, got %+v, want %+v", err, got, want)
		}
		r := s.requests()[0]
		if r.method != http.MethodPost || r.path != ours || r.kind != "application/json" {
			t.Errorf("asked %+v", r)
		}
		body := fmt.Sprintf(`{"apiVersion": "roce-cni.io/v1alpha1", "kind": "RailBlock", "metadata": {"name": %q, "labels": {%s}},
			"spec": {"pool": "gpu", %s "index": 3, "size": 16, "nodeName": "node-1", "machineID": "abc"}}`, tt.b.Name, tt.labels, tt.rack)
		if diff := cmp.Diff(decoded(t, body), decoded(t, r.body)); diff != "" {
			t.Errorf("(-want +sent)\n%s", diff)
		}
	}
}

func TestAWriteIsOfTheBlockWithThatUIDAlone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		write func(kube.Blocks) error
		more  []string
	}{
		"touch": {func(s kube.Blocks) error {
			got, err := s.Touch(t.Context(), "gpu-3", "uid-1")
			if got.ResourceVersion != "42" {
				t.Errorf("got %+v", got)
			}
			return err
		}, nil},
		"report": {
			func(s kube.Blocks) error {
				return s.Report(t.Context(), block.Block{Name: "gpu-3", UID: "uid-1"}, block.Usage{Size: 16, Used: 4, Free: 12})
			}, []string{
				`{"op": "add", "path": "/status/size", "value": 16}`, `{"op": "add", "path": "/status/used", "value": 4}`,
				`{"op": "add", "path": "/status/quarantined", "value": 0}`, `{"op": "add", "path": "/status/free", "value": 12}`,
			},
		},
	} {
		s := serve(t, railBlock("uid-1"))
		if err := tt.write(s.api(t).Blocks()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		r := s.requests()[0]
		if r.method != http.MethodPatch || r.path != ours+"/gpu-3/status" || r.kind != "application/json-patch+json" {
			t.Errorf("%s: asked %+v", name, r)
		}
		want := append([]string{
			`{"op": "test", "path": "/metadata/uid", "value": "uid-1"}`,
			`{"op": "add", "path": "/status/asserted", "value": "2026-01-02T12:00:00.345678Z"}`,
		}, tt.more...)
		if diff := cmp.Diff(decoded(t, "["+strings.Join(want, ",")+"]"), decoded(t, r.body)); diff != "" {
			t.Errorf("%s (-want +sent)\n%s", name, diff)
		}
	}
}

func TestARefusedClaimReadsTheOwnerOfTheBlock(t *testing.T) {
	t.Parallel()
	gone, invalid, forbidden, conflict := status(404, "NotFound"), status(422, "Invalid"), status(403, "Forbidden"), status(409, "Conflict")
	for name, tt := range map[string]struct {
		answers       []answer
		touch, remove func(error) bool
	}{
		"the test fails: another block":     {[]answer{invalid, railBlock("uid-2")}, is(block.ErrConflict), is(block.ErrConflict)},
		"a policy forbids: another's block": {[]answer{forbidden, railBlock("uid-2")}, is(block.ErrConflict), is(block.ErrConflict)},
		"a policy forbids our block":        {[]answer{forbidden, railBlock("uid-1")}, lasting(cnierr.NotAvailable, "ServiceAccount"), lasting(cnierr.NotAvailable, "ServiceAccount")},
		"the block is invalid":              {[]answer{invalid, railBlock("uid-1")}, lasting(cnierr.BadConfig, ""), lasting(cnierr.BadConfig, "")},
		"it is gone by then":                {[]answer{invalid, gone}, is(block.ErrNotFound), is(block.ErrNotFound)},
		"its owner is unknown":              {[]answer{forbidden, {cut: true}}, is(block.ErrUnknown), is(block.ErrUnknown)},
		"others write our block at once":    {[]answer{conflict, railBlock("uid-1")}, busy(0), is(block.ErrConflict)},
		"others have written, and have it":  {[]answer{conflict, railBlock("uid-2")}, is(block.ErrConflict), is(block.ErrConflict)},
		"it is gone, without a question":    {[]answer{gone}, is(block.ErrNotFound), is(block.ErrNotFound)},
		"no answer, and no question":        {[]answer{{cut: true}, railBlock("uid-2")}, is(block.ErrUnknown), is(block.ErrUnknown)},
	} {
		if _, err := serve(t, tt.answers...).api(t).Blocks().Touch(t.Context(), "gpu-3", "uid-1"); !tt.touch(err) {
			t.Errorf("%s: touch: %v", name, err)
		}
		if err := serve(t, tt.answers...).api(t).Blocks().Delete(t.Context(), "gpu-3", "uid-1", "42"); !tt.remove(err) {
			t.Errorf("%s: delete: %v", name, err)
		}
	}
}

func TestABlockIsDeletedAsItWasSeen(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: 200, body: `{"kind": "Status", "apiVersion": "v1", "status": "Success"}`})
	if err := s.api(t).Blocks().Delete(t.Context(), "gpu-3", "uid-1", "42"); err != nil {
		t.Fatal(err)
	}
	r := s.requests()[0]
	want := `{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "uid-1", "resourceVersion": "42"}}`
	if diff := cmp.Diff(decoded(t, want), decoded(t, r.body)); diff != "" || r.method != http.MethodDelete || r.path != ours+"/gpu-3" {
		t.Errorf("asked %+v (-want +sent)\n%s", r, diff)
	}
}

// page is one of a list of blocks.
func page(more, name string) answer {
	return answer{code: 200, body: fmt.Sprintf(`{"kind": "RailBlockList", "metadata": {"continue": %q}, "items": [{"metadata": {"name": %q}, "status": {"used": 7}}]}`, more, name)}
}

func TestAListIsAskedForAsFreshAsItMustBe(t *testing.T) {
	t.Parallel()
	label := "labelSelector=roce-cni.io%2F"
	for name, tt := range map[string]struct {
		q       block.Query
		answers []answer
		queries []string
		want    []string
	}{
		"cached":        {block.Query{Pool: "gpu", Freshness: block.Cached}, []answer{page("", "a")}, []string{label + "pool%3Dgpu&resourceVersion=0"}, []string{"a"}},
		"latest":        {block.Query{Pool: "gpu", Freshness: block.Latest}, []answer{page("", "a")}, []string{label + "pool%3Dgpu&limit=500"}, []string{"a"}},
		"of all pools":  {block.Query{Freshness: block.Latest}, []answer{page("", "a")}, []string{"limit=500"}, []string{"a"}},
		"of a machine":  {block.Query{Pool: "gpu", MachineID: "abc", Freshness: block.Cached}, []answer{page("", "a")}, []string{label + "machine-id%3Dabc%2Croce-cni.io%2Fpool%3Dgpu&resourceVersion=0"}, []string{"a"}},
		"of a rack":     {block.Query{Pool: "gpu", Rack: "r1", Freshness: block.Cached}, []answer{page("", "a")}, []string{label + "pool%3Dgpu%2Croce-cni.io%2Frack%3Dr1&resourceVersion=0"}, []string{"a"}},
		"of many pages": {block.Query{Freshness: block.Latest}, []answer{page("x", "a"), page("y", "b"), page("", "c")}, []string{"limit=500", "continue=x&limit=500", "continue=y&limit=500"}, []string{"a", "b", "c"}},
	} {
		s := serve(t, tt.answers...)
		var names, queries []string
		err := s.api(t).EachBlock(t.Context(), tt.q, func(b *kube.RailBlock) {
			names = append(names, b.Name)
			if b.Status.Used != 7 {
				t.Errorf("%s: %+v", name, b)
			}
		})
		for _, r := range s.requests() {
			queries = append(queries, r.query)
		}
		if diff := cmp.Diff([][]string{tt.want, tt.queries}, [][]string{names, queries}); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got)\n%s", name, err, diff)
		}
	}
}

func TestHalfAListIsNone(t *testing.T) {
	t.Parallel()
	want := sample()
	want.UID, want.ResourceVersion, want.Created = "uid-1", "42", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	whole := serve(t, answer{code: 200, body: `{"metadata": {}, "items": [` + railBlock("uid-1").body + `]}`})
	if got, err := whole.api(t).Blocks().List(t.Context(), block.Query{}); err != nil || !cmp.Equal(got, []block.Block{want}) {
		t.Errorf("a whole list: %+v, error %v", got, err)
	}
	s := serve(t, page("x", "a"), status(410, "Expired"))
	if got, err := s.api(t).Blocks().List(t.Context(), block.Query{Freshness: block.Latest}); !busy(0)(err) || got != nil {
		t.Errorf("%d blocks, error %v", len(got), err)
	}
}
