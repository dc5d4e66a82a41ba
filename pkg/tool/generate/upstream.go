// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

const resourceName = "k8s.v1.cni.cncf.io/resourceName"

// upstream converts a configuration, or a list, of the plugins of the CNI project.
func (c *converter) upstream(o object, config *fields) error {
	plugins := []*fields{config}
	if config.whole("plugins") != nil {
		plugins = config.objects("plugins")
	}
	if len(plugins) == 0 {
		return fmt.Errorf("it has no plugin")
	}
	config.whole("name")
	config.whole("cniVersion")
	for _, p := range plugins {
		if p.str("type") == "roce" {
			c.kept(o, "it uses roce already")
			return nil
		}
	}
	var d Document
	first := plugins[0].str("type")
	switch first {
	case "macvlan":
		d.note("%s: roce replaces macvlan.", o)
	case "sriov", "host-device", "ipvlan":
		d.note("%s: %s stays the plugin that makes the interface, and roce adopts it.", o, first)
	default:
		c.kept(o, fmt.Sprintf("roce replaces macvlan and follows sriov, host-device and ipvlan, and this is %s", first))
		return nil
	}
	ipam, err := c.ipam(&d, o, plugins[0].object("ipam"))
	if err != nil {
		return err
	}
	l := chain{d: &d, sysctl: map[string]any{}}
	for _, p := range plugins[1:] {
		l.add(p)
		p.done() // what stays is whole, and what goes has a comment
	}
	var out []any
	if first == "macvlan" {
		out = append(out, l.roce(plugins[0], ipam))
	} else {
		out = append(out, interfaceOf(plugins[0], ipam), l.roce(newFields("", nil), nil))
	}
	out = append(out, l.rest...)
	config.rest(&d)
	head := ordered{{"cniVersion", cniVersion}, {"name", o.Metadata.Name}}
	if one, ok := out[0].(ordered); ok && len(out) == 1 {
		return c.addNetwork(d, o, o.Metadata.Namespace, o.Metadata.Annotations[resourceName], append(head, one...))
	}
	return c.addNetwork(d, o, o.Metadata.Namespace, o.Metadata.Annotations[resourceName], append(head, member{"plugins", out}))
}

// interfaceOf returns the configuration of the plugin that makes the interface, with
// another ipam.
func interfaceOf(p *fields, ipam any) ordered {
	out := ordered{{"type", p.str("type")}}
	for _, key := range slices.Sorted(maps.Keys(p.all)) {
		if !slices.Contains([]string{"type", "ipam", "name", "cniVersion"}, key) {
			out = append(out, member{key, p.whole(key)})
		}
	}
	if ipam != nil {
		out = append(out, member{"ipam", withRail(ipam)})
	}
	return out
}

// chain is what follows the first plugin of a list.
type chain struct {
	d      *Document
	sysctl map[string]any // for roce
	rest   []any          // plugins that stay
}

func (l *chain) add(p *fields) {
	switch kind := p.str("type"); kind {
	case "sbr":
		l.d.note("Dropped: sbr. roce makes a table and a rule for each address. Behind roce, sbr would move the routes away, and CHECK would fail.")
	case "rdma":
		l.d.note("Dropped: rdma. roce moves the RDMA device of the interface into the pod in exclusive mode, and back.")
	case "coordinator", "ifacer":
		l.d.note("Dropped: %s of Spiderpool. roce makes tables and rules, and checks the gateway and address conflicts.", kind)
	case "tuning":
		l.tuning(p)
	default:
		l.d.note("%s stays, behind roce.", kind)
		l.rest = append(l.rest, p.all)
	}
}

// tuning takes over the settings of the interface. What else tuning does stays.
func (l *chain) tuning(p *fields) {
	rest := ordered{}
	other := map[string]any{}
	for key, value := range p.object("sysctl").all {
		trees := []string{"net.ipv4.conf.IFNAME.", "net.ipv6.conf.IFNAME.", "net.ipv4.neigh.IFNAME.", "net.ipv6.neigh.IFNAME."}
		if slices.ContainsFunc(trees, func(t string) bool { return strings.HasPrefix(key, t) }) {
			l.sysctl[key] = value
		} else {
			other[key] = value
		}
	}
	if len(other) > 0 {
		rest = append(rest, member{"sysctl", other})
	}
	for _, key := range slices.Sorted(maps.Keys(p.all)) {
		if key != "type" && key != "sysctl" && key != "name" && key != "cniVersion" {
			rest = append(rest, member{key, p.all[key]})
		}
	}
	if len(l.sysctl) > 0 {
		l.d.note("tuning: roce sets the settings of the interface (sysctl).")
	}
	if len(rest) == 0 {
		l.d.note("Dropped: tuning. Nothing is left for it.")
		return
	}
	l.d.note("tuning stays behind roce for the rest. Check that it does not change arp_ignore, arp_announce or rp_filter of the interface.")
	l.rest = append(l.rest, append(ordered{{"type", "tuning"}}, rest...))
}

// roce returns the configuration that replaces macvlan, or that adopts an interface.
func (l *chain) roce(macvlan *fields, ipam any) ordered {
	out := ordered{{"type", "roce"}}
	for _, key := range []string{"master", "mode", "mtu", "mac", "linkInContainer", "bcqueuelen", "capabilities"} {
		if v := macvlan.whole(key); v != nil {
			out = append(out, member{key, v})
		}
	}
	if len(l.sysctl) > 0 {
		out = append(out, member{"sysctl", l.sysctl})
	}
	if ipam != nil {
		out = append(out, member{"ipam", ipam})
	}
	return out
}
