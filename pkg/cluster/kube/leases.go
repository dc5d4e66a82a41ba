// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"context"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// CreatedBy is the annotation of a RailLease with the node that has created it. A lease
// that an operator has created lacks it.
const CreatedBy = "roce-cni.io/created-by"

// Leases accesses the RailLeases of a cluster. It is a sticky.Store.
type Leases struct {
	objects[sticky.Spec, struct{}]
}

var _ sticky.Store = Leases{}

const leases = "railleases"

// Leases returns the RailLeases.
func (a *API) Leases() Leases {
	return Leases{objects[sticky.Spec, struct{}]{a, "RailLease", leases, "lease", func(s sticky.Spec) (meta metav1.ObjectMeta) {
		if node := s.Holder.NodeName; node != "" {
			meta.Annotations = map[string]string{CreatedBy: node}
		}
		return meta
	}}}
}

// List is sticky.Store's.
func (s Leases) List(ctx context.Context, q sticky.Query) (out []sticky.Lease, err error) {
	err = s.Each(ctx, q, func(l *RailLease) { out = append(out, l.Object()) })
	return out, err
}

// Each calls see for each lease of a List, and keeps none of them. The errors are those
// of List.
func (s Leases) Each(ctx context.Context, q sticky.Query, see func(*RailLease)) error {
	var terms []fields.Selector
	for _, f := range []struct{ path, value string }{
		{"spec.pool", q.Pool},
		{"spec.rack", q.Rack},
		{"spec.namespace", q.Key.Namespace},
		{"spec.pod", q.Key.Pod},
		{"spec.interface", q.Key.Interface},
		{"spec.holder.nodeName", q.Node},
	} {
		if f.value != "" {
			terms = append(terms, fields.OneTermEqualSelector(f.path, f.value))
		}
	}
	params := url.Values{}
	if len(terms) > 0 {
		params.Set("fieldSelector", fields.AndSelectors(terms...).String())
	}
	return each(ctx, s.api, s.api.ours, leases, params, block.Latest, see)
}

// Update is sticky.Store's. The UID and the resourceVersion in a merge patch make it
// fail when the object has others (rest.BeforeUpdate and store.Update of
// k8s.io/apiserver): another version fails with 409. Only another UID, which needs a
// restored etcd, fails with 422.
func (s Leases) Update(ctx context.Context, l sticky.Lease) (sticky.Lease, error) {
	spec := map[string]any{"holder": nil, "written": l.Spec.Written.UTC().Format(time.RFC3339Nano)}
	if l.Spec.Holder != (block.Owner{}) {
		spec["holder"] = l.Spec.Holder
	}
	out, err := s.one(ctx, s.api.ours.Patch(types.MergePatchType).Resource(leases).Name(l.Name), "write lease "+l.Name, map[string]any{
		"metadata": map[string]string{"uid": l.UID, "resourceVersion": l.ResourceVersion},
		"spec":     spec,
	})
	return out, s.unless(ctx, l.Name, l.UID, l.ResourceVersion, err)
}
