// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
)

// kubectl puts a program of that name first into the PATH. It answers from files, and
// keeps what it was asked. In 0.2 s it tells whether its standard input ends behind the list: on a slow
// machine it may not notice that, and fails no test for it.
func kubectl(t *testing.T, report string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range map[string]string{
		"kubectl": `#!/bin/sh
echo "$*" >>` + dir + `/calls
case "$*" in
*"config view"*) printf gpu-east ;;
*"auth can-i"*) grep -qx -e "${*#*-- }" ` + dir + `/denied 2>/dev/null && echo "no - no RBAC policy matched" && exit 1; echo yes ;;
*"auth whoami"*) printf 'system:serviceaccount:tests:o p' ;;
*"get --output=json daemonset"*) cat ` + dir + `/daemonset ;;
*"get --output=json pods"*) cat ` + dir + `/pods ;;
*exec*) sed '/^[.]$/q' >` + dir + `/input; timeout 0.2 cat && echo closed >>` + dir + `/input; printf 'round 1 of 1\n\033[2J' >&2; cat ` + dir + `/report; exit 1 ;;
esac
`,
		"daemonset": `{"spec": {"selector": {"matchLabels": {"app": "rails-verify"}}}, "status": {"desiredNumberScheduled": 7}}`,
		"pods": `{"items": [
			{"metadata": {"name": "v-0"}, "spec": {"nodeName": "gpu-00"}, "status": {"phase": "Running", "podIP": "10.244.0.7", "conditions": [{"type": "Ready", "status": "False"}]}},
			{"metadata": {"name": "v-2"}, "spec": {"nodeName": "gpu-02"}, "status": {"phase": "Running", "podIP": "fd00::2", "conditions": [{"type": "Ready", "status": "True"}]}},
			{"metadata": {"name": "v-1"}, "spec": {"nodeName": "gpu-01"}, "status": {"phase": "Running", "podIP": "10.244.1.7", "conditions": [{"type": "Ready", "status": "True"}]}},
			{"metadata": {"name": "v-4", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": "gpu-04"}, "status": {"phase": "Running", "podIP": "10.244.4.7", "conditions": [{"type": "Ready", "status": "True"}]}},
			{"metadata": {"name": "v-5"}},
			{"metadata": {"name": "v-3"}, "spec": {"nodeName": "gpu-03"}, "status": {"phase": "Pending"}}]}`,
		"report": report,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestVerifyOfADaemonSetNamesWhatItCannotTest: a pod that does not run, and nodes without a pod.
func TestVerifyOfADaemonSetNamesWhatItCannotTest(t *testing.T) {
	dir := kubectl(t, `{"pods": [{"name": "gpu-01", "rails": [{"sign": "<u>\u001b[2J"}]}, {"name": "gpu-02", "rails": [{"sign": "x", "faults": ["<script>"]}]}], "answers": [
		{"check": "reach", "verdict": "problem", "of": "rail 3 of gpu-01 to gpu-02", "found": "<script>\u001b[2J", "fix": "# look", "why": "why"}],
		"faults": [{"check": "reach", "verdict": "problem", "of": "rail 3 of gpu-01 to gpu-02", "found": "<script>\u001b[2J", "fix": "# look", "why": "why"}]}`)
	page := filepath.Join(dir, "page.html")
	var out, errOut bytes.Buffer
	cmd := root(&out, &errOut)
	cmd.SetArgs([]string{"verify", "--daemonset", "rails-verify", "-n", "tests", "--rdma", "--cross", "--html", page})
	if status := cli.StatusError(0); !errors.As(cmd.ExecuteContext(t.Context()), &status) || status != 1 {
		t.Errorf("status %d", status)
	}
	if got := read(t, filepath.Join(dir, "input")); got != "gpu-02=[fd00::2]:9483\n.\n" {
		t.Errorf("the leader is told %q", got)
	}
	const calls = `--namespace=tests get --output=json daemonset -- rails-verify
--namespace=tests get --output=json pods --selector=app=rails-verify
--namespace=tests config view --minify --output=jsonpath={.clusters[0].name}
--namespace=tests exec -i v-1 -- /rocectl verify --all --output=json --name=gpu-01 --cross --rdma -
`
	if diff := cmp.Diff(calls, read(t, filepath.Join(dir, "calls"))); diff != "" {
		t.Errorf("it calls (-want +got)\n%s", diff)
	}
	const want = `problem      reach            rail 3 of gpu-01 to gpu-02: <script>?[2J
             why: why
             # look
cannot tell  reach            v-5: the pod is new, on node ""
             needs: kubectl -n tests describe pod v-5
cannot tell  reach            v-0: the pod is not ready, on node "gpu-00"
             needs: kubectl -n tests describe pod v-0
cannot tell  reach            v-3: the pod is Pending, on node "gpu-03"
             needs: kubectl -n tests describe pod v-3
cannot tell  reach            DaemonSet rails-verify: 2 of 7 nodes have no pod of it
             needs: kubectl -n tests describe daemonset rails-verify

rail             0
gpu-00           ?
gpu-01        <u>?[2J
gpu-02           x
gpu-03 to v-5    ?
  x  no packet passes, between some pods
  ?  not tested

# 0 ok, 1 problem, 4 cannot tell
# 1 fault on 1 of 5 rails of 5 pods
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := read(t, page); strings.Contains(got, "<script>") || strings.Contains(got, "<u>") || !strings.Contains(got, "&lt;script&gt;") || !strings.Contains(got, "<h1>Rails of gpu-east</h1>") {
		t.Errorf("the page obeys a pod:\n%s", got)
	}
	if got := errOut.String(); !strings.Contains(got, "round 1 of 1\n") || strings.Contains(got, "\x1b") {
		t.Errorf("no progress: %q", &errOut)
	}
}

// TestVerifyOfADaemonSetNamesMissingRights: all at once, and the command that gives them.
func TestVerifyOfADaemonSetNamesMissingRights(t *testing.T) {
	dir := kubectl(t, "")
	if err := os.WriteFile(filepath.Join(dir, "denied"), []byte("list pods\ncreate pods\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := call("verify", "--daemonset", "rails-verify", "-n", "tests")
	for _, want := range []string{
		"in the namespace tests you may not: list pods, create pods/exec\n", "conf-examples/deploy/samples/verify.yaml",
		`kubectl -n tests create rolebinding rails-verify --role=rails-verify --user='system:serviceaccount:tests:o p'`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
	if err := os.Remove(filepath.Join(dir, "pods")); err != nil {
		t.Fatal(err)
	}
	if got := call("verify", "--daemonset", "rails-verify"); !strings.Contains(got, `kubectl get "rails-verify"`) || !strings.Contains(got, "you may not: list pods,") {
		t.Errorf("got %s", got)
	}
}

// TestVerifyOpensThePageFirst: a test may take an hour.
func TestVerifyOpensThePageFirst(t *testing.T) {
	dir := kubectl(t, `{}`)
	got := call("verify", "--daemonset", "rails-verify", "--html", filepath.Join(dir, "none", "page.html"))
	if !strings.Contains(got, "name a file that can be written") {
		t.Errorf("got %s", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "calls")); err == nil {
		t.Errorf("it has begun the test:\n%s", read(t, filepath.Join(dir, "calls")))
	}
}

// TestAPageThatCannotBeWrittenTakesNoReport: its folder is gone when the test ends.
func TestAPageThatCannotBeWrittenTakesNoReport(t *testing.T) {
	dir := kubectl(t, `{"faults": [{"check": "reach", "verdict": "problem", "of": "rail 3 of gpu-01 to gpu-02", "found": "x", "fix": "y"}]}`)
	script := strings.Replace(read(t, filepath.Join(dir, "kubectl")), "*exec*) ", "*exec*) rm -r "+dir+"/pages; ", 1)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "pages"), 0o700), os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700)); err != nil {
		t.Fatal(err)
	}
	got := call("verify", "--daemonset", "rails-verify", "--html", filepath.Join(dir, "pages", "page.html"))
	if !strings.Contains(got, "no such file or directory") || !strings.Contains(got, "rail 3 of gpu-01 to gpu-02: x\n") {
		t.Errorf("got %s", got)
	}
}

func TestVerifyOfADaemonSetSaysWhyThereIsNoReport(t *testing.T) {
	kubectl(t, "no such program")
	if got := call("verify", "--daemonset", "rails-verify"); !strings.Contains(got, `test from pod "v-1"`) || !strings.Contains(got, "its image needs /rocectl") {
		t.Errorf("got %s", got)
	}
	t.Setenv("PATH", t.TempDir())
	if got := call("verify", "--daemonset", "rails-verify"); !strings.Contains(got, `executable file not found`) || strings.Contains(got, "you may not") {
		t.Errorf("got %s", got)
	}
	if got := call("verify", "--daemonset", "rails-verify", "--pid", "1"); !strings.Contains(got, "daemonset pid") {
		t.Errorf("got %s", got)
	}
}

func TestReportOfTheLeadingPodIsBounded(t *testing.T) {
	dir := kubectl(t, "")
	if err := os.Truncate(filepath.Join(dir, "report"), mostSaid+1); err != nil {
		t.Fatal(err)
	}
	if got := call("verify", "--daemonset", "rails-verify"); !strings.Contains(got, `test from pod "v-1"`) || !strings.Contains(got, "it says more than 64 MiB") {
		t.Errorf("got %s", got)
	}
}

func TestPeersAreReadFromTheStandardInput(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"gpu-02=[fd00::2]:9483\n\ngpu-03=10.0.0.3\n", "gpu-02=[fd00::2]:9483 gpu-03=10.0.0.3", "gpu-02=[fd00::2]:9483\ngpu-03=10.0.0.3\n.\nx\n"} {
		got, caller, err := listed([]string{"a", "-", "z"}, strings.NewReader(in))
		if err != nil || strings.Join(got, " ") != "a gpu-02=[fd00::2]:9483 gpu-03=10.0.0.3 z" || (caller != nil) != strings.Contains(in, "\n.\n") {
			t.Errorf("%q: got %q, %v, %v", in, got, caller, err)
		}
	}
	for given, want := range map[string][2]string{
		"10.0.0.3": {"", "10.0.0.3:9483"}, "gpu-03=10.0.0.3": {"gpu-03", "10.0.0.3:9483"}, "gpu-03=[fd00::2]:1": {"gpu-03", "[fd00::2]:1"}, "fd00::2": {"", "[fd00::2]:9483"},
	} {
		if name, address := peerOf(given); [2]string{name, address} != want {
			t.Errorf("%s: got %s, %s", given, name, address)
		}
	}
}
