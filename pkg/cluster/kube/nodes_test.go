// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

func TestANodeIsItsLabelsAndItsMachine(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: 200, body: `{"kind": "Node", "metadata": {"name": "gpu-1", "uid": "u", "labels": {"rack": "7"}}, "spec": {"taints": [{"key": "other"}, {"key": "roce-cni.io/rail-not-ready"}]},
		"status": {"nodeInfo": {"machineID": "abc"}, "images": [], "conditions": [{"type": "Ready", "status": "True"}, {"type": "RoceRailsReady", "status": "False", "reason": "r", "message": "m"}]}}`}, status(404, "NotFound"))
	nodes := s.api(t)
	got, err := nodes.Node(t.Context(), "gpu-1")
	want := kube.Node{
		Name: "gpu-1", UID: "u", Labels: map[string]string{"rack": "7"}, MachineID: "abc", Ready: true, Tainted: true,
		Rails: fleet.Condition{Status: "False", Reason: "r", Message: "m"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got)\n%s", err, diff)
	}
	if _, err := nodes.Machine(t.Context(), "gpu-2"); !is(block.ErrNotFound)(err) {
		t.Errorf("a node that is not there: %v", err)
	}
	if got, err := serve(t, answer{code: 200, body: `{"metadata": {"uid": "u"}, "status": {"nodeInfo": {"machineID": "abc"}}}`}).api(t).Machine(t.Context(), "gpu-1"); got != "abc" || err != nil {
		t.Errorf("its machine is %q, %v", got, err)
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
	got, err := s.api(t).Nodes(t.Context())
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
	nodes := s.api(t)
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
	nodes := s.api(t)
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
	s := serve(t, answer{code: 200, body: `{"items": [{"metadata": {"name": "db.x-0"}}]}`}, answer{code: 200, body: `{"items": []}`}, status(403, "Forbidden"))
	nodes := s.api(t)
	for _, name := range [][2]string{{"../nodes", "db-0"}, {"a/b", "db-0"}, {"", "db-0"}, {"team%2fb", "db-0"}, {"team", "../x"}, {"team", ""}, {"team", "db-0,spec.nodeName!=x"}, {"team", "DB"}, {"team", "a\x1b[2J"}} {
		if got, err := nodes.Runs(t.Context(), name[0], name[1], "gpu-1"); got || err != nil {
			t.Errorf("%q: %t, error %v", name, got, err)
		}
	}
	for _, want := range []bool{true, false} {
		if got, err := nodes.Runs(t.Context(), "team-b", "db.x-0", "gpu-1"); err != nil || got != want {
			t.Errorf("runs %t, error %v, want %t", got, err, want)
		}
	}
	if _, err := nodes.Runs(t.Context(), "team-b", "db.x-0", "gpu-1"); err == nil {
		t.Error("no error without the right to look")
	}
	asked := s.requests()
	if len(asked) != 3 || asked[0].path != "/api/v1/namespaces/team-b/pods" || asked[0].query != "fieldSelector=metadata.name%3Ddb.x-0%2Cspec.nodeName%3Dgpu-1&limit=1" {
		t.Errorf("asked %+v", asked)
	}
}

// TestAReportIsWrittenOrMade: the RailNode is made with the Node as its owner, so that it goes
// with the Node.
func TestAReportIsWrittenOrMade(t *testing.T) {
	t.Parallel()
	report := fleet.Report{Rails: []fleet.Rail{{Rail: 0, Netdev: "ens1", State: "ACTIVE"}, {Rail: 1, Netdev: "ens2", State: "DOWN"}, {Rail: 2, Netdev: "ens3", State: "ACTIVE"}}}
	const sent = `{"asserted": "2026-01-02T12:00:00.345678Z", "interfaces": "ens1,ens2,ens3", "state": "ACTIVE,DOWN", "rails": [
		{"rail": 0, "netdev": "ens1", "state": "ACTIVE"}, {"rail": 1, "netdev": "ens2", "state": "DOWN"}, {"rail": 2, "netdev": "ens3", "state": "ACTIVE"}]}`
	there := answer{code: 200, body: `{}`}
	owner := answer{code: 200, body: `{"metadata": {"name": "gpu-1", "uid": "u"}}`}
	const made = `{"apiVersion": "roce-cni.io/v1alpha1", "kind": "RailNode", "metadata": {"name": "gpu-1",
		"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "u"}]}, "status": ` + sent + `}`
	const one, all = "/apis/roce-cni.io/v1alpha1/railnodes/gpu-1", "/apis/roce-cni.io/v1alpha1/railnodes"
	for name, tt := range map[string]struct {
		answers []answer
		want    []string // method and path
		body    string   // of the last one
		err     error
	}{
		"it is there": {[]answer{there}, []string{"PATCH " + one}, `{"status": ` + sent + `}`, nil},
		"it is made":  {[]answer{status(404, "NotFound"), owner, there}, []string{"PATCH " + one, "GET /api/v1/nodes/gpu-1", "POST " + all}, made, nil},
		"no Node":     {[]answer{status(404, "NotFound"), status(404, "NotFound")}, []string{"PATCH " + one, "GET /api/v1/nodes/gpu-1"}, "", block.ErrNotFound},
		"no answer":   {[]answer{status(500, "InternalError")}, []string{"PATCH " + one}, "", block.ErrUnknown},
	} {
		s := serve(t, tt.answers...)
		if err := s.api(t).Publish(t.Context(), "gpu-1", report); !errors.Is(err, tt.err) {
			t.Errorf("%s: %v", name, err)
		}
		var asked []string
		var last request
		for _, last = range s.requests() {
			asked = append(asked, last.method+" "+last.path)
		}
		if diff := cmp.Diff(tt.want, asked); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		if tt.body == "" {
			continue
		}
		if diff := cmp.Diff(decoded(t, tt.body), decoded(t, last.body)); diff != "" {
			t.Errorf("%s (-want +sent)\n%s", name, diff)
		}
	}
}

