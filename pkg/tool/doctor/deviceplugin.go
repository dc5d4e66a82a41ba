// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// checkpoint is where kubelet keeps which devices its device plugins offer.
const checkpoint = "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"

// devicePlugin asks whether each resource of a device plugin has devices. Which of them
// are for RDMA only the plugins know, so all are looked at.
func devicePlugin() Check {
	return Check{
		Name: "device-plugin",
		Asks: "has each resource of a device plugin devices on this node?",
		Why:  "pods that request the resource stay Pending (\"Insufficient ...\"); unprivileged pods get their RDMA device files from it",
		look: func(_ context.Context, n Node) []report.Finding {
			text, err := n.text(checkpoint)
			if err != nil {
				return []report.Finding{cannotTell(err.Error(), "root on a node of Kubernetes, or the root folder of kubelet if it is not /var/lib/kubelet")}
			}
			var c struct {
				Data struct{ RegisteredDevices map[string][]string } // those that are healthy
			}
			if err := json.Unmarshal([]byte(text), &c); err != nil {
				return []report.Finding{cannotTell("/"+checkpoint+": "+err.Error(), "a kubelet with a readable file: kubectl describe node has the numbers")}
			}
			resources := c.Data.RegisteredDevices
			if len(resources) == 0 {
				return []report.Finding{cannotTell("no device plugin has registered", "whether the pods are privileged: if not, install k8s-rdma-shared-dev-plugin or sriov-network-device-plugin")}
			}
			var out []report.Finding
			for _, name := range slices.Sorted(maps.Keys(resources)) {
				out = append(out, offered(name, len(resources[name])).About(name))
			}
			return out
		},
	}
}

func offered(resource string, devices int) report.Finding {
	if devices > 0 {
		return ok("%s", count(devices, "device"))
	}
	fix := "kubectl -n kube-system get pods -o wide  # is the device plugin on this node? Its log says which devices it leaves out"
	if strings.Contains(resource, "rdma") {
		fix += ", for example those without all files: rocectl doctor rdma-files"
	}
	return problem("no healthy device, or the plugin has stopped", fix)
}
