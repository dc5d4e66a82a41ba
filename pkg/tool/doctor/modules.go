// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// rdmaModules asks whether the modules that make device files are there. The kernel
// loads none of them by itself.
func rdmaModules() Check {
	return Check{
		Name: "rdma-modules",
		Asks: "are ib_uverbs, rdma_ucm and ib_umad loaded or built in?",
		Why:  "without ib_uverbs no program can use RDMA, without rdma_ucm none can use rdma_cm; the device plugin of shared devices offers no device that lacks a file of one of the three",
		look: func(_ context.Context, n Node) []report.Finding {
			var missing []string
			for _, m := range []string{"ib_uverbs", "rdma_ucm", "ib_umad"} {
				loaded, err := n.has("sys/module/" + m)
				if err != nil {
					return []report.Finding{cannotTell(err.Error(), "the right to read /sys/module")}
				}
				if !loaded {
					missing = append(missing, m)
				}
			}
			if len(missing) == 0 {
				return []report.Finding{ok("ib_uverbs, rdma_ucm and ib_umad are loaded")}
			}
			return []report.Finding{n.notLoaded(missing)}
		},
	}
}

// notLoaded tells modules that are built in from those that are absent: sysfs shows
// a module that is built in only if it has parameters or a version.
func (n Node) notLoaded(modules []string) report.Finding {
	release, err := n.text("proc/sys/kernel/osrelease")
	if err != nil {
		return cannotTell(err.Error(), "the right to read /proc/sys/kernel/osrelease")
	}
	list := "lib/modules/" + release + "/modules.builtin"
	builtin, err := n.text(list)
	if err != nil {
		return cannotTell(strings.Join(modules, " and ")+" may be built in: "+err.Error(), "/"+list+", which the package of the kernel has")
	}
	absent := slices.DeleteFunc(modules, func(m string) bool {
		for line := range strings.Lines(builtin) {
			if path.Base(strings.TrimSpace(line)) == m+".ko" {
				return true
			}
		}
		return false
	})
	if len(absent) == 0 {
		return ok("ib_uverbs, rdma_ucm and ib_umad are loaded or built in")
	}
	return problem("not loaded: "+strings.Join(absent, ", "),
		"modprobe -a "+strings.Join(absent, " ")+"\nprintf '%s\\n' "+strings.Join(absent, " ")+" > /etc/modules-load.d/roce.conf")
}
