// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// memlock asks how much memory a container may lock. It inherits the limit of its
// runtime, because Kubernetes has no field for it.
func memlock() Check {
	return Check{
		Name: "memlock",
		Asks: "may containers lock as much memory as the node has?",
		Why:  "RDMA locks the memory that it transfers: programs fail to register it (ENOMEM, \"Cannot allocate memory\") at this limit, unless they have CAP_IPC_LOCK",
		look: func(_ context.Context, n Node) []report.Finding {
			memory, err := n.memory()
			if err != nil {
				return []report.Finding{cannotTell("how much memory the node has: "+err.Error(), "the right to read /proc/meminfo")}
			}
			var out []report.Finding
			for _, name := range n.files("proc/[0-9]*/comm") {
				comm, err := n.text(name)
				if err == nil && slices.Contains([]string{"containerd", "crio", "dockerd"}, comm) && !n.inPod(path.Dir(name)) {
					out = append(out, n.limit(comm, path.Dir(name), memory).About(comm))
				}
			}
			if len(out) == 0 {
				return []report.Finding{cannotTell("no process is called containerd, crio or dockerd", "the PID namespace of the node (hostPID in a pod), or another name of the runtime")}
			}
			return out
		},
	}
}

// inPod says whether a process has a PID namespace of its own, as those of most pods. They may
// have any name.
func (n Node) inPod(process string) bool {
	text, err := n.text(process + "/status")
	if err != nil {
		return false // its limits tell more
	}
	for line := range strings.Lines(text) {
		if numbers, found := strings.CutPrefix(line, "NSpid:"); found {
			return len(strings.Fields(numbers)) > 1
		}
	}
	return false // a kernel without PID namespaces
}

// memory returns the memory of the node, in bytes.
func (n Node) memory() (uint64, error) {
	text, err := n.text("proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) >= 2 && words[0] == "MemTotal:" {
			kib, err := strconv.ParseUint(words[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo has no MemTotal")
}

func (n Node) limit(runtime, process string, memory uint64) report.Finding {
	text, err := n.text(process + "/limits")
	if err != nil {
		return cannotTell("its limits cannot be read: "+err.Error(), "root on the node")
	}
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, "Max locked memory")
		if !found {
			continue
		}
		soft := strings.Fields(rest + " ?")[0]
		if soft == "unlimited" {
			return ok("no limit")
		}
		bytes, err := strconv.ParseUint(soft, 10, 64)
		if err != nil {
			break
		}
		if bytes >= memory {
			return ok("%d MiB, which is all that the node has", bytes>>20)
		}
		return problem(fmt.Sprintf("%d KiB of the %d MiB of the node", bytes>>10, memory>>20),
			fmt.Sprintf("mkdir -p /etc/systemd/system/%[1]s.service.d && printf '[Service]\\nLimitMEMLOCK=infinity\\n' > /etc/systemd/system/%[1]s.service.d/memlock.conf && systemctl daemon-reload && systemctl restart %[1]s  # pods that run keep the old limit",
				unitOf(runtime)))
	}
	return cannotTell("its limits have no line for locked memory", "a kernel with the line Max locked memory in /proc/PID/limits")
}

// unitOf returns the systemd unit of a runtime.
func unitOf(runtime string) string {
	if runtime == "dockerd" {
		return "docker"
	}
	return runtime
}
