// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// gpuDirect asks whether NICs can read the memory of NVIDIA's GPUs: by the module
// nvidia_peermem, or by dmabuf, which NVIDIA's open kernel modules have since Linux 5.12.
func gpuDirect() Check {
	return Check{
		Name: "gpu-direct",
		Asks: "can the NICs reach the memory of the GPUs (GPUDirect RDMA)?",
		Why:  "each transfer between GPUs then goes through the memory of the host, at a fraction of the speed",
		look: func(_ context.Context, n Node) []report.Finding {
			var loaded [2]bool
			for i, m := range []string{"nvidia", "nvidia_peermem"} {
				there, err := n.has("sys/module/" + m)
				if err != nil {
					return []report.Finding{cannotTell(err.Error(), "the right to read /sys/module")}
				}
				loaded[i] = there
			}
			switch {
			case !loaded[0]:
				return []report.Finding{ok("no driver of NVIDIA GPUs is loaded")}
			case loaded[1]:
				return []report.Finding{ok("nvidia_peermem is loaded")}
			}
			version, err := n.text("proc/driver/nvidia/version")
			if err != nil {
				return []report.Finding{cannotTell("nvidia_peermem is not loaded: "+err.Error(), "/proc/driver/nvidia/version, which says whether the open kernel modules run")}
			}
			if strings.Contains(version, "Open Kernel Module") {
				return []report.Finding{ok("by dmabuf: NVIDIA's open kernel modules run")}
			}
			return []report.Finding{problem("nvidia_peermem is not loaded, and NVIDIA's closed kernel modules have no dmabuf",
				"modprobe nvidia_peermem && echo nvidia_peermem > /etc/modules-load.d/nvidia-peermem.conf")}
		},
	}
}
