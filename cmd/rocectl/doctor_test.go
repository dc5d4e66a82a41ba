// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDoctorLooksWhereItsFlagsSay, and at each check that is named. Its answers are a status.
func TestDoctorLooksWhereItsFlagsSay(t *testing.T) {
	dir := t.TempDir()
	before := settingsFile
	settingsFile = filepath.Join(dir, "node.json")
	defer func() { settingsFile = before }()
	if err := os.WriteFile(settingsFile, fmt.Appendf(nil, `{"version": 1, "stateDir": %q, "logs": 1}`, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := fmt.Sprintf(" --cni-conf-dir %s/conf --cni-bin-dir %[1]s/bin --agent http://127.0.0.1:1/x", dir)
	const (
		settings = "problem settings read settings of the node \"DIR/node.json\": \"logs\": unknown key\n"
		agent    = "ok agent no agent answers at http://127.0.0.1:1/x, "
	)
	for args, want := range map[string]string{
		"settings": settings + "# 0 ok, 1 problem, 0 cannot tell\nexit status 1\n",
		"agent":    agent + "\n# 1 ok, 0 problems, 0 cannot tell\n",
		"cni-plugins cni-config": "cannot tell cni-plugins there is no folder DIR/bin, the folder of plugins (--cni-conf-dir)\n" +
			"cannot tell cni-config there is no folder DIR/conf, the folder of CNI configuration (--cni-conf-dir)\n# 0 ok, 0 problems, 2 cannot tell\nexit status 2\n",
		"status": strings.Replace(settings, " settings ", " plugins ", 1) + agent + "\nok pools the node has no RailPool\nexit status 1\n",
	} {
		name := "doctor"
		if args == "status" {
			name, args = args, ""
		}
		var got strings.Builder
		for line := range strings.Lines(answerOf(root(nil, nil), strings.Fields(name+" "+args+flags)...)) {
			if line, _, cut := strings.Cut(line, "and this node has no pool"); cut { // of the rest of the machine nothing is known
				got.WriteString(line + "\n")
			} else if !strings.HasPrefix(line, " ") && (name == "doctor" || !regexp.MustCompile("^#| (device-plugin|rails) ").MatchString(line)) {
				got.WriteString(strings.ReplaceAll(line, dir, "DIR"))
			}
		}
		if diff := cmp.Diff(want, got.String()); diff != "" {
			t.Errorf("%s %s (-want +got)\n%s", name, args, diff)
		}
	}
}
