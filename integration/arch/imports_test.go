// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// room is a folder below pkg that says who needs its packages, and what of ours these may
// import beside each other. A path that ends in "/" stands for everything below it.
type room struct {
	dir   string
	holds string
	may   []string
}

// rooms has all folders below pkg. Programs, tests and what is below integration may import
// all of them.
var rooms = []room{
	{"pkg/base", "Leaves that know nothing of networks, pools or RDMA.", nil},
	{"pkg/plugin", "What the plugins `roce` and `roce-ipam` link, and nothing else.", []string{"pkg/base/"}},
	{"pkg/cluster", "Pools over nodes: claims, the agent of a node, the reaper, the reports of nodes.", []string{
		"pkg/base/", "pkg/plugin/conf/pool", "pkg/plugin/conf", "pkg/plugin/ipam/", "pkg/plugin/ipam", "pkg/plugin/nodefile", "pkg/plugin/calls",
	}},
	{"pkg/tool", "What an operator asks: `rocectl` and `roce-env`.", []string{"pkg/base/", "pkg/plugin/", "pkg/cluster/"}},
	{"pkg/hwtest", "The bench for the NICs of others: `roce-hwtest`.", []string{"pkg/base/", "pkg/plugin/", "pkg/tool/"}},
}

// packages returns what importers get: all but the tests, by directory.
func packages(t *testing.T) map[string][]file {
	t.Helper()
	return byDir(slices.DeleteFunc(slices.Clone(goFiles(t)), file.testFile))
}

// in returns the room of a package of ours.
func in(pkg string) (room, bool) {
	i := slices.IndexFunc(rooms, func(r room) bool { return pkg == r.dir || below(pkg, r.dir+"/") })
	if i < 0 {
		return room{}, false
	}
	return rooms[i], true
}

func TestPackagesImportWhatTheirRoomAllows(t *testing.T) {
	t.Parallel()
	for dir, files := range packages(t) {
		if !below(dir, "pkg/") {
			continue
		}
		r, ok := in(dir)
		if !ok {
			t.Errorf("%s is in no room: put it below one of pkg/base, pkg/plugin, pkg/cluster and pkg/tool", dir)
			continue
		}
		for _, f := range files {
			checkImports(t, f, r)
		}
	}
}

func checkImports(t *testing.T, f file, r room) {
	t.Helper()
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		p, ours := strings.CutPrefix(p, module+"/")
		if !ours || p == r.dir || below(p, r.dir+"/") || slices.ContainsFunc(r.may, func(m string) bool { return below(p, m) }) {
			continue
		}
		t.Errorf("%s: %s may import %v of ours, not %s: move the code to where both sides can see it, or change rooms in integration/arch and say why in docs/adr",
			f.at(spec), r.dir, r.may, p)
	}
}

// TestOnlyRoceHWTestHasTheBench keeps code that fails bonds over and reloads drivers out of
// the programs that are installed on nodes.
func TestOnlyRoceHWTestHasTheBench(t *testing.T) {
	t.Parallel()
	for dir, files := range packages(t) {
		if dir == "cmd/roce-hwtest" || below(dir, "pkg/hwtest") || below(dir, "pkg/hwtest/") {
			continue
		}
		for _, f := range files {
			for _, spec := range f.ast.Imports {
				if strings.HasPrefix(spec.Path.Value, `"`+module+"/pkg/hwtest") {
					t.Errorf("%s: only cmd/roce-hwtest imports pkg/hwtest: move what others need to pkg/tool", f.at(spec))
				}
			}
		}
	}
}

// TestPluginRoomIsWhatThePluginsLink keeps everything out of pkg/plugin and pkg/base that no
// plugin needs, beside what is for tests.
func TestPluginRoomIsWhatThePluginsLink(t *testing.T) {
	t.Parallel()
	linked := map[string]bool{}
	for _, program := range plugins(t) {
		for p := range strings.FieldsSeq(goTool(t, "list", "-deps", "./cmd/"+program)) {
			linked[strings.TrimPrefix(p, module+"/")] = true
		}
	}
	for dir := range packages(t) {
		if below(dir, "pkg/plugin/") && !linked[dir] && !strings.HasSuffix(dir, "test") {
			t.Errorf("%s is linked by no plugin: it belongs to pkg/cluster or pkg/tool", dir)
		}
	}
}
