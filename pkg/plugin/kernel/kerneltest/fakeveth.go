// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// veth makes a pair with one end on the host and one in the pod.
type veth struct {
	op  plan.Veth
	pod *Space
}

func (v veth) do(host *Space) error {
	const action = "add veth pair"
	l := host.link(v.op.Name)
	switch {
	case l != nil && !v.owns(l):
		return cnierr.New(cnierr.BadEnv, action, string(v.op.Name), "", "the node has a link of that name")
	case l != nil && v.whole(l):
		l.alias = v.op.Mark
		return nil
	case l != nil:
		host.removeLink(l)
	}
	if l := v.renamed(host); l != nil {
		host.removeLink(l)
	}
	if v.pod.link(v.op.PodEnd) != nil {
		return cnierr.New(cnierr.BadEnv, action, string(v.op.Name), "", "the pod has another interface %q", v.op.PodEnd)
	}
	l = &iface{name: v.op.Name, kind: "veth", alias: v.op.Mark, mac: v.op.MAC, mtu: v.op.MTU, sysctls: map[string]string{}}
	l.peer = &iface{name: v.op.PodEnd, kind: "veth", mac: v.op.PodMAC, mtu: v.op.MTU, peer: l, sysctls: map[string]string{}}
	host.links, v.pod.links = append(host.links, l), append(v.pod.links, l.peer)
	return nil
}

// renamed returns the end on the host under another name.
func (v veth) renamed(host *Space) *iface {
	for _, l := range host.links {
		if l != nil && l.kind == "veth" && l.alias == v.op.Mark {
			return l
		}
	}
	return nil
}

func (v veth) undo(host *Space) error {
	l := host.link(v.op.Name)
	if l == nil && !v.op.MAC.IsZero() {
		l = v.renamed(host)
	}
	if l != nil && v.owns(l) {
		host.removeLink(l)
	}
	return nil
}

func (v veth) check(host *Space) error {
	const action = "check veth pair"
	l := host.link(v.op.Name)
	switch {
	case l == nil:
		return host.damaged(action, string(v.op.Name), v.op, "missing")
	case !v.owns(l) || !v.whole(l) || l.alias != v.op.Mark:
		return host.damaged(action, string(v.op.Name), v.op, "%w", kernel.ErrDifferent)
	}
	return nil
}

func (v veth) owns(l *iface) bool {
	if l.kind != "veth" {
		return false
	}
	return l.alias == v.op.Mark || !v.op.MAC.IsZero() && l.mac == v.op.MAC && !strings.HasPrefix(l.alias, "roce:")
}

func (v veth) whole(l *iface) bool {
	peer := v.pod.link(v.op.PodEnd)
	return peer != nil && l.peer == peer && l.mac == v.op.MAC && peer.mac == v.op.PodMAC
}
