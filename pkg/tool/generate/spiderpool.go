// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// spiderMultusConfig converts the networks of Spiderpool.
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
	mode := o.spec.object("coordinator").str("mode")
	resource := cmp.Or(part.str("resourceName"), part.str("rdmaResourceName"))
	spiderDropped(&d, o, part, resource)
	head := ordered{{"cniVersion", cniVersion}, {"name", o.Metadata.Name}}
	if kind == "sriov" {
		d.note("sriov stays the plugin that makes the interface, and roce adopts it.")
		first := vf("sriov", part.number("vlanID"), ipam)
		o.spec.rest(&d)
		return c.addNetwork(d, o, o.Metadata.Namespace, resource, append(head, member{"plugins", []ordered{first, {{"type", "roce"}}}}))
	}
	master := spiderMaster(&d, part)
	if master == "" {
		return fmt.Errorf("%s has no master", kind)
	}
	head = append(head, member{"type", "roce"}, member{"master", master})
	if kind == "ipvlan" {
		head = append(head, member{"child", "ipvlan"})
	}
	if vlan := part.number("vlanID"); vlan != 0 {
		head = append(head, member{"vlan", vlan})
	}
	if mtu := part.number("mtu"); mtu != 0 {
		head = append(head, member{"mtu", mtu})
	}
	if mode == "underlay" {
		d.note("coordinator.mode underlay: the pod has no other network, so hostLink carries probes of the kubelet, ClusterIPs and DNS (docs/default-network.md).")
		head = append(head, member{"hostLink", ordered{{"routes", []string{"auto"}}}})
	}
	o.spec.rest(&d)
	return c.addNetwork(d, o, o.Metadata.Namespace, "", append(head, member{"ipam", ipam}))
}

// spiderDropped says what of Spiderpool nothing replaces.
func spiderDropped(d *Document, o object, part *fields, resource string) {
	o.spec.drop(d, map[string]string{
		"coordinator":       "roce makes the tables and rules, and checks the gateway and address conflicts, by itself",
		"enableCoordinator": "roce always makes tables and rules",
		"disableIPAM":       "write ipam into the network, or leave it out",
		"chainCNIJsonData":  "write these plugins behind roce in the list",
	})
	o.spec.object("coordinator").done()
	part.drop(d, map[string]string{
		"enableRdma": "roce finds the RDMA device of the NIC by itself", "rdmaIsolation": "roce moves the device in exclusive mode by itself",
		"rdmaResourceName": "the pod requests the resource of the device plugin, as before",
		"minTxRateMbps":    "write it into the configuration of sriov below", "maxTxRateMbps": "write it into the configuration of sriov below",
	})
	for _, key := range []string{"rdma-resource-inject", "network-resource-inject"} {
		if o.Metadata.Annotations["cni.spidernet.io/"+key] != "" {
			d.note("Problem: Spiderpool put this network and its resource into pods with the annotation cni.spidernet.io/%s, and nothing does so now. Such pods need "+
				"the annotation k8s.v1.cni.cncf.io/networks: %s, and the limit %s: 1.", key, o.Metadata.Name, cmp.Or(resource, "RESOURCE of the device plugin"))
		}
	}
}

// vf returns the configuration of the plugin that makes the interface.
func vf(plugin string, vlan int, ipam any) ordered {
	out := ordered{{"type", plugin}}
	if vlan != 0 {
		out = append(out, member{"vlan", vlan})
	}
	if ipam != nil {
		out = append(out, member{"ipam", withRail(ipam)})
	}
	return out
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
	name := bond.str("name")
	bond.done()
	switch len(masters) {
	case 0:
		return ""
	case 1:
		return masters[0]
	}
	name = cmp.Or(name, "bond0")
	d.note("master: Spiderpool made the bond %s of %s when a pod started. Make it in the network configuration of the node (netplan, NetworkManager).",
		name, strings.Join(masters, " and "))
	return name
}

// spiderIPAM returns the ipam object for pools of Spiderpool, and adds the RailPool.
func (c *converter) spiderIPAM(d *Document, o object, v4, v6 []string) (any, error) {
	var subnets []block.Subnet
	var comments, names []string
	var routes []any
	for _, family := range [][]string{v4, v6} {
		if len(family) == 0 {
			continue
		}
		for i, name := range family {
			c.used = append(c.used, "SpiderIPPool "+name)
			pool, there := c.sources["SpiderIPPool "+name]
			switch {
			case !there && i == 0:
				d.note("The SpiderIPPool %s is not in the file. Give it to --from too: the RailPool of that name is missing.", name)
				return ordered{{"type", "roce-ipam"}, {"railPool", label(name)}}, nil
			case i > 0 && len(pool.spec.list("nodeName")) > 0:
				d.note("Problem: the pool %s is for the node %s only, and is dropped. Write a RailPool with spec.racks, one for each node, and rackLabel "+
					"kubernetes.io/hostname (docs/cluster.md).", name, strings.Join(pool.spec.list("nodeName"), ", "))
				continue
			case i > 0:
				d.note("Dropped: the pool %s, which Spiderpool uses when %s is full. Add its ranges to the RailPool if they are in its subnet.", name, family[0])
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
	if len(subnets) == 0 {
		d.note("It names no pool, and so uses Spiderpool's default. Write a RailPool, and its name as ipam.railPool below.")
		return ordered{{"type", "roce-ipam"}, {"railPool", label(o.Metadata.Name)}}, nil
	}
	var all any
	if len(routes) > 0 {
		all = routes
	}
	return c.poolIPAM(d, names[0], comments, subnets, all)
}

// spiderPool converts the addresses of a SpiderIPPool.
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
	pool.spec.drop(&d, map[string]string{
		"podAffinity": "a network is for the pods that name it", "namespaceAffinity": "a network is for the pods of its namespace",
		"namespaceName": "a network is for the pods of its namespace", "multusName": "the network names the pool",
		"nodeName": "write a label of these nodes as spec.nodeSelector", "nodeAffinity": "write its labels as spec.nodeSelector",
		"default": "each network names its pool", "vlan": "the network has the VLAN", "disable": "do not apply the RailPool",
	})
	pool.spec.number("ipVersion") // the subnet says it
	pool.spec.whole("routes")     // for the network
	pool.spec.rest(&d)
	return out, d.Comments, nil
}
