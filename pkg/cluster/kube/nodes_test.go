// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

func TestANodeIsItsLabelsAndItsMachine(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: 200, body: `{"kind": "Node", "metadata": {"name": "gpu-1", "labels": {"rack": "7"}}, "status": {"nodeInfo": {"machineID": "abc"}, "images": []}}`}, status(404, "NotFound"))
	nodes := s.api(t).Nodes()
	got, err := nodes.Node(t.Context(), "gpu-1")
	want := kube.Node{Name: "gpu-1", Labels: map[string]string{"rack": "7"}, MachineID: "abc"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got)\n%s", err, diff)
	}
	if _, err := nodes.Machine(t.Context(), "gpu-2"); !is(block.ErrNotFound)(err) {
		t.Errorf("a node that is not there: %v", err)
	}
	if asked := s.requests(); asked[0].path != "/api/v1/nodes/gpu-1" || asked[0].query != "" { // of etcd, not of a cache
		t.Errorf("asked %+v", asked)
	}
}

func TestAllNodesAreOfOneMoment(t *testing.T) {
	t.Parallel()
	s := serve(t,
		answer{code: 200, body: `{"metadata": {"continue": "x"}, "items": [{"metadata": {"name": "a"}}]}`},
		answer{code: 200, body: `{"metadata": {}, "items": [{"metadata": {"name": "b"}, "status": {"nodeInfo": {"machineID": "2"}, "conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}]}}]}`})
	got, err := s.api(t).Nodes().All(t.Context())
	if diff := cmp.Diff([]kube.Node{{Name: "a"}, {Name: "b", MachineID: "2", Ready: true}}, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got)\n%s", err, diff)
	}
	if asked := s.requests(); len(asked) != 2 || asked[1].query != "continue=x&limit=500" {
		t.Errorf("asked %+v", asked)
	}
}

func TestAPodInAnyPhaseIsBound(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: 200, body: `{"items": [{"status": {"phase": "Failed"}}]}`}, answer{code: 200, body: `{"items": []}`}, status(403, "Forbidden"))
	nodes := s.api(t).Nodes()
	for _, want := range []bool{true, false} {
		if got, err := nodes.Bound(t.Context(), "gpu-1"); err != nil || got != want {
			t.Errorf("bound %t, error %v, want %t", got, err, want)
		}
	}
	if _, err := nodes.Bound(t.Context(), "gpu-1"); err == nil {
		t.Error("a reader without rights knows that there is no pod")
	}
	if r := s.requests()[0]; r.path != "/api/v1/pods" || r.query != "fieldSelector=spec.nodeName%3Dgpu-1&limit=1" {
		t.Errorf("asked %+v", r)
	}
}

func TestANodeIsReadyIfItsConditionSaysSo(t *testing.T) {
	t.Parallel()
	with := func(conditions string) answer {
		return answer{code: 200, body: `{"metadata": {"name": "gpu-1"}, "status": {"conditions": [` + conditions + `]}}`}
	}
	s := serve(t, with(`{"type": "Ready", "status": "True"}`), with(`{"type": "Ready", "status": "Unknown"}`), with(`{"type": "Other", "status": "True"}`), status(404, "NotFound"), status(403, "Forbidden"))
	nodes := s.api(t).Nodes()
	for i, want := range []bool{true, false, false, false} {
		if got, err := nodes.Ready(t.Context(), "gpu-1"); err != nil || got != want {
			t.Errorf("%d: ready %t, error %v, want %t", i, got, err, want)
		}
	}
	if _, err := nodes.Ready(t.Context(), "gpu-1"); err == nil {
		t.Error("no error without the right to look")
	}
}

// TestOneQuestionIsAskedAboutAPod: names that no pod can have, which an agent may have
// written into a RailLease, cause neither a request nor an error.
func TestOneQuestionIsAskedAboutAPod(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: 200, body: `{"items": [{"metadata": {"name": "db-0"}}]}`}, answer{code: 200, body: `{"items": []}`}, status(403, "Forbidden"))
	nodes := s.api(t).Nodes()
	for _, name := range [][2]string{{"../nodes", "db-0"}, {"a/b", "db-0"}, {"", "db-0"}, {"team%2fb", "db-0"}, {"team", "../x"}, {"team", ""}, {"team", "db-0,spec.nodeName!=x"}, {"team", "DB"}, {"team", "a\x1b[2J"}} {
		if got, err := nodes.Runs(t.Context(), name[0], name[1], "gpu-1"); got || err != nil {
			t.Errorf("%q: %t, error %v", name, got, err)
		}
	}
	for _, want := range []bool{true, false} {
		if got, err := nodes.Runs(t.Context(), "team-b", "db-0", "gpu-1"); err != nil || got != want {
			t.Errorf("runs %t, error %v, want %t", got, err, want)
		}
	}
	if _, err := nodes.Runs(t.Context(), "team-b", "db-0", "gpu-1"); err == nil {
		t.Error("no error without the right to look")
	}
	asked := s.requests()
	if len(asked) != 3 || asked[0].path != "/api/v1/namespaces/team-b/pods" || asked[0].query != "fieldSelector=metadata.name%3Ddb-0%2Cspec.nodeName%3Dgpu-1&limit=1" {
		t.Errorf("asked %+v", asked)
	}
}
