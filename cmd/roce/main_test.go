// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"flag"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/roce-cni/roce-cni/cmd/internal/plugintest"
)

var update = flag.Bool("update", false, "rewrite the expected outputs in testdata")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"roce": func() {
		settingsFile = plugintest.Settings()
		main()
	}})
}

// TestScripts runs testdata/*.txtar; see plugintest.Run for their commands.
func TestScripts(t *testing.T) {
	t.Parallel()
	plugintest.Run(t, "roce", *update)
}
