// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package settings

import (
	"bytes"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// IPAMPlugin says whether a DEL or a GC may call the IPAM plugin of a configuration.
// If namespace is "", it is enough that one namespace may use the plugin: GC and
// STATUS are about no pod. The error is BadConfig.
func (n Node) IPAMPlugin(namespace, kind string, config []byte) error {
	f := &strict.Faults{}
	allowed := n.Of(namespace).ipam(kind)
	if namespace == "" {
		allowed = n.anywhere(func(l Limits) bool { return l.ipam(kind) })
	}
	if !allowed {
		check{n, namespace, f}.fault("ipam.type", kind, "ipamTypes", n.Of(namespace).IPAMTypes)
	}
	n.another(kind, config, f)
	return f.Err(operation, n.Path)
}

func (l Limits) ipam(kind string) bool { return l.IPAMTypes == nil || oneOf(kind, l.IPAMTypes) }

func (n Node) anywhere(ok func(Limits) bool) bool {
	return ok(n.Namespaces["*"]) || slices.ContainsFunc(slices.Collect(maps.Values(n.Namespaces)), ok)
}

// otherPlugins are plugins that are installed in the same folder and lease no addresses.
// As an IPAM plugin they would change links of the node.
func otherPlugins() []string {
	return []string{
		"bandwidth", "bridge", "dummy", "firewall", "host-device", "ib-sriov", "ipvlan", "loopback", "macvlan", "multus", "multus-shim", "ovs",
		"portmap", "ptp", "rdma", "roce-env", "rocectl", "sbr", "sriov", "tap", "tuning", "vlan", "vrf",
	}
}

func (n Node) another(kind string, config []byte, f *strict.Faults) {
	if slices.Contains(otherPlugins(), kind) {
		f.Add(cnierr.BadConfig, "ipam.type", "name a plugin that leases addresses, such as "+conf.PoolType, "%q is not an IPAM plugin", kind)
	}
	n.ipamPaths(config, f)
}

// ipamPaths reports the paths in "ipam" of a configuration that another IPAM plugin
// may not use. That plugin runs as root, and opens them as they are.
func (n Node) ipamPaths(config []byte, f *strict.Faults) {
	_ = eachText(json.NewDecoder(bytes.NewReader(config)), nil, func(keys []string, text string) { // conf has read it
		if len(keys) < 2 || !strings.EqualFold(keys[0], "ipam") || !isPath(keys[len(keys)-1], text) {
			return
		}
		in := func(dir string) bool { return text == dir || strings.HasPrefix(text, dir+"/") }
		if filepath.Clean(text) != text || !slices.ContainsFunc(n.IPAMPaths, in) {
			f.Add(cnierr.BadConfig, strings.Join(keys, "."), "use a path that ipamPaths of "+filepath.Base(n.Path)+" allows, or ask the node's administrator to add the folder there",
				"%q is not in ipamPaths: %s", text, strings.Join(n.IPAMPaths, ", "))
		}
	})
}

// isPath says whether an IPAM plugin may use a text as a path: an absolute one, or
// the value of a key that ends as those of paths do, such as dataDir of host-local,
// daemonSocketPath of dhcp, and log_file and kubeconfig of whereabouts.
func isPath(key, text string) bool {
	key = strings.ToLower(strings.ToUpper(key)) // as encoding/json compares keys: ſ is s
	ends := func(end string) bool { return strings.HasSuffix(key, end) }
	return strings.HasPrefix(text, "/") || text != "" && slices.ContainsFunc([]string{"dir", "path", "conf", "config", "socket", "_file", "logfile"}, ends)
}

// eachText calls fn with each text of a JSON document, and with the keys that lead to
// it. It sees also those of equal keys, of which decoders use one or the other.
func eachText(d *json.Decoder, keys []string, fn func(keys []string, text string)) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if text, ok := t.(string); ok {
		fn(keys, text)
	}
	start, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	for d.More() {
		in := keys
		if start == '{' {
			key, err := d.Token()
			if err != nil {
				return err
			}
			in = append(slices.Clip(keys), key.(string))
		}
		if err := eachText(d, in, fn); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}
