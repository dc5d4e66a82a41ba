// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// services keeps the file with the CIDRs of the cluster's Services, which networks with
// hostLink.routes "auto" need.
type services struct {
	mu      sync.Mutex
	cidrs   []netip.Prefix // nil: not known yet; a file stays as it is
	unknown string         // why they are not known, or may be old; "" if they are known
	trouble string         // why the file cannot be written, "" if it can
}

// keepServices follows the CIDRs until the context ends.
func (a *Agent) keepServices(ctx context.Context) {
	a.Services(ctx, func(cidrs []netip.Prefix, err error) {
		k := &a.services
		k.mu.Lock()
		k.unknown = ""
		switch {
		case err != nil:
			k.unknown = Line(err)
		case len(cidrs) == 0:
			k.unknown = "the API server has none (kubectl get servicecidrs)"
		default:
			k.cidrs = slices.SortedFunc(slices.Values(cidrs), netip.Prefix.Compare)
		}
		k.mu.Unlock()
		a.writeServices()
	})
}

// writeServices writes the file, unless it is up to date, and logs a change.
func (a *Agent) writeServices() {
	k := &a.services
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.cidrs) == 0 {
		return
	}
	wrote, err := a.Ranges.WriteServices(k.cidrs)
	before := k.trouble
	k.trouble = ""
	switch {
	case err != nil:
		if k.trouble = Line(err); k.trouble != before {
			a.Log.Warn("the CIDRs of the cluster's Services cannot be written", About(err)...)
		}
	case wrote:
		a.Log.Info("wrote the CIDRs of the cluster's Services", "services", k.cidrs)
	}
}

// ills returns what a network with hostLink.routes "auto" lacks. Other networks do not
// need it.
func (k *services) ills() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var lines []string
	for _, text := range []string{k.unknown, k.trouble} {
		if text != "" {
			lines = append(lines, `CIDRs of the cluster's Services, for hostLink.routes "auto" alone: `+text)
		}
	}
	return lines
}
