// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Veth creates a pair of connected links, down: one on the host, with the alias Mark, and
// one in the pod. Its place is the host, so that DEL removes the pair also when the
// namespace of the pod is gone. When one end goes, the kernel removes the other.
//
// An existing veth on the host with that name is ours if it carries Mark, or if it has
// this MAC and not the mark of another attachment.
type Veth struct {
	Name   conf.LinkName `json:"name"`           // on the host
	MAC    conf.MAC      `json:"mac"`            // on the host
	PodEnd conf.LinkName `json:"podEnd"`         // its name in the pod
	PodMAC conf.MAC      `json:"podMAC"`         // of the end in the pod
	MTU    int           `json:"mtu,omitempty"`  // of both
	Mark   string        `json:"mark,omitempty"` // alias of the end on the host
}

// commands implements Kind.
func (v Veth) commands(in namespaces) []string {
	return []string{
		shell.Command("ip link add name %s address %s mtu %d type veth peer name %s netns %s address %s mtu %d",
			v.Name, v.MAC, v.MTU, v.PodEnd, in.pod, v.PodMAC, v.MTU),
		shell.Command("ip link set dev %s alias %s", v.Name, v.Mark),
	}
}
