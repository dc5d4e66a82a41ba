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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestThePodsOfADaemonSetAreVerified applies the sample, and runs what kubectl roce verify
// runs: it lists the pods of the DaemonSet, and one of them leads the test. No controller
// runs here, so the test makes the pods and the status.
func TestThePodsOfADaemonSetAreVerified(t *testing.T) {
	if os.Getenv("TEST_VERIFY") == "" {
		t.Skip("make test-verify runs it")
	}
	n := theNode(t)
	n.kubelet(t)
	n.network(t, "rails", rails())
	n.kubectl(t, "", "create", "secret", "generic", "rails-verify", "--from-literal=token=the-token-of-a-test")
	n.kubectl(t, "", "apply", "-f", deployment+"/samples/verify.yaml")
	sets := n.admin.AppsV1().DaemonSets(core.NamespaceDefault)
	set, err := sets.Get(t.Context(), "rails-verify", meta.GetOptions{})
	must(t, err)
	set.Status.DesiredNumberScheduled = 3
	_, err = sets.UpdateStatus(t.Context(), set, meta.UpdateOptions{})
	must(t, err)
	for _, name := range []string{"rails-verify-a", "rails-verify-b"} {
		template := set.Spec.Template
		pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Namespace: core.NamespaceDefault, Name: name, Labels: template.Labels, Annotations: template.Annotations}, Spec: template.Spec}
		pod.Spec.Containers[0].Image = "docker.io/library/roce-cni:local"
		n.start(t, pod)
	}
	who := n.tester(t)
	page := filepath.Join(t.TempDir(), "page.html")
	out := who.verify(t, "--verbose", "--html="+page)
	for _, want := range []string{
		"round 1 of 1\n", "no fault on ", "packets of 1500 bytes pass\n", "no other host has 172.16.1", "1 of 3 nodes have no pod of it", "needs: kubectl describe daemonset rails-verify",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
	if t.Failed() {
		t.Log(n.kubectl(t, "", "logs", "rails-verify-a"))
	}
	if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "packets of 1500 bytes pass") {
		t.Errorf("the page: %v\n%s", err, html)
	}
	who.lacksOneRightEach(t)
	n.endsWithItsUser(t)
}

// tester is a user who has what the Role of the sample gives, and nothing else.
type tester struct {
	*node
	name, kubeconfig string
}

func (n *node) tester(t *testing.T) tester {
	t.Helper()
	who := tester{n, "system:serviceaccount:default:tester", filepath.Join(t.TempDir(), "kubeconfig")}
	n.kubectl(t, "", "create", "serviceaccount", "tester")
	n.kubectl(t, "", "create", "rolebinding", "rails-verify", "--role=rails-verify", "--user="+who.name) // as the command says
	must(t, n.WriteKubeconfig(who.kubeconfig, strings.TrimSpace(n.kubectl(t, "", "create", "token", "tester"))))
	return who
}

