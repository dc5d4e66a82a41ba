// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// healer starts the pod that the DaemonSet's controller would make.
func (n *node) healer(t *testing.T) *core.Pod {
	t.Helper()
	set, err := n.admin.AppsV1().DaemonSets("roce-cni").Get(t.Context(), "roce-cni-heal", meta.GetOptions{})
	must(t, err)
	return n.start(t, &core.Pod{ObjectMeta: meta.ObjectMeta{Namespace: "roce-cni", Name: set.Name, Labels: set.Spec.Template.Labels}, Spec: set.Spec.Template.Spec})
}

// TestTheHealersPodRestoresWhatAPodLoses has the pods of healer and agent as they are, and a pod
// with rails that starts after them, so that its namespace is a mount that appears later. It
// loses routes, a rule and an interface. Then an operator asks for it with kubectl roce. The machine of the test
// has no RDMA device, and foreignGID says so after it has mounted tracefs in its container.
func TestTheHealersPodRestoresWhatAPodLoses(t *testing.T) {
	n := theNode(t)
	n.kubelet(t)
	for _, plugin := range []string{"roce", "roce-ipam"} {
		must(t, os.Remove(filepath.Join(plugins, plugin)))
	}
	n.deploy(t)
	n.reaper(t)
	n.start(t, n.agent(t))
	const settings = "/etc/roce/node.json"
	must(t, os.MkdirAll(filepath.Dir(settings), 0o755))
	must(t, os.WriteFile(settings, []byte(`{"version": 1, "heal": "all", "rdma": {"foreignGID": "tell"}}`), 0o600))
	t.Cleanup(func() { must(t, os.Remove(settings)) })
	healer := n.healer(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the healer says\n%s", n.kubectl(t, "", "logs", "-n", "roce-cni", healer.Name))
		}
	})
	n.network(t, "rails", rails())
	pod := n.running(t, n.start(t, shell("healed", "rails")))
	steering := func() string {
		return pod.inside(t, "sh", "-c", "(ip -br -4 addr; ip -o rule; ip -o route show table all type unicast) | sort")
	}
	whole := steering()
	for _, loses := range []string{"ip route flush table 100", "ip rule del priority $(ip rule | sed -n 's/:.*lookup 101.*//p')", "ip link del net1-1"} {
		pod.inside(t, "sh", "-c", loses)
		eventually(t, "the pod is whole again after "+loses, func(context.Context) error {
			if now := steering(); now != whole {
				return fmt.Errorf("it has\n%s\nwant\n%s", now, whole)
			}
			return nil
		})
	}
	eventually(t, "there is an Event of the pod", func(context.Context) error {
		if said := n.events(pod.Pod); !strings.Contains(said, "made again: route") || !strings.Contains(said, "made again: rule") || !strings.Contains(said, "made again: macvlan") {
			return errors.New(said)
		}
		return nil
	})

	folder, err := filepath.Abs(bin)
	must(t, err)
	dir := t.TempDir()
	must(t, os.Symlink(filepath.Join(programs, "rocectl"), filepath.Join(dir, "kubectl-roce")))
	for command, want := range map[string][]string{
		"trace healed -n default":      {"ADD ", "HEAL ", "made again: rule", "\nSTEP "},
		"show default/healed":          {"default/healed", "net1", "healed "},
		"trace default/healed -o json": {`"verb": "HEAL"`},
		"trace --node " + n.name:       {"ALARM ", "/sys/kernel/tracing", "kprobe_events"},
		"show default/healed --last 3": nil, // show has no such flag
		"check default/healed":         nil,
	} {
		cmd := exec.Command(filepath.Join(folder, "kubectl"), append([]string{"roce"}, strings.Fields(command)...)...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+folder, "KUBECONFIG="+n.kubeconfig)
		out, err := cmd.CombinedOutput()
		if (err == nil) != (want != nil) {
			t.Errorf("kubectl roce %s: %v\n%s", command, err, out)
		}
		for _, want := range want {
			if !strings.Contains(string(out), want) {
				t.Errorf("kubectl roce %s: want %q in\n%s", command, want, out)
			}
		}
	}

	// With --watch, what is typed ends the command in the agent.
	said, err := os.Create(filepath.Join(dir, "said"))
	must(t, err)
	watch := exec.Command("script", "--quiet", "--return", "--command", "kubectl roce trace --watch --node "+n.name, "/dev/null")
	watch.Env = append(os.Environ(), "PATH="+dir+":"+folder+":"+os.Getenv("PATH"), "KUBECONFIG="+n.kubeconfig)
	watch.Stdout = said
	typed, err := watch.StdinPipe()
	must(t, err)
	must(t, watch.Start())
	heals := func(more int) (now int) {
		eventually(t, "calls are shown", func(context.Context) error {
			text, err := os.ReadFile(said.Name())
			if now = strings.Count(string(text), "HEAL "); err == nil && now < more {
				err = errors.New(string(text))
			}
			return err
		})
		return now
	}
	before := heals(1)
	pod.inside(t, "ip", "route", "flush", "table", "100")
	heals(before + 1)
	_, err = typed.Write([]byte{3}) // Ctrl-C
	must(t, err)
	if err := watch.Wait(); err == nil || strings.Contains(run(t, "ps", "-eo", "args"), "/rocectl trace") {
		t.Errorf("it ends with %v, and there is still\n%s", err, run(t, "ps", "-eo", "args"))
	}
}
