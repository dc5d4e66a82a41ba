// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// layer is one package of ours and what of ours it may import.
type layer struct {
	pkg string
	may []string
}

// importMap has every package below pkg, from the bottom up. Programs, tests
// and what is below integration may import anything.
var importMap = []layer{
	{"pkg/base/cnierr", nil},
	{"pkg/base/netrange", nil},
	{"pkg/base/shell", nil},
	{"pkg/base/trusted", nil},
	{"pkg/tool/redact", nil},
	{"pkg/base/strict", []string{"pkg/base/cnierr"}},
	{"pkg/plugin/conf/chain", []string{"pkg/base/cnierr", "pkg/base/strict"}},
	{"pkg/plugin/conf/pool", []string{"pkg/base/cnierr", "pkg/base/netrange", "pkg/base/strict"}},
	{"pkg/plugin/conf", []string{"pkg/base/cnierr", "pkg/base/netrange", "pkg/base/strict", "pkg/plugin/conf/chain", "pkg/plugin/conf/pool"}},
	{"pkg/plugin/policy", []string{"pkg/base/cnierr", "pkg/base/trusted", "pkg/base/strict", "pkg/plugin/conf"}},
	{"pkg/plugin/plan", []string{"pkg/base/cnierr", "pkg/base/shell", "pkg/base/netrange", "pkg/plugin/conf", "pkg/plugin/conf/chain"}},
	{"pkg/plugin/result", []string{"pkg/base/cnierr", "pkg/base/netrange", "pkg/plugin/conf", "pkg/plugin/conf/chain", "pkg/plugin/plan"}},
	{"pkg/plugin/apply", []string{"pkg/base/cnierr", "pkg/plugin/plan"}},
	{"pkg/base/nlsock", nil},
	{"pkg/plugin/rdma/nldev", []string{"pkg/base/nlsock"}},
	{"pkg/plugin/kernel/rtnl", []string{"pkg/base/nlsock"}},
	{"pkg/plugin/kernel/parent", []string{"pkg/base/cnierr", "pkg/base/shell", "pkg/plugin/conf", "pkg/plugin/plan", "pkg/plugin/rdma/nldev", "pkg/plugin/kernel/rtnl"}},
	{"pkg/plugin/kernel/netns", []string{"pkg/base/cnierr", "pkg/plugin/plan"}},
	{"pkg/plugin/kernel/look", []string{"pkg/base/cnierr", "pkg/plugin/conf", "pkg/plugin/plan", "pkg/plugin/kernel/rtnl"}},
	{"pkg/plugin/kernel", []string{"pkg/base/cnierr", "pkg/base/shell", "pkg/plugin/conf", "pkg/plugin/plan", "pkg/plugin/rdma/nldev", "pkg/plugin/kernel/rtnl", "pkg/plugin/kernel/parent", "pkg/plugin/kernel/netns", "pkg/plugin/kernel/look"}},
	{"pkg/plugin/kernel/kerneltest", []string{"pkg/base/cnierr", "pkg/plugin/conf", "pkg/plugin/conf/chain", "pkg/plugin/plan", "pkg/plugin/rdma/nldev", "pkg/plugin/kernel/rtnl", "pkg/plugin/kernel/parent", "pkg/plugin/kernel"}},
	{"pkg/tool/nsscan", []string{"pkg/base/cnierr", "pkg/plugin/plan", "pkg/plugin/kernel/rtnl", "pkg/plugin/kernel/netns", "pkg/plugin/kernel"}},
	{"pkg/plugin/rdma/gidtable", nil},
	{"pkg/plugin/rdma/discover", []string{"pkg/base/cnierr", "pkg/plugin/conf", "pkg/plugin/plan", "pkg/plugin/rdma/nldev"}},
	{"pkg/plugin/rdma", []string{"pkg/base/cnierr", "pkg/base/shell", "pkg/base/trusted", "pkg/plugin/conf", "pkg/plugin/plan", "pkg/base/nlsock", "pkg/plugin/rdma/nldev", "pkg/plugin/rdma/gidtable", "pkg/plugin/rdma/discover"}},
	{"pkg/plugin/probe", []string{"pkg/base/cnierr", "pkg/base/shell", "pkg/plugin/conf", "pkg/plugin/plan"}},
	{"pkg/base/flock", nil},
	{"pkg/base/flock/flocktest", nil},
	{"pkg/plugin/record", []string{"pkg/base/cnierr", "pkg/base/shell", "pkg/base/trusted", "pkg/plugin/conf", "pkg/plugin/plan", "pkg/base/flock"}},
	{"pkg/tool/gids", []string{"pkg/base/cnierr", "pkg/base/shell", "pkg/plugin/conf", "pkg/plugin/plan", "pkg/plugin/kernel", "pkg/plugin/kernel/look", "pkg/plugin/rdma", "pkg/plugin/record"}},
	{"pkg/plugin/ipam/kv", nil},
	{"pkg/plugin/ipam/ledger", []string{"pkg/base/cnierr", "pkg/base/shell", "pkg/base/netrange", "pkg/base/trusted", "pkg/plugin/conf/pool", "pkg/plugin/conf", "pkg/base/flock", "pkg/plugin/ipam/kv"}},
	{"pkg/plugin/ipam", []string{"pkg/base/cnierr", "pkg/base/netrange", "pkg/plugin/conf", "pkg/plugin/ipam/ledger"}},
	{"pkg/tool/repair", []string{"pkg/base/cnierr", "pkg/base/netrange", "pkg/plugin/conf", "pkg/tool/nsscan", "pkg/plugin/record", "pkg/plugin/ipam/ledger"}},
	{"pkg/plugin/nodefile", []string{"pkg/base/cnierr", "pkg/base/netrange", "pkg/base/trusted", "pkg/base/strict", "pkg/plugin/conf/pool", "pkg/plugin/conf"}},
	{"pkg/cluster/block", []string{"pkg/base/cnierr", "pkg/base/netrange", "pkg/base/strict", "pkg/plugin/conf/pool"}},
	{"pkg/cluster/block/blocktest", []string{"pkg/cluster/block"}},
	{"pkg/cluster/sticky", []string{"pkg/plugin/conf/pool", "pkg/plugin/nodefile", "pkg/cluster/block"}},
	{"pkg/cluster/sticky/stickytest", []string{"pkg/plugin/nodefile", "pkg/cluster/block", "pkg/cluster/block/blocktest", "pkg/cluster/sticky"}},
	{"pkg/tool/inventory", []string{
		"pkg/base/cnierr", "pkg/plugin/conf", "pkg/plugin/kernel/parent", "pkg/plugin/kernel/rtnl", "pkg/plugin/rdma/discover", "pkg/plugin/rdma/gidtable", "pkg/plugin/rdma/nldev",
	}},
	{"pkg/cluster/fleet", []string{"pkg/tool/inventory"}},
	{"pkg/cluster/kube", []string{"pkg/base/cnierr", "pkg/plugin/conf", "pkg/cluster/block", "pkg/cluster/sticky", "pkg/cluster/fleet"}},
	{"pkg/cluster/agent/pace", nil},
	{"pkg/cluster/agent/grant", []string{"pkg/base/cnierr", "pkg/plugin/conf/pool", "pkg/plugin/ipam/ledger", "pkg/plugin/ipam", "pkg/plugin/nodefile", "pkg/cluster/block", "pkg/cluster/sticky", "pkg/cluster/agent/pace"}},
	{"pkg/cluster/agent", []string{"pkg/base/cnierr", "pkg/plugin/conf/pool", "pkg/plugin/ipam/ledger", "pkg/plugin/ipam", "pkg/plugin/nodefile", "pkg/cluster/block", "pkg/cluster/sticky", "pkg/cluster/agent/pace", "pkg/cluster/agent/grant"}},
	{"pkg/cluster/reconcile", []string{"pkg/base/cnierr", "pkg/base/netrange", "pkg/cluster/block", "pkg/cluster/sticky", "pkg/cluster/agent"}},
	{"pkg/plugin/delegate", []string{"pkg/base/cnierr", "pkg/plugin/conf", "pkg/plugin/plan", "pkg/plugin/result", "pkg/plugin/record"}},
	{"pkg/plugin/lease", []string{
		"pkg/base/cnierr", "pkg/base/netrange", "pkg/plugin/conf", "pkg/plugin/plan", "pkg/plugin/result", "pkg/plugin/record",
		"pkg/plugin/ipam/ledger", "pkg/plugin/ipam", "pkg/plugin/nodefile", "pkg/plugin/delegate",
	}},
	{"pkg/plugin/attach", []string{
		"pkg/base/cnierr", "pkg/plugin/conf", "pkg/plugin/plan", "pkg/plugin/result", "pkg/plugin/apply",
		"pkg/plugin/kernel", "pkg/plugin/rdma", "pkg/plugin/probe", "pkg/plugin/record", "pkg/plugin/lease",
	}},
	{"pkg/tool/lldp", []string{"pkg/base/cnierr", "pkg/plugin/conf"}},
	{"pkg/tool/doctor", []string{
		"pkg/base/cnierr", "pkg/base/trusted", "pkg/base/shell", "pkg/base/netrange", "pkg/plugin/conf", "pkg/plugin/conf/pool", "pkg/tool/inventory", "pkg/plugin/rdma/nldev", "pkg/plugin/rdma/gidtable",
		"pkg/plugin/plan", "pkg/plugin/record", "pkg/plugin/ipam/ledger", "pkg/plugin/ipam", "pkg/plugin/nodefile",
	}},
	{"pkg/tool/verify", []string{
		"pkg/base/cnierr", "pkg/base/shell", "pkg/plugin/conf", "pkg/plugin/plan", "pkg/plugin/kernel/parent", "pkg/plugin/kernel/rtnl", "pkg/plugin/probe", "pkg/tool/doctor",
	}},
	{"pkg/hwtest/recording", []string{"pkg/tool/redact", "pkg/base/nlsock"}},
	{"pkg/hwtest", []string{
		"pkg/base/cnierr", "pkg/base/shell", "pkg/tool/redact", "pkg/plugin/conf", "pkg/base/nlsock", "pkg/plugin/rdma/nldev", "pkg/plugin/kernel/rtnl", "pkg/plugin/kernel/parent",
		"pkg/plugin/rdma/gidtable", "pkg/plugin/rdma/discover", "pkg/plugin/rdma", "pkg/plugin/plan", "pkg/plugin/kernel/netns", "pkg/plugin/kernel", "pkg/plugin/record", "pkg/tool/gids", "pkg/plugin/attach", "pkg/tool/inventory", "pkg/tool/doctor",
		"pkg/tool/verify", "pkg/base/trusted", "pkg/hwtest/recording",
	}},
}

