// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNothingIsWrittenThroughALinkThatOthersHaveMade: root runs rocectl, and another user
// has made a link at the path, and links at names of files that are not complete.
func TestNothingIsWrittenThroughALinkThatOthersHaveMade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, folder := range []string{"state", "etc", "bin", "out"} {
		if err := os.Mkdir(at(folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(
		os.WriteFile(at("legit"), []byte("legit"), 0o600),
		os.WriteFile(at("policy"), []byte(`{"version": 1}`), 0o600),
		os.WriteFile(at("out/roce"), []byte("#!/bin/sh\n"), 0o755),
	)
	for _, link := range []string{"etc/node.json", "etc/node.json.new", "bin/roce", "bin/roce.new-", "bundle.tar.gz"} {
		err = errors.Join(err, os.Symlink(at("legit"), at(link)))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"install", "--settings", at("policy"), "--settings-to", at("etc/node.json"), "--from", at("out"), "--to", at("bin")},
		{"bundle", "--state-dir", at("state"), "--out", at("bundle.tar.gz")},
	} {
		said := call(args...)
		if b, err := os.ReadFile(at("legit")); err != nil || string(b) != "legit" {
			t.Fatalf("%s has written behind a link: %q, %v\n%s", args[0], b, err, said)
		}
		if refused := strings.Contains(said, "it is not a regular file"); refused != (args[0] == "bundle") {
			t.Errorf("%s says\n%s", args[0], said)
		}
	}
	for name, want := range map[string]string{"etc/node.json": `{"version": 1}`, "bin/roce": "#!/bin/sh\n"} {
		info, err := os.Lstat(at(name))
		if err != nil || !info.Mode().IsRegular() {
			t.Fatalf("%s: %v, %v", name, info, err)
		}
		b, err := os.ReadFile(at(name))
		if diff := cmp.Diff(want, string(b)); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
}
