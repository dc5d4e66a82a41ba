// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// charDevices asks whether each device has its files in /dev/infiniband.
func charDevices() Check {
	return Check{
		Name: "rdma-files",
		Asks: "has each RDMA device its files uverbs, umad and rdma_cm in /dev/infiniband?",
		Why:  "programs open the device by these files; a device plugin hands them to pods, and offers no device that lacks one",
		look: func(ctx context.Context, n Node) []report.Finding {
			s, err := n.RDMA(ctx)
			if err != nil {
				return unlisted(err)
			}
			if len(s.Devices) == 0 {
				return []report.Finding{cannotTell("the node has no RDMA device", "an RDMA device: see rdma-devices")}
			}
			var out []report.Finding
			for _, d := range s.Devices {
				out = append(out, n.filesOf(d.Name).About(d.Name))
			}
			return out
		},
	}
}

func (n Node) filesOf(device string) report.Finding {
	const dir = "/dev/infiniband/"
	wanted := n.CharDevices(device)
	var there, missing []string
	for _, kind := range []string{"uverbs", "umad", "rdma_cm"} {
		if !slices.ContainsFunc(wanted, func(p string) bool { return strings.HasPrefix(p, dir+kind) }) {
			missing = append(missing, kind)
		}
	}
	for _, file := range wanted {
		found, err := n.has(strings.TrimPrefix(file, "/"))
		if err != nil {
			return cannotTell(err.Error(), "the right to look at "+dir)
		}
		name := strings.TrimPrefix(file, dir)
		if found {
			there = append(there, name)
		} else {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return problem("without "+strings.Join(missing, ", "),
			"modprobe -a ib_uverbs ib_umad rdma_ucm && udevadm trigger --action=add --subsystem-match=infiniband_verbs --subsystem-match=infiniband_mad --subsystem-match=misc")
	}
	return ok("%s", strings.Join(there, ", "))
}