// packages returns what importers get: all but the tests, by directory.
func packages(t *testing.T) map[string][]file {
	t.Helper()
	return byDir(slices.DeleteFunc(slices.Clone(goFiles(t)), file.testFile))
}

// find returns the place of a package in importMap, -1 if it is not there.
func find(pkg string) int {
	return slices.IndexFunc(importMap, func(l layer) bool { return l.pkg == pkg })
}

func TestPackagesImportWhatTheMapAllows(t *testing.T) {
	t.Parallel()
	for dir, files := range packages(t) {
		if below(dir, "cmd/") || below(dir, "integration/") {
			continue
		}
		i := find(dir)
		if i < 0 {
			t.Errorf("%s is not in the import map: add it to importMap in integration/arch/imports_test.go, then make gen", dir)
			continue
		}
		for _, f := range files {
			checkImports(t, f, importMap[i].may)
		}
	}
}

func checkImports(t *testing.T, f file, may []string) {
	t.Helper()
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if below(p, module+"/") && !slices.Contains(may, p[len(module)+1:]) {
			t.Errorf("%s: %s may import of ours %v, not %s: move the code to where both sides can see it, or change the map and say why in docs/adr",
				f.at(spec), f.dir(), may, p)
		}
	}
}

func TestImportMapGoesFromTheBottomUp(t *testing.T) {
	t.Parallel()
	dirs := packages(t)
	for i, l := range importMap {
		for _, p := range l.may {
			if j := find(p); j < 0 || j >= i {
				t.Errorf("importMap lets %s import %s, which does not stand above it", l.pkg, p)
			}
		}
		// An empty directory is a package that is about to be written; git
		// keeps none, so a checkout never has one.
		if _, err := os.Stat(filepath.Join(root, l.pkg)); len(dirs[l.pkg]) == 0 && err != nil {
			t.Errorf("importMap lists %s, which does not exist: remove it, then make gen", l.pkg)
		}
	}
}
