// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheOldObjectsOfTheMigrationPageAreConverted gives each "before" of
// docs/migrating.md to rocectl generate, and plans what it writes.
func TestTheOldObjectsOfTheMigrationPageAreConverted(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "migrating.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```yaml\n")[1:]
	if len(blocks) != 3 {
		t.Errorf("%d examples, want 3", len(blocks))
	}
	for _, block := range blocks {
		before, _, _ := strings.Cut(block, "```")
		dir := t.TempDir()
		old, converted := filepath.Join(dir, "old.yaml"), filepath.Join(dir, "new.yaml")
		write := func(path, text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(old, before)
		text := call("generate", "--from", old)
		write(converted, text)
		if plan := call("plan", "--offline", converted); strings.Contains(plan, "rocectl[") || !strings.Contains(plan, "ip link add") {
			t.Errorf("%s\nbecomes\n%s\nand is planned as\n%s", before, text, plan)
		}
	}
}
