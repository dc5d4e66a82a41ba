// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"math"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// The numbers of the tables that every kernel has: default, main and local
// (RT_TABLE_DEFAULT, RT_TABLE_MAIN, RT_TABLE_LOCAL).
const (
	firstKernelTable = 253
	lastKernelTable  = 255
)

const tableHint = "choose numbers from 1 to 252 or from 256 on; 0 lets roce choose"

// maxPriority leaves a number for the unreachable rule between ours and the
// kernel's rule for the main table (32766, fib_default_rules_init).
const maxPriority = 32764

func routing(v strict.Value) Routing {
	o := v.ObjectOr("mode")
	defer o.Strict(nil)
	table := o.At("table")
	r := Routing{
		Mode:         strict.Choice(o.At("mode"), RoutingPolicy, RoutingMain, RoutingNone),
		Table:        uint32(table.Whole(0, 0, math.MaxInt32)),
		Priority:     uint32(o.At("priority").Whole(32000, 1, maxPriority)),
		DefaultRoute: o.At("defaultRoute").True(),
		Metric:       uint32(o.At("metric").Whole(0, 0, math.MaxUint32)),
	}
	if r.Table >= firstKernelTable && r.Table <= lastKernelTable {
		table.Bad(tableHint, "%d is one of the kernel's tables", r.Table)
	}
	if r.DefaultRoute && r.Mode == RoutingNone {
		o.At("defaultRoute").Bad("choose the mode policy or main", "the mode none makes no routes")
	}
	return r
}

func probe(v strict.Value) Probe {
	o := v.Object()
	defer o.Strict(nil)
	c, g := o.At("conflict").ObjectOr("mode"), o.At("gateway").ObjectOr("mode")
	defer c.Strict(nil)
	defer g.Strict(nil)
	return Probe{
		Conflict: Conflict{
			Mode:     severity(c.At("mode")),
			Probes:   int(c.At("probes").Whole(3, 1, 10)),
			Interval: c.At("interval").Duration(2*time.Millisecond, time.Millisecond, time.Second),
			Wait:     c.At("wait").Duration(4*time.Millisecond, time.Millisecond, 5*time.Second),
		},
		Gateway: Gateway{
			Mode:     severity(g.At("mode")),
			Attempts: int(g.At("attempts").Whole(3, 1, 10)),
			Timeout:  g.At("timeout").Duration(100*time.Millisecond, time.Millisecond, 5*time.Second),
		},
	}
}

func severity(v strict.Value) Severity { return strict.Choice(v, Require, Warn, Off) }

func rdma(v strict.Value) RDMA {
	o := v.ObjectOr("mode")
	defer o.Strict(func(key string) string {
		switch key {
		case "inUse", "fillers", "counts", "foreignGID":
			return setByNode("rdma." + key)
		}
		return ""
	})
	return RDMA{
		Mode: strict.Choice(o.At("mode"), RDMAAuto, RDMAShared, RDMAExclusive, RDMAOff),
		GID:  severity(o.At("gid")),
		// Soft-RoCE makes an entry within a millisecond. A NIC needs a firmware command
		// for each entry, and one work queue serves all NICs of the node
		// (gid-cache-wq).
		GIDWait:  o.At("gidWait").Duration(10*time.Second, 100*time.Millisecond, time.Minute),
		GIDIndex: gidIndex(o.At("gidIndex")),
		UVerbs:   strict.Choice(o.At("uverbs"), Warn, Require, Off),

		TOS:          o.At("tos").Octet(),
		TrafficClass: o.At("trafficClass").Octet(),
	}
}

// gidIndex reads a word or a number. Index 0 is never an address of a pod: a NIC has
// its own default entry there (ib_cache_gid_set_default_gid).
func gidIndex(v strict.Value) GIDIndex {
	if v.Kind() == strict.ANumber {
		return GIDIndex(v.Whole(0, 1, MaxGIDIndex))
	}
	const equal = "equal"
	if strict.Choice(v, "any", equal) == equal {
		return EqualIndex
	}
	return AnyIndex
}
