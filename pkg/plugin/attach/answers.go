// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/probe"
)

// answers has the MACs that answered in the attempts of an ADD, each with the address
// that it answered for.
type answers map[conf.MAC]netip.Addr

// answersAll notes who answered in an attempt. It returns an error if one of them has
// answered for another address in an earlier attempt. A pod with CAP_NET_RAW can answer
// for every address, and if all these addresses were set aside, the pool would be
// empty. The error names the pod if it is on this node.
func (n Node) answersAll(heard answers, taken []probe.Taken) error {
	taken = slices.DeleteFunc(slices.Clone(taken), func(t probe.Taken) bool { return t.By.IsZero() }) // no host answered
	for _, t := range taken {
		if before, ok := heard[t.By]; ok && before != t.Addr {
			return cnierr.New(cnierr.AddressTaken, "claim address", t.Addr.String(),
				"find the machine with this MAC; if it is a pod, which can answer for any address with CAP_NET_RAW, delete it and drop NET_RAW from its containers",
				"%s answers for it, and answered for %s before: %s", t.By, before, cmp.Or(n.podWith(t.By), "no pod of this node has this MAC"))
		}
	}
	for _, t := range taken {
		heard[t.By] = t.Addr
	}
	return nil
}

// podWith names the pod of this node that has a MAC, "" if there is none.
func (n Node) podWith(mac conf.MAC) string {
	found := ""
	for rec, err := range n.Records.All() {
		if err != nil {
			continue
		}
		for m := range plan.All[plan.Child](rec.Plan.Ops) {
			if m.MAC == mac && !m.Mode.SharesMAC() {
				found = "it is " + who(rec)
			}
		}
	}
	return found
}
