// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"strings"
	"testing"
)

// TestProductCodeImportsEachFieldLibrary: what CNI plugins are usually built on carries what it
// is for, where docs/adr/0022 says.
func TestProductCodeImportsEachFieldLibrary(t *testing.T) {
	t.Parallel()
	var imported strings.Builder
	for dir, files := range packages(t) {
		if strings.HasSuffix(dir, "test") || !strings.HasPrefix(dir, "cmd/") && !strings.HasPrefix(dir, "pkg/") {
			continue // helpers of tests
		}
		for _, f := range files {
			for _, i := range f.ast.Imports {
				imported.WriteString(i.Path.Value + "\n")
			}
		}
	}
	for _, library := range []string{
		"github.com/containernetworking/cni", "github.com/containernetworking/plugins",
		"github.com/vishvananda/netlink", "github.com/vishvananda/netns", "github.com/Mellanox/rdmamap",
	} {
		if !strings.Contains(imported.String(), `"`+library) {
			t.Errorf("no product code imports %s: use it where docs/adr/0022 says, or change that", library)
		}
	}
}
