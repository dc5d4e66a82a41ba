// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package arch

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBuildPrintsTheVersion runs the commands of the Makefile. The linker ignores
// an unknown -X without a word, so only the programs can tell that it is right.
func TestBuildPrintsTheVersion(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it runs make, and links all programs")
	}
	dir := t.TempDir()
	for program, want := range map[string]string{
		"roce":        "CNI roce plugin v1.2.3\nCNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n",
		"roce-ipam":   "CNI roce-ipam plugin v1.2.3\nCNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n",
		"rocectl":     "rocectl v1.2.3\n",
		"roce-env":    "roce-env v1.2.3\n",
		"roce-hwtest": "roce-hwtest v1.2.3\n",
	} {
		out := filepath.Join(dir, program)
		build := run(t, exec.CommandContext(t.Context(), "make", "-n", "--no-print-directory", "VERSION=v1.2.3", "bin/"+program))
		build = strings.Replace(build, "-o bin/"+program, "-o "+out, 1)
		run(t, exec.CommandContext(t.Context(), "sh", "-ec", build))
		if got := run(t, exec.CommandContext(t.Context(), out, "--version")); got != want {
			t.Errorf("%s --version prints %q, want %q", program, got, want)
		}
	}
}

// run runs a command in the root and returns all that it prints.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var out bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &out)
	}
	return out.String()
}
