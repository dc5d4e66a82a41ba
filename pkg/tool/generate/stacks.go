// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

func (c *converter) spiderMultusConfig(o object) error {
	kind := o.spec.str("cniType")
	if kind != "macvlan" && kind != "ipvlan" && kind != "sriov" {
		c.kept(o, fmt.Sprintf("roce replaces macvlan and ipvlan and follows sriov, and this is %s", kind))
		return nil
	}
	var d Document
	d.note("%s: one network of roce replaces %s, coordinator and Spiderpool's IPAM.", o, kind)
	part := o.spec.object(kind)
	pools := part.object("ippools")
	ipam, err := c.spiderIPAM(&d, o, pools.list("ipv4"), pools.list("ipv6"))
	if err != nil {
		return err
	}
	resource := cmp.Or(part.str("resourceName"), part.str("rdmaResourceName"))
	spiderDropped(&d, o, part, resource)
	hostLink := coordinator(&d, o.spec.object("coordinator"), kind != "sriov")
	if kind == "sriov" {
		d.note("sriov stays the plugin that makes the interface, and roce adopts it.")
		first := vf("sriov", part.number("vlanID"), ipam)
		o.spec.rest(&d)
		c.addNetwork(d, o, o.Metadata.Namespace, resource, ordered{{"plugins", []ordered{first, {{"type", "roce"}}}}})
		return nil
	}
	master := spiderMaster(&d, part)
	if master == "" {
		return fmt.Errorf("%s has no master", kind)
	}
	config := ordered{{"type", "roce"}, {"master", master}}
	if kind == "ipvlan" {
		config = append(config, member{"child", "ipvlan"})
	}
	config = config.with("vlan", part.number("vlanID")).with("mtu", part.number("mtu"))
	o.spec.rest(&d)
	c.addNetwork(d, o, o.Metadata.Namespace, resource, append(append(config, hostLink...), member{"ipam", ipam}))
	return nil
}

// spiderDropped says what of Spiderpool nothing replaces.
func spiderDropped(d *Document, o object, part *fields, resource string) {
	o.spec.drop(d, "SpiderMultusConfig")
	part.drop(d, "SpiderMultusConfig, its plugin")
	for _, key := range injections() {
		if o.Metadata.Annotations[key] != "" {
			d.note("Problem: Spiderpool put this network and its resource into pods with the annotation %s, and nothing does so now. Such pods need "+
				"the annotation k8s.v1.cni.cncf.io/networks: %s, and the limit %s: 1.", key, o.newName(), cmp.Or(resource, "RESOURCE of the device plugin"))
		}
	}
}

// injections are the annotations of networks that Spiderpool puts into pods.
func injections() []string {
	return []string{"cni.spidernet.io/rdma-resource-inject", "cni.spidernet.io/network-resource-inject"}
}

// coordinator returns what replaces a mode of Spiderpool's coordinator: in the mode underlay the
// pod has no other network. Only an interface that roce makes can have hostLink.
func coordinator(d *Document, in *fields, made bool) ordered {
	in.drop(d, "coordinator")
	mode := in.str("mode")
	in.done()
	switch {
	case mode != "underlay":
		return nil
	case !made:
		d.note("Problem: coordinator.mode underlay: the pod has no other network, and hostLink, which would replace its way to the node, needs an interface " +
			"that roce makes. Such pods need another network on eth0.")
		return nil
	}
	d.note("coordinator.mode underlay: the pod has no other network, so hostLink carries probes of the kubelet, ClusterIPs and DNS (docs/default-network.md).")
	return ordered{{"hostLink", ordered{{"routes", []string{"auto"}}}}}
}

// vf returns the configuration of the plugin that makes the interface.
func vf(plugin string, vlan int, ipam any) ordered {
	return ordered{{"type", plugin}}.with("vlan", vlan).with("ipam", withRail(ipam))
}

// withRail names the rail of the pool: roce-ipam behind another plugin does not know
// the NIC.
func withRail(ipam any) any {
	o, ok := ipam.(ordered)
	if !ok {
		return ipam
	}
	for _, m := range o {
		if m.key == "railPool" {
			return append(o, member{"rail", 0})
		}
	}
	return o
}