// command is rocectl verify of the DaemonSet, and kubectl is that of the cluster.
func (n *node) verifyCommand(t *testing.T, kubeconfig string, args ...string) *exec.Cmd {
	t.Helper()
	programsOfKubernetes, err := filepath.Abs(bin)
	must(t, err)
	cmd := exec.Command(filepath.Join(programs, "rocectl"), append([]string{"verify", "--daemonset=rails-verify", "--kubeconfig=" + kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+programsOfKubernetes+":"+os.Getenv("PATH"))
	return cmd
}

// verify returns what it says. Its status is that of RDMA and of locked memory, which this
// machine may lack.
func (who tester) verify(t *testing.T, args ...string) string {
	t.Helper()
	out, _ := who.verifyCommand(t, who.kubeconfig, args...).CombinedOutput()
	return string(out)
}

// objects are those of the namespace that a test could leave behind.
func (n *node) objects(t *testing.T) string {
	t.Helper()
	return n.kubectl(t, "", "get", "pods,secrets,configmaps,roles,rolebindings,networkpolicies,jobs,daemonsets,serviceaccounts", "-o", "name")
}

// lacksOneRightEach takes one right of the Role away. The error names it, and the command that
// it prints gives it.
func (who tester) lacksOneRightEach(t *testing.T) {
	t.Helper()
	whole := `{"rules": ` + who.kubectl(t, "", "get", "role", "rails-verify", "-o", "jsonpath={.rules}") + "}"
	before := who.objects(t)
	for _, c := range []struct{ rule, verb, says, names string }{
		{"0", "get", `cannot get resource "daemonsets" in API group "apps" in the namespace "default"`, "you may not: get daemonsets.apps/rails-verify\n"},
		{"1", "list", `cannot list resource "pods" in API group "" in the namespace "default"`, "you may not: list pods\n"},
		{"1", "get", `cannot get resource "pods" in API group "" in the namespace "default"`, "you may not: get pods\n"},
		{"2", "create", `cannot create resource "pods/exec" in API group "" in the namespace "default"`, "you may not: create pods/exec\n"},
	} {
		rest := strings.TrimSpace(strings.ReplaceAll(`["get","list"]`, `"`+c.verb+`"`, ""))
		rest = strings.NewReplacer("[,", "[", ",]", "]").Replace(rest)
		if c.rule != "1" {
			rest = `["watch"]`
		}
		who.kubectl(t, "", "patch", "role", "rails-verify", "--type=json", "-p", `[{"op": "replace", "path": "/rules/`+c.rule+`/verbs", "value": `+rest+`}]`)
		var out string
		eventually(t, "the error without "+c.names, func(context.Context) error { // the API server learns of it a moment later
			if out = who.verify(t); strings.Contains(out, c.names) {
				return nil
			}
			return errors.New(out)
		})
		bind := "kubectl create rolebinding rails-verify --role=rails-verify --user=" + who.name
		for _, want := range []string{c.says, bind, "conf-examples/deploy/samples/verify.yaml"} {
			if !strings.Contains(out, want) {
				t.Errorf("without %s: want %q in\n%s", c.names, want, out)
			}
		}
		who.kubectl(t, "", "patch", "role", "rails-verify", "--type=merge", "-p", whole)
	}
	if after := who.objects(t); after != before {
		t.Errorf("it leaves objects behind: before\n%s\nafter\n%s", before, after)
	}
	eventually(t, "the test with all rights", func(context.Context) error {
		if out := who.verify(t, "--verbose"); !strings.Contains(out, "packets of 1500 bytes pass\n") {
			return errors.New(out)
		}
		return nil
	})
}

// processes returns those of rocectl in pods, by how their command begins and a variable that
// they have.
func processes(t *testing.T, command, variable string) (out []int) {
	t.Helper()
	folders, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	for _, folder := range folders {
		line, _ := os.ReadFile(folder + "/cmdline") // the process may have ended
		variables, _ := os.ReadFile(folder + "/environ")
		if strings.HasPrefix(strings.ReplaceAll(string(line), "\x00", " "), command) && strings.Contains("\x00"+string(variables), "\x00"+variable) {
			pid, err := strconv.Atoi(filepath.Base(folder))
			must(t, err)
			out = append(out, pid)
		}
	}
	return out
}

func leaders(t *testing.T) []int {
	t.Helper()
	return processes(t, "/rocectl verify --all", "HOSTNAME=")
}

// tell sends a signal to the server in a pod.
func tell(t *testing.T, pod string, signal syscall.Signal) {
	t.Helper()
	all := processes(t, "/rocectl verify serve", "HOSTNAME="+pod+"\x00")
	if len(all) != 1 {
		t.Fatalf("the servers in %s are %v", pod, all)
	}
	must(t, syscall.Kill(all[0], signal))
}

// endsWithItsUser ends the command of a test, each time in another way, while a pod keeps it
// waiting. No process of the test stays in the pods.
func (n *node) endsWithItsUser(t *testing.T) {
	t.Helper()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		for _, group := range []bool{true, false} {
			cmd := n.verifyCommand(t, n.kubeconfig)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			tell(t, "rails-verify-b", syscall.SIGSTOP)
			must(t, cmd.Start())
			eventually(t, "a leader", func(context.Context) error {
				if len(leaders(t)) == 0 {
					return errors.New("none")
				}
				return nil
			})
			pid := cmd.Process.Pid
			if group { // as a terminal does
				pid = -pid
			}
			must(t, syscall.Kill(pid, signal))
			_ = cmd.Wait()
			began := time.Now()
			eventually(t, "the leader ends", func(context.Context) error {
				if left := leaders(t); len(left) > 0 {
					return fmt.Errorf("%v", left)
				}
				return nil
			})
			if took := time.Since(began); took > 5*time.Second { // it waits for the pod for ten
				t.Errorf("%v, whole group %v: the leader ends after %s", signal, group, took)
			}
			tell(t, "rails-verify-b", syscall.SIGCONT)
		}
	}
}
