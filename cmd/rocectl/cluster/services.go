// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	networking "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// ServiceRange is the flag of kube-apiserver with the CIDRs of the cluster's Services, and
// our flag of the same name for clusters without ServiceCIDRs.
const ServiceRange = "service-cluster-ip-range"

// ServiceCIDRs reads the value of the flag. The error is BadConfig.
func ServiceCIDRs(value string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for text := range strings.SplitSeq(value, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || !conf.Service(p) {
			return nil, cnierr.New(cnierr.BadConfig, "read flag", "--"+ServiceRange, "give it the value of this flag of kube-apiserver, such as 10.96.0.0/12,fd00:96::/108", "%q is no CIDR of Services", text)
		}
		out = append(out, p)
	}
	return out, nil
}

// watchServices returns agent.Config's Services. CIDRs that are given by hand never change.
func (f agentFlags) watchServices(w serviceWatcher) (watch func(context.Context, func([]netip.Prefix, error)), err error) {
	if f.services == "" {
		return w.watch, nil
	}
	cidrs, err := ServiceCIDRs(f.services)
	return func(_ context.Context, see func([]netip.Prefix, error)) { see(cidrs, nil) }, err
}

// serviceWatcher watches the ServiceCIDRs.
type serviceWatcher struct {
	services kube.Services
	log      *slog.Logger
}

// watch is agent.Config's Services. Once the CIDRs are known, an error of the watch is
// logged, and the CIDRs stay.
func (w serviceWatcher) watch(ctx context.Context, see func([]netip.Prefix, error)) {
	if w.served(ctx, see) != nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default: // it is due already
		}
	}
	says := &once{log: w.log, what: "the ServiceCIDRs cannot be watched: the last known state is used"}
	objects := cache.NewSharedInformer(w.services.Watch(), &networking.ServiceCIDR{}, 0)
	err := objects.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { says.note(w.services.Fault(err)) })
	if err == nil {
		_, err = objects.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { notify() }, UpdateFunc: func(_, _ any) { notify() }, DeleteFunc: func(any) { notify() },
		})
	}
	if err != nil { // the informer runs already, which it does not
		see(nil, err)
		return
	}
	all.Go(func() { objects.RunWithContext(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		for !objects.HasSynced() {
			if plugin.Wait(ctx, listedEvery) != nil {
				return
			}
		}
		says.note(nil)
		see(w.cidrs(objects.GetStore()), nil)
	}
}

// served waits until the API server lists ServiceCIDRs. It asks an API server that has
// none, or refuses, as seldom as for the Node object: all nodes do it.
func (w serviceWatcher) served(ctx context.Context, see func([]netip.Prefix, error)) error {
	for wait := time.Second; ; wait = min(2*wait, firstLongest) {
		err := w.services.Served(ctx)
		if err == nil {
			return nil
		}
		see(nil, err)
		if cnierr.CodeOf(err) == cnierr.NotAvailable {
			wait = nodeEvery
		}
		if err := plugin.Wait(ctx, spread(wait)); err != nil {
			return err
		}
	}
}

// cidrs returns the CIDRs of all objects.
func (w serviceWatcher) cidrs(objects cache.Store) []netip.Prefix {
	var out []netip.Prefix
	for _, object := range objects.List() {
		cidrs, err := kube.ServiceCIDRs(object)
		if err != nil {
			w.log.Warn("a CIDR of Services is left out", "error", err)
		}
		for _, p := range cidrs {
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}
