// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// reservations reports those in no subnet, too: the address that pods must not get is mistyped.
func (p Pool) reservations(f *strict.Faults) {
	type kept struct {
		netrange.Range
		path string
	}
	var all []kept
	for i, r := range p.Spec.Reservations {
		for j, each := range r.Ranges {
			path := fmt.Sprintf("spec.reservations[%d].ranges[%d]", i, j)
			if one, ok := pool.Range(text(f, path, each)); ok {
				all = append(all, kept{one, path})
			}
		}
	}
	if p.mayHaveMoreRacks() {
		return
	}
	for _, rack := range p.racks() {
		if len(all) == 0 {
			return
		}
		here := p.prefixes([]string{rack})
		all = slices.DeleteFunc(all, func(k kept) bool {
			return slices.ContainsFunc(here, func(n named) bool { return k.Overlaps(netrange.Of(n.prefix)) })
		})
	}
	for _, k := range all {
		f.Add(cnierr.BadConfig, k.path, "correct the address, or remove it", "%s is in no subnet of the pool, so it reserves nothing", k.Range)
	}
}

// mayHaveMoreRacks says whether there can be racks beyond those that Validate looks at. Then
// a reservation may be in one of them.
func (p Pool) mayHaveMoreRacks() bool {
	if !p.racked() {
		return false
	}
	first, beyond := p.prefixes([]string{"0"}), p.prefixes([]string{strconv.Itoa(sampleRacks)})
	return len(beyond) >= len(first)
}

// alike reports an address that lacks a placeholder of its subnet: it is correct on only one
// rail, or in only one rack.
func (p Pool) alike(f *strict.Faults) {
	if len(p.Spec.Racks) > 0 {
		return
	}
	for i, r := range p.Spec.Rails {
		p.follow(f, "{rack", fmt.Sprintf("spec.rails[%d].subnets", i), r.Subnets)
	}
	if t := p.Spec.Template; t != nil {
		p.follow(f, "{rack", "spec.template.subnets", t.Subnets)
		if t.Count > 1 {
			p.follow(f, "{rail", "spec.template.subnets", t.Subnets)
		}
	}
}

// follow is alike for some subnets and the beginning of a placeholder.
func (p Pool) follow(f *strict.Faults, placeholder, path string, subnets []Subnet) {
	for i, s := range subnets {
		if !strings.Contains(s.Subnet, placeholder) {
			continue
		}
		lacks := func(text, key, hint string) {
			if text != "" && !strings.Contains(text, placeholder) {
				f.Add(cnierr.BadConfig, fmt.Sprintf("%s[%d].%s", path, i, key), fmt.Sprintf(hint, placeholder), "%s has no %s}, which its subnet %s has", text, placeholder, s.Subnet)
			}
		}
		for j, r := range s.Ranges {
			lacks(r, fmt.Sprintf("ranges[%d]", j), "write %s} into it, as in the subnet")
		}
		for j, r := range s.Exclude {
			lacks(r, fmt.Sprintf("exclude[%d]", j), "write %s} into it, as in the subnet, or put the address into spec.reservations")
		}
		if !outside(s) {
			lacks(s.Gateway, "gateway", "write %s} into it, as in the subnet")
		}
	}
}

// outside says whether the gateway may be outside of its subnet, and so the same on every rail.
func outside(s Subnet) bool {
	gateway, err := netip.ParseAddr(s.Gateway)
	return s.OnLink || err == nil && gateway.IsLinkLocalUnicast()
}

// Explain gives a code and a hint to the answers of a Store that have none. Other
// errors stay as they are.
func Explain(err error) error {
	var busy *BusyError
	switch {
	case errors.As(err, new(*cnierr.Error)):
	case errors.Is(err, ErrUnknown), errors.As(err, &busy), errors.Is(err, ErrConflict), errors.Is(err, ErrExists), errors.Is(err, ErrNotFound):
		return cnierr.New(cnierr.TryAgain, "ask the API server", "", "check that it answers: kubectl get --raw /readyz", "%w", err)
	}
	return err
}
