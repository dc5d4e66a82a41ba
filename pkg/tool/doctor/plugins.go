// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/containernetworking/plugins/pkg/utils/buildversion"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

const pluginDir = "/opt/cni/bin/"

// cniPlugins asks whether the plugins are where runtimes look for them, and are as
// old as rocectl.
func cniPlugins() Check {
	return Check{
		Name: "cni-plugins",
		Asks: "are roce and roce-ipam installed, in the version of rocectl?",
		Why:  "without the plugin no pod of its networks starts; programs of different versions may not read each other's records",
		look: func(ctx context.Context, n Node) []report.Finding {
			there, err := n.has(strings.Trim(pluginDir, "/"))
			switch {
			case err != nil:
				return []report.Finding{cannotTell(err.Error(), "the right to read "+pluginDir)}
			case !there:
				return []report.Finding{cannotTell("there is no folder "+pluginDir, "the folder that the runtime looks in: bin_dir in the configuration of containerd, plugin_dirs in that of CRI-O")}
			}
			var out []report.Finding
			for _, name := range []string{"roce", "roce-ipam"} {
				out = append(out, n.plugin(ctx, name).About(name))
			}
			return out
		},
	}
}

func (n Node) plugin(ctx context.Context, name string) report.Finding {
	const install = "kubectl -n roce-cni rollout restart daemonset roce-cni-agent  # it installs the plugins; without it: make install"
	path := pluginDir + name
	there, err := n.has(path[1:])
	switch {
	case err != nil:
		return cannotTell(err.Error(), "the right to read "+pluginDir)
	case !there:
		return problem("it is not in "+pluginDir, install)
	}
	out, err := n.Run(ctx, path, "--version")
	if err != nil {
		return cannotTell(fmt.Sprintf("%s cannot be run: %v", path, err), "the right to run it")
	}
	line, _, _ := strings.Cut(out, "\n")
	if want := buildversion.BuildString(name); line != want {
		return problem(fmt.Sprintf("it is %q; this program has the version of %q", line, want), install)
	}
	return ok("%s", line)
}