// TestRailsOfANodeAreOneConditionAndOneTaint has a Node with conditions and taints of others.
func TestRailsOfANodeAreOneConditionAndOneTaint(t *testing.T) {
	t.Parallel()
	it := func(rails, taints string) answer {
		return answer{code: 200, body: `{"metadata": {"name": "gpu-1", "uid": "u", "resourceVersion": "7"}, "spec": {"taints": [` + taints + `]}, "status": {"conditions": [{"type": "Ready", "status": "True"}` + rails + `]}}`}
	}
	const other, ours = `{"key": "nvidia.com/gpu", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5}`, `{"key": "roce-cni.io/rail-not-ready", "effect": "NoSchedule"}`
	const said = `, {"type": "RoceRailsReady", "status": "False", "reason": "RailsNotReady", "message": "rail 1 (ens2): Down"}`
	down := fleet.Condition{Status: "False", Reason: "RailsNotReady", Message: "rail 1 (ens2): Down"}
	both := down
	both.Reason, both.Message = "Both", "rail 0 (ens1): Down; rail 1 (ens2): Down"
	for name, tt := range map[string]struct {
		now   answer
		want  fleet.Condition
		taint bool
		asks  []string // after the Node was read
	}{
		"it is so already": {now: it(said, ours), want: down, taint: true},
		"a condition": {now: it("", other), want: down, asks: []string{
			`PATCH /api/v1/nodes/gpu-1/status application/strategic-merge-patch+json {"status":{"conditions":[{"lastHeartbeatTime":"2026-01-02T12:00:00Z","lastTransitionTime":"2026-01-02T12:00:00Z","message":"rail 1 (ens2): Down","reason":"RailsNotReady","status":"False","type":"RoceRailsReady"}]}}`,
		}},
		"another message": {now: it(said, ours), want: both, taint: true, asks: []string{
			`PATCH /api/v1/nodes/gpu-1/status application/strategic-merge-patch+json {"status":{"conditions":[{"lastHeartbeatTime":"2026-01-02T12:00:00Z","message":"rail 0 (ens1): Down; rail 1 (ens2): Down","reason":"Both","status":"False","type":"RoceRailsReady"}]}}`,
		}},
		"a taint": {now: it(said, other), want: down, taint: true, asks: []string{
			`PATCH /api/v1/nodes/gpu-1 application/merge-patch+json {"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"taints":[{"key":"nvidia.com/gpu","value":"v","effect":"NoExecute"},{"key":"roce-cni.io/rail-not-ready","effect":"NoSchedule"}]}}`,
		}},
		"no taint": {now: it(said, other+", "+ours), want: down, asks: []string{
			`PATCH /api/v1/nodes/gpu-1 application/merge-patch+json {"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"taints":[{"key":"nvidia.com/gpu","value":"v","effect":"NoExecute"}]}}`,
		}},
	} {
		s := serve(t, tt.now)
		if err := s.api(t).SetRails(t.Context(), "gpu-1", tt.want, tt.taint); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var asks []string
		for _, r := range s.requests()[1:] {
			asks = append(asks, r.method+" "+r.path+" "+r.kind+" "+r.body)
		}
		if diff := cmp.Diff(tt.asks, asks); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	// A taint of another program goes after the Node was read.
	s := serve(t, it("", other), answer{code: 200, body: `{"metadata": {"uid": "u", "resourceVersion": "8"}, "spec": {}}`})
	if err := s.api(t).SetRails(t.Context(), "gpu-1", down, true); err != nil {
		t.Error(err)
	}
	if last := s.requests()[2]; strings.Contains(last.body, "nvidia.com") || !strings.Contains(last.body, `"8"`) {
		t.Errorf("a taint that has gone is written again: %s", last.body)
	}
	for want, answers := range map[int][]answer{1: {status(500, "InternalError")}, 2: {it("", other), status(500, "InternalError")}} {
		s := serve(t, answers...)
		if err := s.api(t).SetRails(t.Context(), "gpu-1", down, true); !is(block.ErrUnknown)(err) || len(s.requests()) != want {
			t.Errorf("without an answer to request %d: %v, sent %+v", want, err, s.requests())
		}
	}
	s = serve(t, it(said, ours), status(409, "Conflict"))
	if err := s.api(t).SetRails(t.Context(), "gpu-1", down, false); !is(block.ErrConflict)(err) {
		t.Errorf("of a Node that has changed: %v", err)
	}
	s = serve(t, it(said, ours), status(403, "Forbidden"))
	if err := s.api(t).SetRails(t.Context(), "gpu-1", down, false); cnierr.CodeOf(err) != cnierr.NotAvailable || !strings.Contains(cnierr.CNI("", err).Details, "kubectl taint nodes gpu-1 roce-cni.io/rail-not-ready-") {
		t.Errorf("without the right: %v", err)
	}
}