// spiderMaster returns the NIC. Spiderpool can make a bond on the node, and roce makes none.
func spiderMaster(d *Document, part *fields) string {
	masters, bond := part.list("master"), part.object("bond")
	name, mode, options := bond.str("name"), bond.whole("mode"), bond.str("options")
	switch len(masters) {
	case 0:
		return ""
	case 1:
		return masters[0]
	}
	name = cmp.Or(name, "bond0")
	how := fmt.Sprintf("mode %v", mode)
	if mode == nil { // Spiderpool has no default
		how = "a mode (the object names no mode; on a node: cat /proc/net/bonding/" + name + ")"
	}
	if options != "" {
		how += " and the options " + options
	}
	d.note("master: Spiderpool made the bond %s of %s, with %s, when a pod started. Make it in the network configuration of the node (netplan, NetworkManager).",
		name, strings.Join(masters, " and "), how)
	return name
}

// spiderIPAM returns the ipam object for pools of Spiderpool, and adds the RailPool.
func (c *converter) spiderIPAM(d *Document, o object, v4, v6 []string) (any, error) {
	var subnets []block.Subnet
	var comments, names, missing []string
	var routes []any
	for _, family := range [][]string{v4, v6} {
		for i, name := range family {
			c.used = append(c.used, "SpiderIPPool "+name)
			pool, there := c.sources["SpiderIPPool "+name]
			switch {
			case i > 0:
				spare(d, pool, there, name, family[0])
				continue
			case !there:
				missing = append(missing, name)
				d.note("The SpiderIPPool %s is not in the file. Give it to --from too: its addresses are missing.", name)
				continue
			}
			s, notes, err := spiderPool(pool)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", pool, err)
			}
			subnets, comments, names = append(subnets, s), append(comments, notes...), append(names, name)
			if r, ok := pool.spec.whole("routes").([]any); ok {
				routes = append(routes, r...)
			}
		}
	}
	switch {
	case len(subnets) > 0:
		return c.poolIPAM(d, names[0], comments, subnets, routes)
	case len(missing) > 0:
		return ordered{{"type", "roce-ipam"}, {"railPool", label(missing[0])}}, nil
	}
	d.note("It names no pool, and so uses Spiderpool's default. Write a RailPool, and its name as ipam.railPool below.")
	return ordered{{"type", "roce-ipam"}, {"railPool", label(o.Metadata.Name)}}, nil
}

// spare says what to do about a pool that is not the first of its family.
func spare(d *Document, pool object, there bool, name, first string) {
	if !there {
		d.note("Dropped: the pool %s, which Spiderpool uses when %s is full. It is not in the file. Add its ranges to the RailPool if they are in its subnet.", name, first)
		return
	}
	if nodes := pool.spec.list("nodeName"); len(nodes) > 0 {
		d.note("Problem: the pool %s is for the node %s only, and is dropped. Write a RailPool with spec.racks, one for each node, and rackLabel "+
			"kubernetes.io/hostname (docs/railpool.md).", name, strings.Join(nodes, ", "))
		return
	}
	d.note("Dropped: the pool %s, which Spiderpool uses when %s is full. Add its ranges to the RailPool if they are in its subnet.", name, first)
}

func spiderPool(pool object) (block.Subnet, []string, error) {
	var d Document
	d.note("%s: its addresses. Nodes claim blocks of them, and pods start without a request to the API server.", pool)
	out := block.Subnet{Ranges: pool.spec.list("ips"), Exclude: pool.spec.list("excludeIPs"), Gateway: pool.spec.str("gateway")}
	s, notes, err := subnet(pool.spec.str("subnet"))
	if err != nil {
		return block.Subnet{}, nil, err
	}
	out.Subnet = s
	d.Comments = append(d.Comments, notes...)
	pool.spec.drop(&d, "SpiderIPPool")
	pool.spec.number("ipVersion") // the subnet says it
	pool.spec.whole("routes")     // for the network
	pool.spec.rest(&d)
	return out, d.Comments, nil
}

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
	l := chain{d: &d, macvlan: first == "macvlan", sysctl: map[string]any{}}
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
	all := ordered{{"plugins", out}}
	if one, ok := out[0].(ordered); ok && len(out) == 1 {
		all = one
	}
	c.addNetwork(d, o, o.Metadata.Namespace, "", all)
	return nil
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
	return out.with("ipam", withRail(ipam))
}

// chain is what follows the first plugin of a list.
type chain struct {
	d       *Document
	macvlan bool           // roce replaces the first plugin
	mtu     any            // that tuning gives the interface in the end, for roce
	sysctl  map[string]any // for roce
	link    ordered        // hostLink, for roce
	rest    []any          // plugins that stay
}

