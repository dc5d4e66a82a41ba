// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
)

// An agent writes Events of what was healed, in the name of its own node, and no others.
func TestAnAgentTellsWhatWasHealed(t *testing.T) {
	t.Parallel()
	g := guard(t, "healed")
	ctx := t.Context()
	healed := calls.Call{At: time.Now(), Verb: calls.Heal, Pod: "default/healed-pod", UID: "healed-uid", Steps: []calls.Step{{Name: "route"}}}
	must(t, api(t, g.a).TellHealed(ctx, "healed-a", healed))
	must(t, api(t, g.a).TellHealed(ctx, "healed-a", calls.Call{At: time.Now(), Verb: calls.Heal, Code: 102, Error: "r0 is gone"}))
	must(t, api(t, g.a).TellHealed(ctx, "healed-a", calls.Call{At: time.Now(), Verb: calls.Alarm, Pod: "default/healed-pod", UID: "foreign-uid", Error: "process 5 uses index 3"}))
	events := client(t, g.Admin()).CoreV1().Events("default")
	for field, want := range map[string]string{"involvedObject.uid=healed-uid": "RailsHealed", "involvedObject.uid=healed-a": "RailsNotHealed", "involvedObject.uid=foreign-uid": "ForeignGID"} {
		got, err := events.List(ctx, meta.ListOptions{FieldSelector: field})
		must(t, err)
		if len(got.Items) != 1 || got.Items[0].Reason != want {
			t.Errorf("%s: got %+v, want one Event %s", field, got.Items, want)
		}
	}
	if err := api(t, g.a).TellHealed(ctx, "healed-b", healed); !apierrors.IsForbidden(err) {
		t.Errorf("an Event in the name of another node: %v", err)
	}
	if err := api(t, g.nowhere).TellHealed(ctx, "healed-a", healed); !apierrors.IsForbidden(err) {
		t.Errorf("an Event of an agent on no node: %v", err)
	}
	_, err := client(t, g.a).CoreV1().Events("default").Create(ctx, &core.Event{
		ObjectMeta: meta.ObjectMeta{GenerateName: "other-"}, InvolvedObject: core.ObjectReference{Kind: "Pod", Name: "healed-pod", Namespace: "default"},
		Reason: "Killing", Source: core.EventSource{Component: "kubelet", Host: "healed-a"},
	}, meta.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("an Event in the name of kubelet: %v", err)
	}
}
