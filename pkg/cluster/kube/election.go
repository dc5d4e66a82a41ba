// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"context"

	coordination "k8s.io/api/coordination/v1"

	"github.com/roce-cni/roce-cni/pkg/cluster/elect"
)

// Election is a Lease of the coordination API, which elects a leader. It is an elect.Lease.
type Election struct {
	api             *API
	namespace, name string
}

var _ elect.Lease = Election{}

// Election returns the Lease of that name.
func (a *API) Election(namespace, name string) Election { return Election{a, namespace, name} }

// path has the names after that of the kind, if there are any.
func (s Election) path(name ...string) []string {
	return append([]string{"apis", coordination.SchemeGroupVersion.Group, coordination.SchemeGroupVersion.Version, "namespaces", s.namespace, "leases"}, name...)
}

// Get is elect.Lease's.
func (s Election) Get(ctx context.Context) (*coordination.Lease, error) {
	var out coordination.Lease
	err := s.api.do(ctx, s.api.core.Get().AbsPath(s.path(s.name)...), "read lease "+s.namespace+"/"+s.name, &out)
	return &out, err
}

// Put is elect.Lease's.
func (s Election) Put(ctx context.Context, l *coordination.Lease) error {
	what := "write lease " + s.namespace + "/" + s.name
	l.APIVersion, l.Kind, l.Namespace, l.Name = coordination.SchemeGroupVersion.String(), "Lease", s.namespace, s.name
	request := s.api.core.Put().AbsPath(s.path(s.name)...)
	if l.ResourceVersion == "" {
		request = s.api.core.Post().AbsPath(s.path()...)
	}
	return s.api.send(ctx, request.SetHeader("Content-Type", asJSON), what, l, nil)
}
