// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unwanted is what a plugin must not link. A path that ends in "/" stands for
// everything below it.
type unwanted struct {
	path   string
	reason string
	but    []string // packages that may import it, with all below them
}

var unwantedInPlugins = []unwanted{
	{"k8s.io/", "client-go takes 31 MB and the plugin starts for every pod: only the agent talks to Kubernetes", nil},
	{"sigs.k8s.io/yaml", "a runtime sends JSON: YAML is for people, so for rocectl", nil},
	{"github.com/spf13/cobra", "a CNI plugin has no flags: its input is the environment and standard input", nil},
	{"testing", "a program must not link test code", nil},
	{"github.com/vishvananda/netlink", "only pkg/plugin/kernel talks netlink, with its package nl: docs/adr/0022", []string{module + "/pkg/plugin/kernel"}},
	{"github.com/vishvananda/netlink/nl", "only pkg/plugin/kernel talks netlink", []string{module + "/pkg/plugin/kernel", "github.com/vishvananda/netlink"}},
	{"github.com/vishvananda/netns", "only pkg/base/netns enters namespaces", []string{
		module + "/pkg/base/netns", "github.com/vishvananda/netlink",
		"github.com/containernetworking/cni/pkg/ns", // skel refuses the host's namespace, when ADD is over
	}},
	// libcni's pkg/invoke, which runs other IPAM plugins, passes trace headers
	// on through this package: 1.7 MB and 0.5 ms at every start, measured.
	{"net/http", "an attachment needs no HTTP, and a start must stay cheap", []string{"net/http", "go.opentelemetry.io/otel/propagation"}},
}

// unwantedInIPAM is what roce-ipam must not link besides: it leases addresses, and
// has no link to ask the wire on.
var unwantedInIPAM = []unwanted{
	{module + "/pkg/plugin/probe", "roce-ipam cannot probe for conflicts: at its turn there may be no link", nil},
	{module + "/pkg/plugin/rdma", "roce-ipam knows no RDMA device", []string{module + "/pkg/plugin/rdma"}},
	{module + "/pkg/plugin/attach", "roce-ipam makes no attachment: it uses package lease as roce does", nil},
}

func TestPluginsLinkOnlyWhatTheyMay(t *testing.T) {
	t.Parallel()
	for _, program := range plugins(t) {
		importers := map[string][]string{}
		for line := range strings.Lines(goTool(t, "list", "-deps", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./cmd/"+program)) {
			pkg, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
			for _, p := range strings.Fields(imports) {
				importers[p] = append(importers[p], pkg)
			}
		}
		rules := unwantedInPlugins
		if program == "roce-ipam" {
			rules = slices.Concat(rules, unwantedInIPAM)
		}
		for _, u := range rules {
			for pkg, by := range importers {
				if below(pkg, u.path) {
					reportImporters(t, program, pkg, by, u)
				}
			}
		}
	}
}

// below says whether pkg is path, or is below it if path ends in "/".
func below(pkg, path string) bool {
	return pkg == path || strings.HasSuffix(path, "/") && strings.HasPrefix(pkg, path)
}

func reportImporters(t *testing.T, program, pkg string, by []string, u unwanted) {
	t.Helper()
	for _, importer := range by {
		allowed := slices.ContainsFunc(u.but, func(p string) bool { return importer == p || below(importer, p+"/") })
		if !allowed {
			t.Errorf("%s links %s, imported by %s: %s", program, pkg, importer, u.reason)
		}
	}
}

// TestUnwantedPackagesExist keeps the list honest: a rule about a package that
// was renamed or dropped guards nothing.
func TestUnwantedPackagesExist(t *testing.T) {
	t.Parallel()
	list := []string{"list"}
	for _, u := range slices.Concat(unwantedInPlugins, unwantedInIPAM) {
		for _, p := range append([]string{u.path}, u.but...) {
			if !strings.HasSuffix(p, "/") {
				list = append(list, p)
			}
		}
	}
	goTool(t, list...)
}

const maxPluginBytes = 10_000_000

func TestPluginsAreSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the plugins")
	}
	t.Parallel()
	dir := t.TempDir()
	for _, program := range plugins(t) {
		out := filepath.Join(dir, program)
		goTool(t, "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", out, "./cmd/"+program)
		info, err := os.Stat(out)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.1f MB", program, float64(info.Size())/1e6)
		if info.Size() > maxPluginBytes {
			t.Errorf("%s has %d bytes, want at most %d: go version -m and go list -deps ./cmd/%s tell what came in", program, info.Size(), maxPluginBytes, program)
		}
	}
}

// plugins returns the programs that runtimes start.
func plugins(t *testing.T) []string {
	t.Helper()
	names := []string{"roce", "roce-ipam"}
	dirs := byDir(sources(t))
	return slices.DeleteFunc(names, func(name string) bool {
		if len(dirs["cmd/"+name]) > 0 {
			return false
		}
		// An empty directory is a program that is about to be written.
		if _, err := os.Stat(filepath.Join(root, "cmd", name)); err != nil {
			t.Fatal(err)
		}
		return true
	})
}

// goTool runs the go command in the root as the release build does.
func goTool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}
