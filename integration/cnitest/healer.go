// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cnitest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// AsHealer returns a command that runs another one with the capabilities of the healer's
// DaemonSet, and no others. repository is the folder of the repository.
func AsHealer(t testing.TB, repository string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repository, "conf-examples/deploy/heal.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, add, _ := strings.Cut(string(b), "              add:\n")
	add, _, found := strings.Cut(add, "            seccompProfile:")
	if !found {
		t.Fatal("conf-examples/deploy/heal.yaml has another form")
	}
	bounding := "-all"
	for _, c := range regexp.MustCompile(`(?m)^ +- (\w+)`).FindAllStringSubmatch(add, -1) {
		bounding += ",+" + strings.ToLower(c[1])
	}
	return []string{"setpriv", "--inh-caps", "-all", "--bounding-set", bounding}
}
