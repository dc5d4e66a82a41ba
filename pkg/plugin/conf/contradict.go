// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"fmt"
	"math"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// This file has the settings that contradict each other, though each is valid alone.

func moreThanAResultSays(r Request, f *strict.Faults) {
	for _, one := range r.Rails {
		if v4, v6 := pool.Families(one.Subnets); firstForm(r.CNIVersion) && max(v4, v6) > 1 {
			f.Add(cnierr.Version, "cniVersion", "set cniVersion to 0.3.0 or newer, or configure one subnet of each family",
				"a result of version %s has only one address of each family, the pod would get %d", r.CNIVersion, v4+v6)
			return
		}
	}
}

func contradictoryMTU(r Request, f *strict.Faults) {
	v4, v6 := 0, 0
	for _, one := range r.Rails {
		a, b := pool.Families(one.Subnets)
		v4, v6 = v4+a, v6+b
	}
	if r.MTU != 0 && v4 > 0 && r.MTU < 68 { // inetdev_valid_mtu
		f.Add(cnierr.BadConfig, "mtu", "", "%d is less than 68, the minimum of IPv4", r.MTU)
	}
	if r.MTU != 0 && v6 > 0 && r.MTU < 1280 { // addrconf_notify, RFC 8200 section 5
		f.Add(cnierr.BadConfig, "mtu", "", "%d is less than 1280, the minimum of IPv6", r.MTU)
	}
}

func contradictoryDefaults(r Request, f *strict.Faults) {
	first := map[uint32]int{} // by metric: the rail that has it
	for i, one := range r.Rails {
		if !one.Routing.DefaultRoute {
			continue
		}
		place := routingOf(r, i) + ".defaultRoute"
		if j, taken := first[one.Routing.Metric]; taken {
			f.Add(cnierr.BadConfig, place, "set routing.defaultRoute for one rail only, or give each rail another routing.metric",
				"rail %d and rail %d cannot both have the pod's default route", j, i)
			return
		}
		first[one.Routing.Metric] = i
		if from := r.IPAM.FromMaster; from != nil && from.Gateway == pool.NoGateway {
			f.Add(cnierr.BadConfig, place, `set ipam.gateway to "first" or "last"`, "no subnet has a gateway")
		}
	}
}

func missingGateways(r Request, f *strict.Faults) {
	has := func(s pool.Subnet) bool { return s.Gateway.IsValid() }
	for i, one := range r.Rails {
		if one.Routing.DefaultRoute && len(one.Subnets) > 0 && !slices.ContainsFunc(one.Subnets, has) {
			f.Add(cnierr.BadConfig, routingOf(r, i)+".defaultRoute", "set ipam.subnets[].gateway", "no subnet has a gateway")
		}
	}
}

// contradictoryTables reports table numbers that belong to the kernel or to
// another rail. A second address of a family gets the next table.
func contradictoryTables(r Request, f *strict.Faults) {
	type span struct{ rail, first, last int64 }
	var used []span
	for i, one := range r.Rails {
		v4, v6 := pool.Families(one.Subnets)
		n := int64(max(v4, v6, 1))
		s := span{int64(i), int64(one.Routing.Table), int64(one.Routing.Table) + n - 1}
		if s.first == 0 || one.Routing.Mode != RoutingPolicy {
			continue
		}
		place, said := routingOf(r, i)+".table", s.first
		if place == "routing.table" {
			said = int64(r.Routing.Table)
		}
		if firstKernelTable <= said && said <= lastKernelTable { // already reported as a fault
			continue
		}
		if s.first <= lastKernelTable && s.last >= firstKernelTable || s.last > math.MaxInt32 {
			f.Add(cnierr.BadConfig, place, tableHint, "%s the tables %d to %d, but the kernel has reserved some of them", who(r, i, n), s.first, s.last)
			return
		}
		for _, o := range used {
			if s.first <= o.last && o.first <= s.last {
				f.Add(cnierr.BadConfig, place, "choose other numbers, or 0 to let roce choose", "rail %d and rail %d would both use table %d", o.rail, i, max(s.first, o.first))
				return
			}
		}
		used = append(used, s)
	}
}

func who(r Request, rail int, n int64) string {
	if len(r.Rails) == 1 {
		return fmt.Sprintf("%d subnets of one family need", n)
	}
	return fmt.Sprintf("rail %d needs", rail)
}

func routingOf(r Request, rail int) string {
	if !r.Rails[rail].OwnRouting {
		return "routing"
	}
	return fmt.Sprintf("rails[%d].routing", rail)
}

// contradictoryRDMA refuses settings for a device that does not move into the
// pod: they would change the host and every pod.
func contradictoryRDMA(r RDMA, f *strict.Faults) {
	for _, one := range []struct {
		key   string
		value *uint8
	}{{"rdma.tos", r.TOS}, {"rdma.trafficClass", r.TrafficClass}} {
		if one.value != nil && r.Mode != RDMAExclusive {
			f.Add(cnierr.BadConfig, one.key, `set rdma.mode to exclusive, or set it on the node: cma_roce_tos -d DEVICE -t TOS`,
				"pods share the device, so it keeps the host's value")
		}
	}
}

// contradictoryGIDIndex refuses a promise that ADD could not keep: without its
// addresses, its interface or its GIDs.
func contradictoryGIDIndex(r Request, f *strict.Faults) {
	if r.RDMA.GIDIndex == AnyIndex {
		return
	}
	const key = "rdma.gidIndex"
	switch {
	case r.RDMA.Mode == RDMAOff:
		f.Add(cnierr.BadConfig, key, `remove it, or set rdma.mode to auto`, "without RDMA there is no GID index")
	case r.RDMA.GID != Require:
		f.Add(cnierr.BadConfig, key, `remove it, or set rdma.gid to require`, "it needs the GIDs, and rdma.gid is %q", r.RDMA.GID)
	case r.Prev != nil:
		f.Add(cnierr.BadConfig, key, `remove it: another plugin sets the addresses of an adopted interface`, "roce does not set the addresses")
	}
}
