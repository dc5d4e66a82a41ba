// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
)

const configDir = "etc/cni/net.d"

// cniConfig asks whether the runtime calls Multus, or roce itself. A runtime uses the
// first file of the folder, in the order of names.
func cniConfig() Check {
	return Check{
		Name: "cni-config",
		Asks: "does the runtime call Multus (or roce itself)?",
		Why:  "pods start without their RoCE interfaces, and nothing says so: the annotation k8s.v1.cni.cncf.io/networks is for Multus to read",
		look: func(_ context.Context, n Node) []Finding {
			entries, err := fs.ReadDir(n.Root, configDir) // in the order of names
			if isNotExist(err) {
				return []Finding{cannotTell("there is no folder /"+configDir, "the folder that the runtime reads: conf_dir in the configuration of containerd, network_dir in that of CRI-O")}
			}
			if err != nil {
				return []Finding{cannotTell(err.Error(), "the right to read /"+configDir)}
			}
			var others []string
			for _, e := range entries {
				if !slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(e.Name())) {
					continue
				}
				types, err := n.pluginTypes(path.Join(configDir, e.Name()))
				if err != nil {
					return []Finding{cannotTell(err.Error(), "a file that can be read as CNI configuration")}
				}
				calls := slices.ContainsFunc(types, func(t string) bool { return slices.Contains([]string{"multus", "multus-shim", "roce"}, t) })
				if calls {
					return []Finding{called(e.Name(), types, others)}
				}
				others = append(others, e.Name())
			}
			return []Finding{problem("no file of /"+configDir+" calls Multus", "kubectl apply -f https://raw.githubusercontent.com/k8snetworkplumbingwg/multus-cni/master/deployments/multus-daemonset-thick.yml")}
		},
	}
}

// called judges the file that calls Multus or roce: it counts if no other is before it.
func called(name string, types, before []string) Finding {
	if len(before) > 0 {
		return problem(fmt.Sprintf("the runtime uses %s, which comes before %s", before[0], name),
			"kubectl -n kube-system rollout restart daemonset kube-multus-ds  # Multus writes its file again; its name must sort before all others")
	}
	return ok("%s calls %s", name, types[0])
}

// pluginTypes returns the plugins of a configuration or a list.
func (n Node) pluginTypes(name string) ([]string, error) {
	text, err := n.text(name)
	if err != nil {
		return nil, err
	}
	var c struct {
		Type    string
		Plugins []struct{ Type string }
	}
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return nil, fmt.Errorf("/%s: %w", name, err)
	}
	types := []string{}
	if c.Type != "" {
		types = append(types, c.Type)
	}
	for _, p := range c.Plugins {
		types = append(types, p.Type)
	}
	return types, nil
}
