// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// rdmaDriver asks which driver stack runs. NVIDIA's own (MLNX_OFED, DOCA-OFED) has
// the module mlx_compat, which the kernel's does not have.
func rdmaDriver() Check {
	return Check{
		Name: "rdma-driver",
		Asks: "which driver stack runs, the kernel's or OFED, and is it the one that is installed?",
		Why:  "after an update of the kernel the drivers of OFED are often not built for it, and the kernel's own run with other features and other limits than those that were tested",
		look: func(_ context.Context, n Node) []report.Finding {
			release, err := n.text("proc/sys/kernel/osrelease")
			if err != nil {
				return []report.Finding{cannotTell(err.Error(), "the right to read /proc/sys/kernel/osrelease")}
			}
			running, err := n.has("sys/module/mlx_compat")
			if err != nil {
				return []report.Finding{cannotTell(err.Error(), "the right to read /sys/module")}
			}
			mlx5, err := n.has("sys/module/mlx5_core")
			if err != nil {
				return []report.Finding{cannotTell(err.Error(), "the right to read /sys/module")}
			}
			installed, err := n.has("usr/bin/ofed_info")
			if err != nil {
				return []report.Finding{cannotTell(err.Error(), "the right to look for /usr/bin/ofed_info")}
			}
			switch {
			case running:
				return []report.Finding{ok("OFED%s on Linux %s", n.version("mlx5_core"), release)}
			case installed && mlx5:
				return []report.Finding{problem("OFED is installed, but the drivers of Linux "+release+" run",
					"dkms autoinstall -k "+release+" && /etc/init.d/openibd restart  # on a node without pods")}
			}
			return []report.Finding{ok("the drivers of Linux %s", release)}
		},
	}
}

// version returns the version of a module with a space before it, "" if it has
// none: modules of the kernel itself have none of their own any more.
func (n Node) version(module string) string {
	v, err := n.text("sys/module/" + module + "/version")
	if err != nil {
		return ""
	}
	return " " + strings.TrimSpace(v)
}
