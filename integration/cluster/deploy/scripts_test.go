// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// measured is what ib_write_bw prints at the end, with -n 100 and --report_gbits.
const measured = ` #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      100              0.00               %s              0.001
`

// perftestRails runs the script of the test image with programs that only note how they are
// called. It returns the calls of ib_write_bw, what the script prints, and whether it succeeded.
// mlx5_0 has the bandwidth 100.5, and mlx5_1 200.25.
func perftestRails(t *testing.T, env string, args ...string) (calls []string, out string, ok bool) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	for name, script := range map[string]string{
		"sleep": "",
		"ib_write_bw": `echo "$@" >>` + log + "\ncase $2 in mlx5_0) bw=100.50;; *) bw=200.25;; esac\n" +
			`printf '` + strings.ReplaceAll(measured, "%s", "'$bw'") + `'`,
		"roce-env": "cat <<'END'\n" + env + "END\ncase '" + env + "' in *false*) exit 1;; esac",
	} {
		must(t, name, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	cmd := exec.CommandContext(t.Context(), rdma+"/perftest-rails", args...)
	cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "TMPDIR=" + dir}
	text, err := cmd.CombinedOutput()
	t.Logf("%s", text)
	if noted, err := os.ReadFile(log); err == nil {
		calls = strings.Split(strings.TrimSpace(string(noted)), "\n")
	}
	return calls, string(text), err == nil
}

// TestPerftestMeasuresEachRailAloneAndAllAtOnce runs the script as client and as server.
func TestPerftestMeasuresEachRailAloneAndAllAtOnce(t *testing.T) {
	t.Parallel()
	rails := []string{
		"-d mlx5_0 -i 1 -x 3 -p 18515 -F --report_gbits -D 10",
		"-d mlx5_1 -i 1 -x 5 -p 18516 -F --report_gbits -D 10",
	}
	calls, out, ok := perftestRails(t, printed, "perftest")
	if len(calls) == 4 {
		slices.Sort(calls[2:]) // they run at the same time
	}
	if diff := cmp.Diff([]string{rails[0] + " perftest", rails[1] + " perftest", rails[0] + " perftest", rails[1] + " perftest"}, calls); diff != "" || !ok {
		t.Errorf("client: succeeded %v (-want +got)\n%s", ok, diff)
	}
	const want = `
rail     device        alone  all at once
net1     mlx5_0       100.50       100.50
net2     mlx5_1       200.25       200.25
sum                   300.75       300.75 Gb/s
`
	if !strings.HasSuffix(out, want) {
		t.Errorf("the client ends with other lines than%s", want)
	}
	calls, _, ok = perftestRails(t, printed)
	slices.Sort(calls) // in any order
	if diff := cmp.Diff([]string{rails[0], rails[0], rails[1], rails[1]}, calls); diff != "" || !ok {
		t.Errorf("server: succeeded %v (-want +got)\n%s", ok, diff)
	}
}

// TestPerftestStopsWithoutTheResource gives the script what roce-env prints in a pod that
// lacks something.
func TestPerftestStopsWithoutTheResource(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"perftest"}} {
		if calls, _, ok := perftestRails(t, printed+"false # see the error\n", args...); ok || len(calls) > 0 {
			t.Errorf("%q: succeeded %v, and ran %q", args, ok, calls)
		}
	}
}

// TestScriptsHaveNoSyntaxErrors asks the shell of each pod that has one.
func TestScriptsHaveNoSyntaxErrors(t *testing.T) {
	t.Parallel()
	for name, pod := range userPods(t) {
		program := pod.Spec.Containers[0]
		words := slices.Concat(program.Command, program.Args)
		if !slices.Contains([]string{"sh", "bash"}, words[0]) {
			continue
		}
		if out, err := exec.CommandContext(t.Context(), words[0], "-n", "-c", words[len(words)-1]).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
