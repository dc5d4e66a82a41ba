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
	{"pkg/cnierr", nil},
	{"pkg/netrange", nil},
	{"pkg/shell", nil},
	{"pkg/trusted", nil},
	{"pkg/redact", nil},
	{"pkg/conf/strict", []string{"pkg/cnierr"}},
	{"pkg/conf/chain", []string{"pkg/cnierr", "pkg/conf/strict"}},
	{"pkg/conf/pool", []string{"pkg/cnierr", "pkg/netrange", "pkg/conf/strict"}},
	{"pkg/conf", []string{"pkg/cnierr", "pkg/netrange", "pkg/conf/strict", "pkg/conf/chain", "pkg/conf/pool"}},
	{"pkg/policy", []string{"pkg/cnierr", "pkg/trusted", "pkg/conf/strict", "pkg/conf"}},
	{"pkg/plan", []string{"pkg/cnierr", "pkg/shell", "pkg/netrange", "pkg/conf", "pkg/conf/chain"}},
	{"pkg/result", []string{"pkg/cnierr", "pkg/netrange", "pkg/conf", "pkg/conf/chain", "pkg/plan"}},
	{"pkg/apply", []string{"pkg/cnierr", "pkg/plan"}},
	{"pkg/nlsock", nil},
	{"pkg/rdma/nldev", []string{"pkg/nlsock"}},
	{"pkg/kernel/rtnl", []string{"pkg/nlsock"}},
	{"pkg/kernel/parent", []string{"pkg/cnierr", "pkg/shell", "pkg/conf", "pkg/plan", "pkg/rdma/nldev", "pkg/kernel/rtnl"}},
	{"pkg/kernel/netns", []string{"pkg/cnierr", "pkg/plan"}},
	{"pkg/kernel/look", []string{"pkg/cnierr", "pkg/conf", "pkg/plan", "pkg/kernel/rtnl"}},
	{"pkg/kernel", []string{"pkg/cnierr", "pkg/shell", "pkg/conf", "pkg/plan", "pkg/rdma/nldev", "pkg/kernel/rtnl", "pkg/kernel/parent", "pkg/kernel/netns", "pkg/kernel/look"}},
	{"pkg/kernel/kerneltest", []string{"pkg/cnierr", "pkg/conf", "pkg/conf/chain", "pkg/plan", "pkg/rdma/nldev", "pkg/kernel/rtnl", "pkg/kernel/parent", "pkg/kernel"}},
	{"pkg/kernel/nsscan", []string{"pkg/cnierr", "pkg/plan", "pkg/kernel/rtnl", "pkg/kernel/netns", "pkg/kernel"}},
	{"pkg/rdma/gidtable", nil},
	{"pkg/rdma/discover", []string{"pkg/cnierr", "pkg/conf", "pkg/plan", "pkg/rdma/nldev"}},
	{"pkg/rdma", []string{"pkg/cnierr", "pkg/shell", "pkg/trusted", "pkg/conf", "pkg/plan", "pkg/nlsock", "pkg/rdma/nldev", "pkg/rdma/gidtable", "pkg/rdma/discover"}},
	{"pkg/probe", []string{"pkg/cnierr", "pkg/shell", "pkg/conf", "pkg/plan"}},
	{"pkg/flock", nil},
	{"pkg/flock/flocktest", nil},
	{"pkg/record", []string{"pkg/cnierr", "pkg/shell", "pkg/trusted", "pkg/conf", "pkg/plan", "pkg/flock"}},
	{"pkg/gids", []string{"pkg/cnierr", "pkg/shell", "pkg/conf", "pkg/plan", "pkg/kernel", "pkg/kernel/look", "pkg/rdma", "pkg/record"}},
	{"pkg/ipam/kv", nil},
	{"pkg/ipam/ledger", []string{"pkg/cnierr", "pkg/shell", "pkg/netrange", "pkg/trusted", "pkg/conf/pool", "pkg/conf", "pkg/flock", "pkg/ipam/kv"}},
	{"pkg/ipam", []string{"pkg/cnierr", "pkg/netrange", "pkg/conf", "pkg/ipam/ledger"}},
	{"pkg/ipam/repair", []string{"pkg/cnierr", "pkg/netrange", "pkg/conf", "pkg/kernel/nsscan", "pkg/record", "pkg/ipam/ledger"}},
	{"pkg/block/nodefile", []string{"pkg/cnierr", "pkg/netrange", "pkg/trusted", "pkg/conf/strict", "pkg/conf/pool", "pkg/conf"}},
	{"pkg/block", []string{"pkg/cnierr", "pkg/netrange", "pkg/conf/strict", "pkg/conf/pool"}},
	{"pkg/block/blocktest", []string{"pkg/block"}},
	{"pkg/block/sticky", []string{"pkg/conf/pool", "pkg/block/nodefile", "pkg/block"}},
	{"pkg/block/sticky/stickytest", []string{"pkg/block/nodefile", "pkg/block", "pkg/block/blocktest", "pkg/block/sticky"}},
	{"pkg/inventory", []string{
		"pkg/cnierr", "pkg/conf", "pkg/kernel/parent", "pkg/kernel/rtnl", "pkg/rdma/discover", "pkg/rdma/gidtable", "pkg/rdma/nldev",
	}},
	{"pkg/inventory/fleet", []string{"pkg/inventory"}},
	{"pkg/block/kube", []string{"pkg/cnierr", "pkg/conf", "pkg/block", "pkg/block/sticky", "pkg/inventory/fleet"}},
	{"pkg/agent/pace", nil},
	{"pkg/agent/grant", []string{"pkg/cnierr", "pkg/conf/pool", "pkg/ipam/ledger", "pkg/ipam", "pkg/block/nodefile", "pkg/block", "pkg/block/sticky", "pkg/agent/pace"}},
	{"pkg/agent", []string{"pkg/cnierr", "pkg/conf/pool", "pkg/ipam/ledger", "pkg/ipam", "pkg/block/nodefile", "pkg/block", "pkg/block/sticky", "pkg/agent/pace", "pkg/agent/grant"}},
	{"pkg/agent/reconcile", []string{"pkg/cnierr", "pkg/netrange", "pkg/block", "pkg/block/sticky", "pkg/agent"}},
	{"pkg/delegate", []string{"pkg/cnierr", "pkg/conf", "pkg/plan", "pkg/result", "pkg/record"}},
	{"pkg/lease", []string{
		"pkg/cnierr", "pkg/netrange", "pkg/conf", "pkg/plan", "pkg/result", "pkg/record",
		"pkg/ipam/ledger", "pkg/ipam", "pkg/block/nodefile", "pkg/delegate",
	}},
	{"pkg/attach", []string{
		"pkg/cnierr", "pkg/conf", "pkg/plan", "pkg/result", "pkg/apply",
		"pkg/kernel", "pkg/rdma", "pkg/probe", "pkg/record", "pkg/lease",
	}},
	{"pkg/lldp", []string{"pkg/cnierr", "pkg/conf"}},
	{"pkg/doctor", []string{
		"pkg/cnierr", "pkg/trusted", "pkg/shell", "pkg/netrange", "pkg/conf", "pkg/conf/pool", "pkg/inventory", "pkg/rdma/nldev", "pkg/rdma/gidtable",
		"pkg/plan", "pkg/record", "pkg/ipam/ledger", "pkg/ipam", "pkg/block/nodefile",
	}},
	{"pkg/verify", []string{
		"pkg/cnierr", "pkg/shell", "pkg/conf", "pkg/plan", "pkg/kernel/parent", "pkg/kernel/rtnl", "pkg/probe", "pkg/doctor",
	}},
	{"pkg/hwtest/recording", []string{"pkg/redact", "pkg/nlsock"}},
	{"pkg/hwtest", []string{
		"pkg/cnierr", "pkg/shell", "pkg/redact", "pkg/conf", "pkg/nlsock", "pkg/rdma/nldev", "pkg/kernel/rtnl", "pkg/kernel/parent",
		"pkg/rdma/gidtable", "pkg/rdma/discover", "pkg/rdma", "pkg/plan", "pkg/kernel/netns", "pkg/kernel", "pkg/record", "pkg/gids", "pkg/attach", "pkg/inventory", "pkg/doctor",
		"pkg/verify", "pkg/trusted", "pkg/hwtest/recording",
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
