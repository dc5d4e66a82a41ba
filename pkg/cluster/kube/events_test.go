// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// kubectl describe finds the events of an object by its UID, too.
func TestEventsOfTheHealer(t *testing.T) {
	t.Parallel()
	net1 := conf.Attachment{IfName: "net1"}
	steps := []calls.Step{{Name: "route"}, {Name: "route"}, {Name: "rule"}}
	for want, c := range map[string]calls.Call{
		"Pod ml/job of u1 in ml: Normal RailsHealed interface net1: made again: route, rule": {Verb: calls.Heal, Attachment: net1, Pod: "ml/job", UID: "u1", Steps: steps},
		"Pod ml/job of u1 in ml: Warning RailsNotHealed net1 is gone":                        {Verb: calls.Heal, Attachment: net1, Pod: "ml/job", UID: "u1", Code: 102, Error: "net1 is gone"},
		"Node /gpu-00 of gpu-00 in default: Warning RailsNotHealed r0 is gone":               {Verb: calls.Heal, Code: 102, Error: "r0 is gone"},
		"Pod ml/job of u1 in ml: Warning ForeignGID process 5 uses index 3":                  {Verb: calls.Alarm, Attachment: net1, Pod: "ml/job", UID: "u1", Error: "process 5 uses index 3"},
	} {
		if got := line(event("gpu-00", c)); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestAnEventNamesTheNode: policy.yaml requires it.
func TestAnEventNamesTheNode(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	want := core.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "roce-heal-", Namespace: "ml"},
		InvolvedObject: core.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "ml", Name: "job", UID: "u1"},
		Reason:         "RailsNotHealed", Message: "net1 is gone", Type: "Warning", Count: 1, FirstTimestamp: metav1.NewTime(at), LastTimestamp: metav1.NewTime(at),
		Source: core.EventSource{Component: "roce-cni", Host: "gpu-00"}, ReportingController: "roce-cni", ReportingInstance: "gpu-00",
	}
	got := event("gpu-00", calls.Call{At: at, Verb: calls.Heal, Pod: "ml/job", UID: "u1", Code: 102, Error: "net1 is gone"})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func line(e core.Event) string {
	return e.InvolvedObject.Kind + " " + e.InvolvedObject.Namespace + "/" + e.InvolvedObject.Name + " of " + string(e.InvolvedObject.UID) + " in " + e.Namespace + ": " + e.Type + " " + e.Reason + " " + e.Message
}
