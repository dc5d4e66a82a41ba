// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// nicQoS asks whether all RoCE NICs treat their traffic alike, and whether what they do for
// it fits together. Whether a rail should be lossless depends on the switches, so that is for
// people.
func (n Node) nicQoS(ctx context.Context) []report.Finding {
	ports, unknown := n.ports(ctx)
	if unknown != nil {
		return unknown
	}
	nics := map[nic.QoS][]string{}
	var out []report.Finding
	for _, p := range ports {
		if p.Device.Protocol != roce || p.Own == nil {
			continue
		}
		for i, link := range p.Cables() {
			if vf, err := n.has("sys/class/net/" + link + "/device/physfn"); err == nil && vf {
				continue // it has the settings of its PF
			}
			q, err := n.QoS(link)
			if err != nil {
				out = append(out, cannotTell("its driver does not tell PFC: "+err.Error(), shell.Command("mlnx_qos -i %s", link)+", or the tool of the NIC's vendor").About(link))
				continue
			}
			nics[q] = append(nics[q], link)
			if f, wrong := n.forced(p, q); wrong && i == 0 {
				out = append(out, f)
			}
		}
	}
	if len(nics)+len(out) == 0 {
		return []report.Finding{ok("the node has no RoCE NIC with an interface")}
	}
	if len(nics) > 1 {
		out = append(out, differentQoS(nics))
	}
	for _, q := range slices.SortedFunc(maps.Keys(nics), func(a, b nic.QoS) int { return cmp.Compare(nics[a][0], nics[b][0]) }) {
		out = append(out, fitting(q, nics[q], len(nics) > 1)...)
	}
	return out
}

func differentQoS(nics map[nic.QoS][]string) report.Finding {
	var found []string
	for q, names := range nics {
		found = append(found, strings.Join(names, ", ")+": "+q.String())
	}
	slices.Sort(found)
	return problem(strings.Join(found, "; "), "dcb pfc show; dcb app show  # then set the same on all: dcb pfc set dev NIC prio-pfc 3:on, or mlnx_qos -i NIC --pfc 0,0,0,1,0,0,0,0 --trust dscp")
}

// fitting judges the settings of NICs. told says that they are in another finding already.
func fitting(q nic.QoS, links []string, told bool) (out []report.Finding) {
	names := strings.Join(links, ", ")
	if q.PFC != 0 && len(q.Lossless()) == 0 {
		out = append(out, cannotTell(fmt.Sprintf("%s: no DSCP leads to priority %s, so only packets with a VLAN tag of this priority have PFC", names, q.PFC),
			shell.Command("a mapping (dcb app add dev %s dscp-prio DSCP:PRIORITY; mlnx_qos -i %s --trust dscp), or to know that programs set this priority (SL) on a VLAN", links[0], links[0])))
	}
	if lossy := q.PFC &^ q.ECN; q.TellsECN && lossy != 0 {
		out = append(out, problem(fmt.Sprintf("%s: ECN is off for priority %s, which has PFC: the switch pauses the port before a sender slows down", names, lossy),
			shell.Command("echo 1 >/sys/class/net/%[1]s/ecn/roce_np/enable/%[2]d\necho 1 >/sys/class/net/%[1]s/ecn/roce_rp/enable/%[2]d  # and so for each NIC and priority", links[0], bits.TrailingZeros8(uint8(lossy)))))
	}
	if len(out) == 0 && !told {
		out = append(out, ok("%s: %s", names, q))
	}
	if !q.TellsECN {
		out = append(out, cannotTell(names+": its driver does not tell ECN", "the tool of the NIC's vendor, or NVIDIA's own driver; and the configuration of the switches"))
	}
	return out
}

// forced finds a traffic class that the driver gives to all packets of a port, and that has no PFC
// although another one has. Only NVIDIA's own driver has this setting.
func (n Node) forced(p nic.Port, q nic.QoS) (f report.Finding, wrong bool) {
	file := fmt.Sprintf("sys/class/infiniband/%s/tc/%d/traffic_class", p.Device.Name, p.Number)
	text, err := n.text(file)
	var class int
	if err != nil || len(q.Lossless()) == 0 {
		return f, false
	}
	if _, err := fmt.Sscanf(text, "Global tclass=%d", &class); err != nil || class < 0 || class > 255 || q.DSCP[class>>2]&q.PFC != 0 {
		return f, false
	}
	return problem(fmt.Sprintf("its driver gives all packets traffic class %d, which is DSCP %d, and that has no PFC: %s", class, class>>2, q),
		shell.Command("echo %d >/%s", q.Lossless()[0]<<2, file)+"  # the DSCP of your switches, times 4").About(p.String()), true
}
