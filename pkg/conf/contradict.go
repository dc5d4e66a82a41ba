// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"math"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf/strict"
)

// contradictions reports settings that are right by themselves but not
// together.
func contradictions(r Request, f *strict.Faults) {
	contradictoryRDMA(r.RDMA, f)
	if r.IPAM.Type != PoolType || len(r.IPAM.Subnets) == 0 {
		return
	}
	v4, v6, gateways := 0, 0, 0
	for _, s := range r.IPAM.Subnets {
		if s.Prefix.Addr().Is4() {
			v4++
		} else {
			v6++
		}
		if s.Gateway.IsValid() {
			gateways++
		}
	}
	if r.MTU != 0 && v4 > 0 && r.MTU < 68 { // inetdev_valid_mtu
		f.Add(cnierr.BadConfig, "mtu", "", "%d is less than 68, the least that IPv4 works with", r.MTU)
	}
	if r.MTU != 0 && v6 > 0 && r.MTU < 1280 { // addrconf_notify, RFC 8200 section 5
		f.Add(cnierr.BadConfig, "mtu", "", "%d is less than 1280, the least that IPv6 works with", r.MTU)
	}
	if r.Routing.DefaultRoute && gateways == 0 {
		f.Add(cnierr.BadConfig, "routing.defaultRoute", "set ipam.subnets[].gateway", "no subnet has a gateway")
	}
	// A second address of a family gets the next table.
	first, last := int64(r.Routing.Table), int64(r.Routing.Table)+int64(max(v4, v6))-1
	if first != 0 && first < firstKernelTable && last >= firstKernelTable || last > math.MaxInt32 {
		f.Add(cnierr.BadConfig, "routing.table", tableHint,
			"%d subnets of one family need the tables %d to %d, which are not all free to choose", max(v4, v6), first, last)
	}
}

// contradictoryRDMA refuses settings of a device that does not move: they would
// be those of the host and of every pod.
func contradictoryRDMA(r RDMA, f *strict.Faults) {
	for key, given := range map[string]bool{"rdma.tos": r.TOS != nil, "rdma.trafficClass": r.TrafficClass != nil} {
		if given && r.Mode != RDMAExclusive {
			f.Add(cnierr.BadConfig, key, `set rdma.mode to exclusive, or set it on the node: cma_roce_tos -d DEVICE -t TOS`,
				"a device that is not the pod's alone has the host's")
		}
	}
}

// unsupported reports what a later version can do.
func unsupported(top *strict.Object) {
	if v := top.At("rails"); v.Present() {
		v.Fault(cnierr.Unsupported, "write one network for each rail", "not supported by this version")
	}
}