func (l *chain) add(p *fields) {
	switch kind := p.str("type"); kind {
	case "sbr":
		l.d.note("Dropped: sbr. roce makes a table and a rule for each address. Behind roce, sbr would move the routes away, and CHECK would fail.")
		p.drop(l.d, "sbr")
	case "rdma":
		l.d.note("Dropped: rdma. roce moves the RDMA device of the interface into the pod in exclusive mode, and back.")
	case "coordinator", "ifacer":
		l.d.note("Dropped: %s of Spiderpool. roce makes tables and rules, and checks the gateway and address conflicts.", kind)
		l.link = append(l.link, coordinator(l.d, p, l.macvlan)...)
	case "tuning":
		l.tuning(p)
	default:
		l.d.note("%s stays, behind roce.", kind)
		l.rest = append(l.rest, p.all)
	}
}

// tuning takes over the settings of the interface. What else tuning does stays.
func (l *chain) tuning(p *fields) {
	other := map[string]any{}
	for key, value := range p.object("sysctl").all {
		trees := []string{"net.ipv4.conf.IFNAME.", "net.ipv6.conf.IFNAME.", "net.ipv4.neigh.IFNAME.", "net.ipv6.neigh.IFNAME."}
		if slices.ContainsFunc(trees, func(t string) bool { return strings.HasPrefix(key, t) }) {
			l.sysctl[key] = value
		} else {
			other[key] = value
		}
	}
	rest := ordered{}.with("sysctl", other)
	for _, key := range slices.Sorted(maps.Keys(p.all)) {
		switch {
		case key == "mtu" && l.macvlan:
			l.mtu = p.all[key]
			l.d.note("tuning: roce sets the MTU.")
		case key != "type" && key != "sysctl" && key != "name" && key != "cniVersion":
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
		v := macvlan.whole(key)
		if key == "mtu" && l.mtu != nil {
			v = l.mtu
		}
		if v != nil {
			out = append(out, member{key, v})
		}
	}
	return append(out.with("sysctl", l.sysctl), l.link...).with("ipam", ipam)
}

// macvlanNetwork converts a network of NVIDIA's network operator.
func (c *converter) macvlanNetwork(o object) error {
	var d Document
	d.note("%s: roce replaces macvlan. The operator made the NetworkAttachmentDefinition; now it is yours.", o)
	ipam, err := c.nvidiaIPAM(&d, o)
	if err != nil {
		return err
	}
	config := ordered{{"type", "roce"}}.with("master", o.spec.str("master")).with("mode", o.spec.str("mode")).with("mtu", o.spec.number("mtu")).with("ipam", ipam)
	namespace := o.spec.str("networkNamespace")
	o.spec.rest(&d)
	c.addNetwork(d, o, namespace, "", config)
	return nil
}

// hostDeviceNetwork converts a network with whole devices: host-device stays, and roce
// follows it.
func (c *converter) hostDeviceNetwork(o object) error {
	var d Document
	d.note("%s: host-device stays the plugin that moves the device into the pod, and roce adopts it: table and rules, gateway check, RDMA device. "+
		"It needs Ethernet: a device of InfiniBand must stay with the operator.", o)
	ipam, err := c.nvidiaIPAM(&d, o)
	if err != nil {
		return err
	}
	resource := o.spec.str("resourceName")
	if resource != "" && !strings.HasPrefix(resource, "nvidia.com/") { // as the operator does
		resource = "nvidia.com/" + resource
	}
	namespace := o.spec.str("networkNamespace")
	o.spec.rest(&d)
	c.addNetwork(d, o, namespace, resource, ordered{{"plugins", []ordered{vf("host-device", 0, ipam), {{"type", "roce"}}}}})
	return nil
}

// nvidiaIPAM converts the ipam object, which is a text.
func (c *converter) nvidiaIPAM(d *Document, o object) (any, error) {
	var in map[string]any
	if text := o.spec.str("ipam"); text != "" {
		if err := json.Unmarshal([]byte(text), &in); err != nil {
			return nil, fmt.Errorf("spec.ipam: %w", err)
		}
	}
	ipam := newFields("spec.ipam.", in)
	out, err := c.ipam(d, o, ipam)
	ipam.rest(d)
	return out, err
}
