// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"context"
	"errors"
	"net/netip"

	networking "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

const serviceCIDRs = "servicecidrs"

// WatchServices is for an informer. The objects are *networking.ServiceCIDR, which Kubernetes has
// from 1.33 on.
func (a *API) WatchServices() *cache.ListWatch {
	return cache.NewListWatchFromClient(a.networking, serviceCIDRs, "", fields.Everything())
}

// ServiceCIDRs returns the CIDRs of an object of WatchServices. An object that is being deleted
// counts: its Services have their ClusterIPs until it is gone. CIDRs that cannot contain
// ClusterIPs are left out, and the error names them.
func ServiceCIDRs(object any) ([]netip.Prefix, error) {
	o, ok := object.(*networking.ServiceCIDR)
	if !ok {
		return nil, cnierr.New(cnierr.Bug, "read ServiceCIDR", "", "", "it is a %T", object)
	}
	var out []netip.Prefix
	var faults []error
	for _, text := range o.Spec.CIDRs {
		p, err := netip.ParsePrefix(text)
		if p = p.Masked(); err != nil || !conf.Service(p) {
			faults = append(faults, cnierr.New(cnierr.BadConfig, "read ServiceCIDR", o.Name, "kubectl get servicecidrs", "%q is no range of ClusterIPs", text))
			continue
		}
		out = append(out, p)
	}
	return out, errors.Join(faults...)
}

// ServiceFault says what an error of WatchServices or ServesCIDRs means.
func ServiceFault(err error) error {
	const what = "read ServiceCIDRs"
	switch {
	case apierrors.IsNotFound(err):
		return cnierr.New(cnierr.NotAvailable, what, "", "start the agent with --service-cluster-ip-range, and the value of this flag of kube-apiserver",
			"the API server has no ServiceCIDRs, as before Kubernetes 1.33: %w", err)
	case apierrors.IsForbidden(err):
		return cnierr.New(cnierr.NotAvailable, what, "", "give the ServiceAccount the rights that conf-examples/deploy/rbac.yaml lists", "%w", err)
	}
	return Classify(what, err)
}

// ServesCIDRs returns nil if the API server lists ServiceCIDRs. The error is that of ServiceFault.
func (a *API) ServesCIDRs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.deadline)
	defer cancel()
	if err := a.networking.Get().Resource(serviceCIDRs).Param("limit", "1").MaxRetries(0).Do(ctx).Error(); err != nil {
		return ServiceFault(err)
	}
	return nil
}
