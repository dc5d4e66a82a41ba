// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
)

// TestUsualWordsAreNoNames has names that would spoil the file, and all words of letters in
// the recorded files of sysfs: none of them is a name there.
func TestUsualWordsAreNoNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ok", "OK", "node", "Node", "eth", "ports", "1", "0000", "10.1", "fe80", "cafe", "mlx5", "core", "pod-add", "problem", "firmware"} {
		if !Usual(name) {
			t.Errorf("%q is replaced", name)
		}
	}
	for _, name := range []string{"gpu-07", "acme", "acme0", "node-7", "eth0", "dgx.example.com", "rack1-node2"} {
		if Usual(name) {
			t.Errorf("%q is not replaced", name)
		}
	}
	for _, dir := range []string{"testdata/mlx5-like", "testdata/sriov"} {
		rec, err := recording.Read(os.DirFS(dir))
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range rec.Sys.Files {
			for _, word := range regexp.MustCompile(`\b[a-zA-Z]+\b`).FindAllString(strings.ReplaceAll(name+" "+text, "_", " "), -1) {
				if !Usual(word) {
					t.Errorf("%s: %q in %s %q can be replaced", dir, word, name, text)
				}
			}
		}
	}
}
