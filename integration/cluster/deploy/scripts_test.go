// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// printed is what roce-env prints in a pod with two rails.
const printed = `# net1 10.1.64.17: mlx5_0 port 1, GID index 3
# net2 10.2.64.17: mlx5_1 port 1, GID index 5
# why: the indexes differ
export NCCL_IB_HCA==mlx5_0:1,mlx5_1:1
# net1: ib_write_bw -d mlx5_0 -i 1 -x 3
# net2: ib_write_bw -d mlx5_1 -i 1 -x 5
`

// runScript runs the script of a pod with programs that only note how they are
// called, and returns the calls of ib_write_bw and whether the script succeeded.
func runScript(t *testing.T, pod, env string) (calls []string, ok bool) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	for name, script := range map[string]string{
		"apt-get":     "exit 0",
		"ib_write_bw": `echo "$@" >>` + log,
		"roce-env":    "cat <<'END'\n" + env + "END\n" + `case "$(tail -n 1 ` + dir + `/env)" in false*) exit 1;; esac`,
	} {
		must(t, name, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	program := userPods(t)[pod].Spec.Containers[0]
	script := strings.NewReplacer("/roce/roce-env", filepath.Join(dir, "roce-env"), "/tmp/env", dir+"/env", "/tmp/rails", dir+"/rails").
		Replace(program.Args[0])
	cmd := exec.CommandContext(t.Context(), program.Command[0], append(program.Command[1:], script)...)
	cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	text, readErr := os.ReadFile(log)
	if readErr == nil {
		calls = strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	return calls, err == nil
}

// TestPerftestRunsOnEachRail runs the scripts of both pods.
func TestPerftestRunsOnEachRail(t *testing.T) {
	t.Parallel()
	client := []string{
		"-d mlx5_0 -i 1 -x 3 -p 18515 -F --report_gbits perftest",
		"-d mlx5_1 -i 1 -x 5 -p 18516 -F --report_gbits perftest",
	}
	calls, ok := runScript(t, "perftest-client", printed)
	if diff := cmp.Diff(client, calls); diff != "" || !ok {
		t.Errorf("client: succeeded %v (-want +got)\n%s", ok, diff)
	}
	calls, ok = runScript(t, "perftest-server", printed)
	if len(calls) != 2 || !ok { // they run at the same time, in any order
		t.Errorf("server: succeeded %v, %q", ok, calls)
	}
	for _, call := range client {
		if want := strings.TrimSuffix(call, " perftest"); !strings.Contains(strings.Join(calls, "\n")+"\n", want+"\n") {
			t.Errorf("server: %q lacks %q", calls, want)
		}
	}
}

// TestPerftestStopsWithoutTheResource gives the scripts what roce-env prints in a pod
// that lacks something.
func TestPerftestStopsWithoutTheResource(t *testing.T) {
	t.Parallel()
	for _, pod := range []string{"perftest-client", "perftest-server"} {
		if calls, ok := runScript(t, pod, printed+"false # see the error\n"); ok || len(calls) > 0 {
			t.Errorf("%s: succeeded %v, and ran %q", pod, ok, calls)
		}
	}
}

// TestScriptsHaveNoSyntaxErrors asks the shell of each pod.
func TestScriptsHaveNoSyntaxErrors(t *testing.T) {
	t.Parallel()
	for name, pod := range userPods(t) {
		program := pod.Spec.Containers[0]
		if out, err := exec.CommandContext(t.Context(), program.Command[0], "-n", "-c", program.Args[0]).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
