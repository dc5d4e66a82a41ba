// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// firstInterface is the name that container runtimes give to the interface of the first
// network of a pod. They look for the pod's IP under this name (containerd and CRI-O).
const firstInterface = "eth0"

// CutOff returns a warning about a plan that makes the first interface of a pod and gives
// the pod no default route: the pod reaches only its subnets, and nothing else tells the
// operator. It returns "" for all other plans. An interface of another plugin is left
// to the configuration of that plugin.
func (p Plan) CutOff(req conf.Request) string {
	if req.IfName != firstInterface || req.Prev != nil {
		return ""
	}
	for r := range All[Route](p.Ops.At(Pod)) {
		if r.Table == MainTable && r.Dst.Bits() == 0 {
			return ""
		}
	}
	return fmt.Sprintf("%s is the first network of the pod, and the pod gets no default route: it reaches no ClusterIP, "+
		"no DNS of the cluster and not its node, and probes of the kubelet fail. Let the CNI of the cluster make %s, and name this network "+
		"in the annotation k8s.v1.cni.cncf.io/networks; or set hostLink. See docs/default-network.md", firstInterface, firstInterface)
}
