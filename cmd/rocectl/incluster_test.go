// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
)

// TestACommandRunsInTheAgentOfThePodsNode: with the flags that the user gave, and words if the
// pod, its node or the agent is gone.
func TestACommandRunsInTheAgentOfThePodsNode(t *testing.T) {
	dir := t.TempDir()
	const script = `#!/bin/sh
echo "$*" >>"${0%/*}/calls"
case "$*" in
"--namespace=ml --kubeconfig=/k --context=lab get --output=json pod -- trainer-0"|"get --output=json pod -- trainer-0") echo '{"metadata": {"name": "trainer-0", "namespace": "ml"}, "spec": {"nodeName": "gpu-1"}}' ;;
*"pod -- new") echo '{"metadata": {"name": "new", "namespace": "ml"}}' ;;
*"pod -- lost") echo '{"metadata": {"name": "lost", "namespace": "ml"}, "spec": {"nodeName": "gpu-9"}}' ;;
*spec.nodeName=gpu-1) echo '{"items": [{"metadata": {"name": "agent-old", "namespace": "roce-cni"}, "status": {"phase": "Failed"}},
	{"metadata": {"name": "agent-x", "namespace": "roce-cni"}, "status": {"phase": "Running"}}]}' ;;
*spec.nodeName=*) echo '{"items": []}' ;;
*"node -- gpu-2") echo '{}' ;;
*exec*) echo remote; exit 7 ;;
*) echo "Error from server (NotFound): ${*#*-- } not found" >&2; exit 1 ;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, tt := range []struct{ args, says, calls string }{
		{"trace ml/trainer-0 --cluster --context lab --kubeconfig /k --last 3 -o wide", "remote", "--namespace=roce-cni --kubeconfig=/k --context=lab exec --container=agent agent-x -- /rocectl trace --last=3 --output=wide -- ml/trainer-0"},
		{"trace trainer-0 --cluster -w --agent-namespace rails", "remote", "--namespace=rails exec --container=agent agent-x -it -- /rocectl trace --watch=true -- ml/trainer-0"},
		{"show --cluster --node gpu-1", "remote", "--namespace=roce-cni exec --container=agent agent-x -- /rocectl show"},
		{"show --cluster --node gpu-1 ml/gone", "remote", "--namespace=roce-cni exec --container=agent agent-x -- /rocectl show -- ml/gone"},
		{"show --cluster ml/gone", "gone not found\nhint: name its namespace; if the pod is gone, its node still knows it", ""},
		{"show --cluster new -n ml", "it has no node yet\nhint: kubectl -n ml describe pod", ""},
		{"show --cluster ml/lost", "gpu-9 not found", ""},
		{"show --cluster --node gpu-2", `find agent of node "gpu-2": no agent of roce-cni runs there`, ""},
		{"show --cluster", "no pod is named", ""},
		{"show --node gpu-1", "add --cluster", ""},
	} {
		if err := os.WriteFile(filepath.Join(dir, "calls"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		got, calls := call(strings.Fields(tt.args)...), read(t, filepath.Join(dir, "calls"))
		if !strings.Contains(got, tt.says) || !strings.HasSuffix(calls, tt.calls+"\n") && tt.calls != "" || tt.calls == "" && strings.Contains(calls, "exec") {
			t.Errorf("%s says\n%s and calls\n%s, want %q and %q", tt.args, got, calls, tt.says, tt.calls)
		}
	}
	if got := answerOf(root(nil, nil), "show", "--cluster", "--node", "gpu-1"); got != "remote\nexit status 7\n" {
		t.Errorf("it does not end as the command in the agent: %s", got)
	}
}

// TestATerminalDoesNotObeyAnAgent: who has taken over a node chooses what its agent says, and for how
// long.
func TestATerminalDoesNotObeyAnAgent(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for name, tt := range map[string]struct{ says, out, errOut string }{
		"watched all day": {`yes x | head -c 68000000`, "x\nx\n", ""},
		"a watched line":  {`exec tr '\0' x </dev/zero`, "", "rocectl[5] ask agent \"agent-x\": it says more than 64 MiB\nhint: "},
		"escapes":         {`printf 'a\033[2J\302\233\rb\n' ; printf '\033]0;x\007' >&2; exit 1`, "a?[2J??b\n", "?]0;x?\n"},
		"JSON":            {`printf '[\n {"error": "\\u001b \303\251"}\n]\n'`, "[\n {\"error\": \"\\u001b é\"}\n]\n", ""},
		"a terminal":      {`printf 'a\r\nb\r\n'`, "a\r\nb\r\n", ""},
		"endless":         {`exec yes`, "y\ny\n", "rocectl[5] ask agent \"agent-x\": it says more than 64 MiB\nhint: "},
		"endless error":   {`exec tr '\0' x </dev/zero >&2`, "", "rocectl[5] ask agent \"agent-x\": it says more than 64 MiB\nhint: "},
	} {
		script := `#!/bin/sh
case "$*" in
*exec*) ` + tt.says + ` ;;
*) echo '{"items": [{"metadata": {"name": "agent-x"}, "status": {"phase": "Running"}}]}' ;;
esac
`
		if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		var out, errOut bytes.Buffer
		cmd := root(&out, &errOut)
		args := []string{"trace", "--cluster", "--node=gpu-1"}
		if strings.Contains(name, "watched") {
			args = append(args, "--watch")
		}
		cmd.SetArgs(args)
		if called, err := cmd.ExecuteC(); err != nil {
			cli.PrintError(&errOut, called, err)
		}
		got, said := out.String(), errOut.String()
		if strings.HasPrefix(name, "endless") || strings.Contains(name, "watched") {
			got, said = got[:min(len(got), len(tt.out))], said[max(0, strings.Index(said, tt.errOut)):]
		}
		if got != tt.out || !strings.HasPrefix(said, tt.errOut) || tt.errOut == "" && said != "" {
			t.Errorf("%s: got %.200q and %.200q, want %q and %q", name, got, said, tt.out, tt.errOut)
		}
	}
}
