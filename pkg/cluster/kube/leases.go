// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// CreatedBy is the annotation of a RailLease with the node that has created it. A lease
// that an operator has created lacks it.
const CreatedBy = "roce-cni.io/created-by"

// RailLease is sticky.Lease as the API server stores it. It has no labels: lists
// filter by its fields, so they also find a RailLease that an operator has written.
type RailLease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec sticky.Spec `json:"spec"`
}

// Lease returns what package sticky knows of a RailLease.
func (l *RailLease) Lease() sticky.Lease {
	out := sticky.Lease{
		Name: l.Name, UID: string(l.UID), ResourceVersion: l.ResourceVersion,
		Created: l.CreationTimestamp.UTC(), Spec: l.Spec,
	}
	out.Spec.Written = l.Spec.Written.UTC()
	return out
}

// Leases accesses the RailLeases of a cluster. It is a sticky.Store.
type Leases struct{ api *API }

var _ sticky.Store = Leases{}

const leases = "railleases"

// Leases returns the RailLeases.
func (a *API) Leases() Leases { return Leases{a} }

// Create is sticky.Store's.
func (s Leases) Create(ctx context.Context, l sticky.Lease) (sticky.Lease, error) {
	out := RailLease{
		TypeMeta:   metav1.TypeMeta{APIVersion: Version().String(), Kind: "RailLease"},
		ObjectMeta: metav1.ObjectMeta{Name: l.Name}, Spec: l.Spec,
	}
	if node := l.Spec.Holder.NodeName; node != "" {
		out.Annotations = map[string]string{CreatedBy: node}
	}
	body, err := json.Marshal(out)
	if err != nil {
		return sticky.Lease{}, cnierr.New(cnierr.Bug, "create lease", l.Name, "", "%w", err)
	}
	return s.one(ctx, s.api.ours.Post().Resource(leases).SetHeader("Content-Type", asJSON).Body(body), "create lease "+l.Name)
}

// Get is sticky.Store's.
func (s Leases) Get(ctx context.Context, name string) (sticky.Lease, error) {
	return s.one(ctx, s.api.ours.Get().Resource(leases).Name(name), "read lease "+name)
}

// one sends a request that is answered with a lease.
func (s Leases) one(ctx context.Context, r *rest.Request, what string) (sticky.Lease, error) {
	var out RailLease
	if err := s.api.do(ctx, r, what, &out); err != nil {
		return sticky.Lease{}, err
	}
	return out.Lease(), nil
}

// List is sticky.Store's.
func (s Leases) List(ctx context.Context, q sticky.Query) (out []sticky.Lease, err error) {
	err = s.Each(ctx, q, func(l *RailLease) { out = append(out, l.Lease()) })
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
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]string{"uid": l.UID, "resourceVersion": l.ResourceVersion},
		"spec":     spec,
	})
	if err != nil {
		return sticky.Lease{}, cnierr.New(cnierr.Bug, "write lease", l.Name, "", "%w", err)
	}
	out, err := s.one(ctx, s.api.ours.Patch(types.MergePatchType).Resource(leases).Name(l.Name).Body(body), "write lease "+l.Name)
	return out, s.unless(ctx, l.Name, l.UID, l.ResourceVersion, err)
}

// Delete is sticky.Store's.
func (s Leases) Delete(ctx context.Context, name, uid, resourceVersion string) error {
	err := s.api.remove(ctx, leases, name, uid, resourceVersion, "delete lease "+name)
	return s.unless(ctx, name, uid, resourceVersion, err)
}

// unless finds out why the API server has refused a request about a lease. It first
// checks whether the lease has changed, because a policy may refuse the request
// before the API server compares versions.
func (s Leases) unless(ctx context.Context, name, uid, resourceVersion string, err error) error {
	if !errors.As(err, new(*cnierr.Error)) {
		return err
	}
	there, look := s.Get(ctx, name)
	switch {
	case look != nil:
		return look
	case there.UID != uid || there.ResourceVersion != resourceVersion:
		return block.ErrConflict
	}
	return err
}
