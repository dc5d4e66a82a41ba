// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"context"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
)

// TellHealed writes an Event of a pod, or of the node if no pod is named. policy.yaml requires
// that it names the node.
func (a *API) TellHealed(ctx context.Context, node string, h fleet.Healed) error {
	about := core.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: h.Namespace, Name: h.Pod, UID: types.UID(h.UID)}
	if h.Pod == "" { // as kubelet does
		about = core.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
	}
	e := core.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "roce-heal-", Namespace: h.Namespace},
		InvolvedObject: about, Reason: "RailsHealed", Message: h.Message, Type: core.EventTypeNormal, Count: 1,
		FirstTimestamp: metav1.NewTime(h.At), LastTimestamp: metav1.NewTime(h.At),
		Source: core.EventSource{Component: "roce-cni", Host: node}, ReportingController: "roce-cni", ReportingInstance: node,
	}
	switch {
	case h.Failed:
		e.Reason, e.Type = "RailsNotHealed", core.EventTypeWarning
	case h.Alarm:
		e.Reason, e.Type = "ForeignGID", core.EventTypeWarning
	}
	if e.Namespace == "" {
		e.Namespace = metav1.NamespaceDefault
	}
	request := a.core.Post().Namespace(e.Namespace).Resource("events").SetHeader("Content-Type", asJSON)
	return a.send(ctx, request, "write an Event of "+about.Kind+" "+about.Name, e, nil)
}
