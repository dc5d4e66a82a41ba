// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"fmt"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// spiderMultusConfig converts the networks of Spiderpool.
func (c *converter) spiderMultusConfig(o object) error {
	kind := str(o.Spec, "cniType")
	var d Document
	d.note("%s: one network of roce replaces %s, coordinator and Spiderpool's IPAM.", o, kind)
	part := child(o.Spec, kind)
	pools := child(part, "ippools")
	ipam, err := c.spiderIPAM(&d, o, list(pools, "ipv4"), list(pools, "ipv6"))
	if err != nil {
		return err
	}
	if o.Spec["coordinator"] != nil || o.Spec["enableCoordinator"] != nil {
		d.note("Dropped: coordinator: roce makes the tables and rules, and checks the gateway and address conflicts, by itself.")
	}
	noteDropped(&d, kind+".", part, map[string]string{
		"enableRdma": "roce finds the RDMA device of the NIC by itself", "rdmaIsolation": "roce moves the device in exclusive mode by itself",
		"rdmaResourceName": "the pod requests the resource of the device plugin, as before",
		"minTxRateMbps":    "write it into the configuration of sriov below", "maxTxRateMbps": "write it into the configuration of sriov below",
	})
	if o.Spec["chainCNIJsonData"] != nil {
		d.note("Dropped: chainCNIJsonData. Write these plugins behind roce in the list.")
	}
	head := ordered{{"cniVersion", cniVersion}, {"name", o.Metadata.Name}}
	switch kind {
	case "macvlan":
		master := c.spiderMaster(&d, part)
		if master == "" {
			return fmt.Errorf("macvlan has no master")
		}
		return c.addNetwork(d, o, o.Metadata.Namespace, "", append(head, member{"type", "roce"}, member{"master", master}, member{"ipam", ipam}))
	case "sriov":
		d.note("sriov stays the plugin that makes the interface, and roce adopts it.")
		return c.addNetwork(d, o, o.Metadata.Namespace, str(part, "resourceName"),
			append(head, member{"plugins", []ordered{vf("sriov", part, ipam), {{"type", "roce"}}}}))
	}
	c.kept(o, fmt.Sprintf("roce replaces macvlan and follows sriov, and this is %s", kind))
	return nil
}

// vf returns the configuration of the plugin that makes the interface.
func vf(plugin string, part map[string]any, ipam any) ordered {
	out := ordered{{"type", plugin}}
	if vlan, ok := part["vlanID"].(float64); ok && vlan != 0 {
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

// spiderMaster returns the NIC. Spiderpool can make a bond and a VLAN interface on the
// node; roce makes nothing on the node.
func (c *converter) spiderMaster(d *Document, part map[string]any) string {
	masters := list(part, "master")
	if len(masters) == 0 {
		return ""
	}
	name := masters[0]
	if len(masters) > 1 {
		bond := str(child(part, "bond"), "name")
		if bond == "" {
			bond = "bond0"
		}
		d.note("master: Spiderpool made the bond %s of %s when a pod started. Make it in the network configuration of the node (netplan, NetworkManager).",
			bond, strings.Join(masters, " and "))
		name = bond
	}
	if vlan, ok := part["vlanID"].(float64); ok && vlan != 0 {
		d.note("vlanID: Spiderpool made the interface %s.%.0f when a pod started. Make it in the network configuration of the node.", name, vlan)
		name = fmt.Sprintf("%s.%.0f", name, vlan)
	}
	return name
}

// spiderIPAM returns the ipam object for pools of Spiderpool, and adds the RailPool.
func (c *converter) spiderIPAM(d *Document, o object, v4, v6 []string) (any, error) {
	var subnets []block.Subnet
	var comments, names []string
	var routes []any
	for _, family := range [][]string{v4, v6} {
		if len(family) > 1 {
			d.note("Dropped: the pools %s, which Spiderpool uses when %s is full. Add their ranges to the RailPool if they are in its subnet.",
				strings.Join(family[1:], ", "), family[0])
		}
		if len(family) == 0 {
			continue
		}
		name := family[0]
		c.used = append(c.used, "SpiderIPPool "+name)
		pool, there := c.sources["SpiderIPPool "+name]
		if !there {
			d.note("The SpiderIPPool %s is not in the file. Give it to --from too: the RailPool of that name is missing.", name)
			return ordered{{"type", "roce-ipam"}, {"railPool", label(name)}}, nil
		}
		s, notes, err := spiderPool(pool)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pool, err)
		}
		subnets, comments, names = append(subnets, s), append(comments, notes...), append(names, name)
		routes = append(routes, anys(pool.Spec, "routes")...)
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
	s, notes, err := subnet(str(pool.Spec, "subnet"))
	if err != nil {
		return block.Subnet{}, nil, err
	}
	d.Comments = append(d.Comments, notes...)
	noteDropped(&d, "", pool.Spec, map[string]string{
		"podAffinity": "a network is for the pods that name it", "namespaceAffinity": "a network is for the pods of its namespace",
		"namespaceName": "a network is for the pods of its namespace", "multusName": "the network names the pool",
		"nodeName": "write a label of these nodes as spec.nodeSelector", "nodeAffinity": "write its labels as spec.nodeSelector",
		"default": "each network names its pool", "vlan": "the master of the network has the VLAN", "disable": "do not apply the RailPool",
	})
	return block.Subnet{
		Subnet: s, Ranges: list(pool.Spec, "ips"), Exclude: list(pool.Spec, "excludeIPs"), Gateway: str(pool.Spec, "gateway"),
	}, d.Comments, nil
}
