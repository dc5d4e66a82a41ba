// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
)

// TellHealed writes an Event of a pod, or of the node if no pod is named. policy.yaml requires
// that it names the node.
func (a *API) TellHealed(ctx context.Context, node string, c calls.Call) error {
	e := event(node, c)
	request := a.core.Post().Namespace(e.Namespace).Resource("events").SetHeader("Content-Type", asJSON)
	return a.send(ctx, request, "write an Event of "+e.InvolvedObject.Kind+" "+e.InvolvedObject.Name, e, nil)
}

func event(node string, c calls.Call) core.Event {
	namespace, pod, _ := strings.Cut(c.Pod, "/")
	about := core.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: pod, UID: types.UID(c.UID)}
	if pod == "" { // as kubelet does
		about = core.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}
	}
	e := core.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "roce-heal-", Namespace: cmp.Or(namespace, metav1.NamespaceDefault)},
		InvolvedObject: about, Reason: "RailsHealed", Message: c.Error, Type: core.EventTypeNormal, Count: 1,
		FirstTimestamp: metav1.NewTime(c.At), LastTimestamp: metav1.NewTime(c.At),
		Source: core.EventSource{Component: "roce-cni", Host: node}, ReportingController: "roce-cni", ReportingInstance: node,
	}
	switch {
	case c.Code != 0:
		e.Reason, e.Type = "RailsNotHealed", core.EventTypeWarning
	case c.Verb == calls.Alarm:
		e.Reason, e.Type = "ForeignGID", core.EventTypeWarning
	default:
		e.Message = fmt.Sprintf("interface %s: made again: %s", c.IfName, strings.Join(c.Made(), ", "))
	}
	return e
}
