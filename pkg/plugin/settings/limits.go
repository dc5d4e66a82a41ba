// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package settings

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Limits are what the networks of the pods of a namespace may ask for. What is nil
// does not limit. Lists of names hold patterns, in the syntax of path.Match.
type Limits struct {
	Masters          *Masters
	Modes            []string
	IPAMTypes        []string
	Pools, RailPools []string
	RequestAddresses *bool
	RequestMAC       *bool
	HostLink         *bool
	Metadata         bool     // whether a route of hostLink may lead to the metadata service of a cloud
	Sysctl           []string // such as net.ipv4.conf.IFNAME.arp_filter
	// ProbeRequired says that both checks of the wire must be able to fail an ADD.
	ProbeRequired bool
	BCQueueLen    *uint32 // the most
	// VLANs are those on which the pods may be. Without it there are none: who chooses a
	// VLAN leaves the network in which the administrator has put the NIC.
	VLANs []VLANs
}

// VLANs are the VLANs from First to Last.
type VLANs struct{ First, Last int }

// String returns the text as the policy has it.
func (v VLANs) String() string {
	if v.First == v.Last {
		return strconv.Itoa(v.First)
	}
	return fmt.Sprintf("%d-%d", v.First, v.Last)
}

// Masters are the host's NICs that a network may stand on: with one of the names and
// of one of the vendors.
type Masters struct{ IfNames, Vendors []string }

// Of returns the limits of a namespace: its own, or those of all others, "*".
func (n Node) Of(namespace string) Limits {
	if l, ok := n.Namespaces[namespace]; ok {
		return l
	}
	return n.Namespaces["*"]
}

// entry returns the key of the limits of a namespace, or the key to write.
func (n Node) entry(namespace string) string {
	_, own := n.Namespaces[namespace]
	if _, all := n.Namespaces["*"]; namespace == "" || all && !own {
		return "*"
	}
	return namespace
}

// Master says whether the pods of a namespace may use a NIC of the host. vendors has
// those of the NIC, and of all that it stands on. The error is BadConfig.
func (n Node) Master(namespace string, nic conf.LinkName, vendors []string) error {
	m, f := n.Of(namespace).Masters, &strict.Faults{}
	if m == nil {
		return nil
	}
	c := check{n, namespace, f}
	c.named("master", string(nic), "masters.ifNames", m.IfNames)
	if m.Vendors != nil && len(vendors) == 0 {
		c.fault("master", string(nic)+", which has no vendor,", "masters.vendors", m.Vendors)
	}
	for _, v := range vendors {
		if m.Vendors != nil && !slices.Contains(m.Vendors, v) {
			c.fault("master", string(nic)+" of vendor "+v, "masters.vendors", m.Vendors)
		}
	}
	return f.Err(operation, n.Path)
}

type check struct {
	node      Node
	namespace string
	faults    *strict.Faults
}

// limits reports what a request asks for and its namespace may not have. What a
// request is not about is not limited: roce-ipam knows no mode, and an interface of
// another plugin has none.
func (c check) limits(r conf.Request, l Limits) {
	if r.Prev == nil {
		c.named("mode", string(r.Mode), "modes", l.Modes)
	}
	c.named("ipam.type", r.IPAM.Type, "ipamTypes", l.IPAMTypes)
	if r.IPAM.RailPool != nil {
		c.named("ipam.railPool", r.IPAM.RailPool.Name, "railPools", l.RailPools)
	} else {
		c.named("ipam.pool", r.IPAM.Pool, "pools", l.Pools)
	}
	for _, s := range r.Sysctl {
		key := "net." + strings.ReplaceAll(s.Tree, "/", ".") + ".IFNAME." + s.Key
		c.named("sysctl", key, "sysctl", l.Sysctl)
	}
	if l.RequestMAC != nil && !*l.RequestMAC && r.MAC != (conf.MAC{}) {
		c.no("mac", "requestMAC")
	}
	if l.RequestAddresses != nil && !*l.RequestAddresses && len(r.IPAM.Requested) > 0 {
		c.no("requested address", "requestAddresses")
	}
	if r.HostLink != nil {
		c.link(r, l)
	}
	if r.VLAN != 0 {
		c.vlan(r.VLAN, l.VLANs)
	}
	if l.BCQueueLen != nil && r.BCQueueLen > *l.BCQueueLen {
		c.faults.Add(cnierr.BadConfig, "bcqueuelen", c.hint("bcqueuelen"), "%d is more than bcqueuelen of namespace %q, %d", r.BCQueueLen, c.namespace, *l.BCQueueLen)
	}
	if l.ProbeRequired {
		c.probe("probe.conflict.mode", r.Probe.Conflict.Mode)
		c.probe("probe.gateway.mode", r.Probe.Gateway.Mode)
	}
}

func (c check) probe(key string, mode conf.Severity) {
	if mode != "" && mode != conf.Require {
		c.fault(key, string(mode), "probe", []string{"required"})
	}
}

// link reports a link between pod and node that the namespace may not have. The node sends
// its own traffic for the pod's address through the link. So who chooses the address can
// take the node's traffic to any address. An administrator chooses those of a RailPool.
func (c check) link(r conf.Request, l Limits) {
	switch {
	case l.HostLink != nil && !*l.HostLink:
		c.no("hostLink", "hostLink")
	case l.HostLink == nil && r.IPAM.RailPool == nil:
		c.faults.Add(cnierr.BadConfig, "hostLink", "use ipam.railPool, or "+c.hint("hostLink"),
			"the addresses are of no RailPool, and hostLink is not true for namespace %q: the node would send its own traffic for such an address to the pod", c.namespace)
	}
	for _, p := range r.HostLink.Routes {
		if conf.Metadata(p) && !l.Metadata {
			c.faults.Add(cnierr.BadConfig, "hostLink.routes", c.hint("metadata"),
				"%s leads to the metadata service of a cloud, which gives the pod the credentials of the node, and metadata is not true for namespace %q", p, c.namespace)
		}
	}
}

func (c check) vlan(id int, allowed []VLANs) {
	texts := make([]string, 0, len(allowed))
	for _, v := range allowed {
		if v.First <= id && id <= v.Last {
			return
		}
		texts = append(texts, v.String())
	}
	if len(texts) == 0 {
		texts = []string{"none"}
	}
	c.fault("vlan", strconv.Itoa(id), "vlans", texts)
}

// named reports a name that none of the patterns allows; "" is none, and without
// patterns there is no limit.
func (c check) named(key, name, limit string, patterns []string) {
	if name != "" && patterns != nil && !oneOf(name, patterns) {
		c.fault(key, name, limit, patterns)
	}
}

func (c check) fault(key, value, limit string, allowed []string) {
	c.faults.Add(cnierr.BadConfig, key, c.hint(limit), "%q is not in %s of namespace %q: %s", value, limit, c.namespace, strings.Join(allowed, ", "))
}

func (c check) no(key, limit string) {
	c.faults.Add(cnierr.BadConfig, key, c.hint(limit), "%s is false for namespace %q", limit, c.namespace)
}

func (c check) hint(limit string) string {
	return "change the network, or ask the node's administrator to change namespaces." + c.node.entry(c.namespace) + "." + limit + " in " + path.Base(c.node.Path)
}

func oneOf(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name)
		return ok
	})
}
