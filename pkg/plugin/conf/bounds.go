// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"encoding/json"
	"fmt"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// The most that a configuration may have. No cluster needs as much. More would
// let the author of a configuration use up the time and the memory of a node.
const (
	maxInput      = 256 << 10 // bytes of standard input
	maxSubnets    = 64        // of one rail
	maxRanges     = 256       // of one subnet; as many exclusions
	maxRoutes     = 64
	maxSysctls    = 64
	maxAddresses  = 64 // that are requested
	maxBCQueueLen = 10_000
)

// bounded says whether an input is small enough to be read, and reports what is too
// long. It checks nothing else: the reader of a key reports a wrong type.
func bounded(stdin []byte, f *strict.Faults) bool {
	before := f.Len()
	if len(stdin) > maxInput {
		f.Add(cnierr.BadConfig, strict.Whole, "", "it has %d bytes, the limit is %d", len(stdin), maxInput)
		return false
	}
	type subnets []struct{ Ranges, Exclude []json.RawMessage }
	var c struct {
		IPAM struct {
			Subnets subnets
			Routes  []json.RawMessage
		}
		Rails         json.RawMessage
		Sysctl        map[string]json.RawMessage
		RuntimeConfig struct{ IPs []json.RawMessage }
		Args          struct {
			CNI struct{ IPs []json.RawMessage }
		}
	}
	var rails []struct{ Subnets subnets }
	_ = json.Unmarshal(stdin, &c)       // what can be read is enough here
	_ = json.Unmarshal(c.Rails, &rails) // an object has no subnets for each rail
	most := func(path string, have, most int) {
		if have > most {
			f.Add(cnierr.BadConfig, path, "", "%d entries, the limit is %d", have, most)
		}
	}
	each := func(path string, list subnets) {
		most(path, len(list), maxSubnets)
		for i, s := range list[:min(len(list), maxSubnets)] {
			most(fmt.Sprintf("%s[%d].ranges", path, i), len(s.Ranges), maxRanges)
			most(fmt.Sprintf("%s[%d].exclude", path, i), len(s.Exclude), maxRanges)
		}
	}
	each("ipam.subnets", c.IPAM.Subnets)
	for i, r := range rails {
		each(fmt.Sprintf("rails[%d].subnets", i), r.Subnets)
	}
	most("ipam.routes", len(c.IPAM.Routes), maxRoutes)
	most("sysctl", len(c.Sysctl), maxSysctls)
	most("runtimeConfig.ips", len(c.RuntimeConfig.IPs), maxAddresses)
	most("args.cni.ips", len(c.Args.CNI.IPs), maxAddresses)
	return f.Len() == before
}
