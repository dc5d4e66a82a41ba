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

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

const configDir = "etc/cni/net.d"

// cniConfig asks whether the runtime calls Multus, or roce itself. A runtime uses the
// first file of the folder, in the order of names.
func cniConfig() Check {
	return Check{
		Name: "cni-config",
		Asks: "does the runtime call Multus (or roce itself)?",
		Why:  "pods start without their RoCE interfaces, and nothing says so: the annotation k8s.v1.cni.cncf.io/networks is for Multus to read",
		look: func(_ context.Context, n Node) []report.Finding {
			entries, err := fs.ReadDir(n.Root, configDir) // in the order of names
			if isNotExist(err) {
				return []report.Finding{cannotTell("there is no folder /"+configDir, "the folder that the runtime reads: conf_dir in the configuration of containerd, network_dir in that of CRI-O")}
			}
			if err != nil {
				return []report.Finding{cannotTell(err.Error(), "the right to read /"+configDir)}
			}
			var others []string
			for _, e := range entries {
				if !slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(e.Name())) {
					continue
				}
				types, err := n.pluginTypes(path.Join(configDir, e.Name()))
				if err != nil {
					return []report.Finding{cannotTell(err.Error(), "a file that can be read as CNI configuration")}
				}
				calls := slices.ContainsFunc(types, func(t string) bool { return slices.Contains([]string{"multus", "multus-shim", "roce"}, t) })
				if calls {
					return []report.Finding{called(e.Name(), types, others)}
				}
				others = append(others, e.Name())
			}
			return []report.Finding{problem("no file of /"+configDir+" calls Multus", "kubectl apply -f https://raw.githubusercontent.com/k8snetworkplumbingwg/multus-cni/master/deployments/multus-daemonset-thick.yml")}
		},
	}
}

// called judges the file that calls Multus or roce: it counts if no other is before it.
func called(name string, types, before []string) report.Finding {
	if len(before) == 0 {
		return ok("%s calls %s", name, types[0])
	}
	// Behind the file that must be first, and before all others: Multus takes the network
	// of the pods from the next file.
	fix := shell.Command("mv %s %s", "/"+path.Join(configDir, before[0]), "/"+path.Join(configDir, name+"-"+before[0]))
	if types[0] != "roce" {
		fix += " && kubectl -n kube-system rollout restart daemonset kube-multus-ds"
	}
	return problem(fmt.Sprintf("the runtime uses %s, which comes before %s", before[0], name), fix+"  # and in the configuration of the plugin that writes it")
}

// cniLists asks whether a list of plugins has sbr behind roce.
func cniLists() Check {
	return Check{
		Name: "cni-lists",
		Asks: "is sbr behind roce in a list of plugins on the node?",
		Why:  "its rules win over those of roce, and it moves the route to the subnet: programs that bind no address cannot reach the rail",
		look: func(_ context.Context, n Node) []report.Finding {
			entries, err := fs.ReadDir(n.Root, configDir)
			if err != nil && !isNotExist(err) {
				return []report.Finding{cannotTell(err.Error(), "the right to read /"+configDir)}
			}
			var out []report.Finding
			for _, e := range entries {
				if path.Ext(e.Name()) != ".conflist" {
					continue
				}
				types, err := n.pluginTypes(path.Join(configDir, e.Name()))
				if err != nil {
					return []report.Finding{cannotTell(err.Error(), "a file that can be read as CNI configuration")}
				}
				if roce := slices.Index(types, "roce"); roce >= 0 && slices.Contains(types[roce:], "sbr") {
					file := "/" + path.Join(configDir, e.Name())
					out = append(out, problem("sbr is behind roce, which has rules and tables of its own",
						shell.Command(`jq 'del(.plugins[] | select(.type == "sbr"))' %s > %s && mv %s %s  # then restart the pods`, file, file+".new", file+".new", file)).About(e.Name()))
				}
			}
			if len(out) == 0 {
				return []report.Finding{ok("no file of /%s has sbr behind roce; rocectl plan tells it of a NetworkAttachmentDefinition", configDir)}
			}
			return out
		},
	}
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
