// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// pcieLink asks whether each NIC has the PCIe link that it can have.
func pcieLink() Check {
	return Check{
		Name: "pcie-link",
		Asks: "has each NIC the PCIe speed and width that it can have?",
		Why:  "the NIC cannot reach the speed of its port: half the width or one generation less halves what passes",
		look: func(ctx context.Context, n Node) []report.Finding {
			s, err := n.RDMA(ctx)
			if err != nil {
				return unlisted(err)
			}
			var out []report.Finding
			for _, d := range s.Devices {
				if f, is := n.pcie(d.Name); is {
					out = append(out, f.About(d.Name))
				}
			}
			if len(out) == 0 {
				return []report.Finding{ok("no RDMA device has a PCIe link of its own")}
			}
			return out
		},
	}
}

// pcie judges the link of a device. is is false for a device without one, such as
// Soft-RoCE's, and for a VF, which has the link of its PF.
func (n Node) pcie(device string) (f report.Finding, is bool) {
	dir := "sys/class/infiniband/" + device + "/device/"
	if there, err := n.has(dir + "max_link_speed"); err == nil && !there {
		return f, false
	}
	if vf, err := n.has(dir + "physfn"); err == nil && vf {
		return f, false
	}
	var v [4]string
	for i, name := range []string{"current_link_speed", "max_link_speed", "current_link_width", "max_link_width"} {
		text, err := n.text(dir + name)
		if err != nil {
			return cannotTell("its link cannot be read: "+err.Error(), "the right to read /sys/class/infiniband"), true
		}
		v[i] = text
	}
	speed, fastest := gigatransfers(v[0]), gigatransfers(v[1])
	width, widest := lanes(v[2]), lanes(v[3])
	if speed == 0 || fastest == 0 || width == 0 || widest == 0 {
		return cannotTell(fmt.Sprintf("its link is %s x%s", v[0], v[2]), "a kernel that knows the speed: lspci -vv shows LnkSta"), true
	}
	found := fmt.Sprintf("%s x%d", v[0], width)
	if speed < fastest || width < widest {
		return problem(fmt.Sprintf("%s, of %s x%d that the NIC can have", found, v[1], widest),
			"lspci -vv -s "+n.pci(device)+" | grep LnkSta  # then reseat the card, use a slot with all lanes, and look at the BIOS settings of the slot"), true
	}
	return ok("%s", found), true
}

// gigatransfers reads "16.0 GT/s PCIe"; 0 for what is unknown.
func gigatransfers(text string) float64 {
	number, _, _ := strings.Cut(text, " ")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0
	}
	return v
}

// lanes reads a width; 0 for what is unknown.
func lanes(text string) int {
	v, err := strconv.Atoi(text)
	if err != nil || v > 64 { // 255: unknown
		return 0
	}
	return v
}
