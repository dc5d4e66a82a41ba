// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// QoS is what an interface does for the classes of traffic, as dcbnl tells it.
type QoS struct {
	PFC  uint8 // bit i: priority i is paused and not dropped
	DSCP bool  // it trusts the DSCP of packets: there is a mapping of DSCP to priorities
}

func (q QoS) String() string {
	var on []string
	for i := range 8 {
		if q.PFC&(1<<i) != 0 {
			on = append(on, fmt.Sprint(i))
		}
	}
	trust := "no mapping of DSCP"
	if q.DSCP {
		trust = "trusts DSCP"
	}
	if len(on) == 0 {
		return "PFC off, " + trust
	}
	return "PFC for priority " + strings.Join(on, ",") + ", " + trust
}

// nicQoS asks whether all RoCE NICs treat their traffic alike. Which setting is right
// depends on the switches, so that is for people.
func nicQoS() Check {
	return Check{
		Name: "nic-qos",
		Asks: "have all RoCE NICs the same PFC and DSCP settings?",
		Why:  "a rail with other settings than its switch port loses packets under load, and is then much slower than the others",
		look: func(ctx context.Context, n Node) []report.Finding {
			ports, unknown := n.ports(ctx)
			if unknown != nil {
				return unknown
			}
			nics := map[QoS][]string{}
			var out []report.Finding
			for _, p := range ports {
				if p.Device.Protocol != roce || p.Link == "" {
					continue
				}
				q, err := n.QoS(string(p.Link))
				if err != nil {
					out = append(out, cannotTell("its driver does not tell PFC: "+err.Error(), shell.Command("mlnx_qos -i %s", string(p.Link))+", or the tool of the NIC's vendor").About(string(p.Link)))
					continue
				}
				nics[q] = append(nics[q], string(p.Link))
			}
			switch {
			case len(nics) == 1:
				q := slices.Collect(maps.Keys(nics))[0]
				return append(out, ok("%s: %s", strings.Join(nics[q], ", "), q))
			case len(nics) > 1:
				return append(out, differentQoS(nics))
			case len(out) == 0:
				return []report.Finding{ok("the node has no RoCE NIC with an interface")}
			}
			return out
		},
	}
}

func differentQoS(nics map[QoS][]string) report.Finding {
	var found []string
	for q, names := range nics {
		found = append(found, strings.Join(names, ", ")+": "+q.String())
	}
	slices.Sort(found)
	return problem(strings.Join(found, "; "), "dcb pfc show; dcb app show  # then set the same on all: dcb pfc set dev NIC prio-pfc 3:on, or mlnx_qos -i NIC --pfc 0,0,0,1,0,0,0,0 --trust dscp")
}
