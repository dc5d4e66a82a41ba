// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"slices"
	"strconv"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// vlan makes a VLAN of a NIC of the host.
type vlan struct{ op plan.VLAN }

func (v vlan) do(host *Space) error {
	const action = "add VLAN"
	nic := host.link(v.op.NIC)
	if nic == nil {
		return cnierr.New(cnierr.BadParent, action, string(v.op.Name), "", "no such device")
	}
	l := host.link(v.op.Name)
	if l != nil && !v.is(l, nic) {
		return cnierr.New(cnierr.TryAgain, action, string(v.op.Name), "", "another program has made or changed the link")
	}
	if l == nil {
		l = host.addVLAN(v.op.Name, nic, v.op.ID)
		if l == nil {
			return cnierr.New(cnierr.BadParent, action, string(v.op.Name), "", "on %q: file exists", nic.name)
		}
		l.alias = plan.VLANMark
	}
	if l.up {
		return nil
	}
	for _, s := range v.op.Settings().Set {
		l.sysctls[s.Path] = s.Value
	}
	return host.setUp(l, true)
}

// addVLAN adds a VLAN, nil if the NIC has it already.
func (s *Space) addVLAN(name conf.LinkName, nic *iface, id int) *iface {
	if slices.ContainsFunc(s.links, func(l *iface) bool { return l != nil && l.vlan == id && l.parent == nic }) {
		return nil
	}
	l := &iface{name: name, kind: "vlan", vlan: id, parent: nic, mac: nic.mac, mtu: nic.mtu, sysctls: map[string]string{}}
	s.links = append(s.links, l)
	return l
}

func (v vlan) is(l, nic *iface) bool {
	return l.kind == "vlan" && l.vlan == v.op.ID && l.parent == nic && l.alias == plan.VLANMark
}

func (v vlan) undo(host *Space) error {
	l := host.link(v.op.Name)
	if l == nil || l.kind != "vlan" || l.vlan != v.op.ID || l.alias != plan.VLANMark {
		return nil
	}
	if len(l.addrs) > 0 || len(host.f.foreign(l)) > 0 {
		return cnierr.New(cnierr.IO, "delete VLAN", string(v.op.Name), "", "%w", kernel.ErrInUse)
	}
	host.removeLink(l)
	return nil
}

func (v vlan) check(host *Space) error {
	const action = "check VLAN"
	nic := host.link(v.op.NIC)
	if nic == nil {
		return cnierr.New(cnierr.BadParent, action, string(v.op.Name), "", "no such device")
	}
	switch l := host.link(v.op.Name); {
	case l == nil:
		return host.damaged(action, string(v.op.Name), v.op, "missing")
	case !v.is(l, nic):
		return host.damaged(action, string(v.op.Name), v.op, "%w", kernel.ErrDifferent)
	case !l.up:
		return host.damaged(action, string(v.op.Name), v.op, "it is down")
	}
	return nil
}

// ipLinkAddOn is "ip link add link NIC name NAME type vlan id ID", or that of a macvlan or
// an ipvlan, which has a mode.
func (s *Space) ipLinkAddOn(o map[string]string) bool {
	nic := s.link(conf.LinkName(o["link"]))
	if o["type"] != "vlan" {
		s.links = append(s.links, &iface{name: conf.LinkName(o["name"]), kind: o["type"], mode: conf.Mode(o["mode"]), parent: nic, mtu: 1500, sysctls: map[string]string{}})
		return nic != nil
	}
	id, err := strconv.Atoi(o["id"])
	return err == nil && nic != nil && s.link(conf.LinkName(o["name"])) == nil && s.addVLAN(conf.LinkName(o["name"]), nic, id) != nil
}

// parentIndex returns the index of the link below another in the same namespace, 0 if
// there is none.
func (s *Space) parentIndex(l *iface) int32 {
	return int32(slices.Index(s.links, l.parent) + 1)
}
