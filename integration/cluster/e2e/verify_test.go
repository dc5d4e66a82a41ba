// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

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
	n.kubectl(t, "", "create", "secret", "generic", "rails-verify", "--from-literal=token=a-test")
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
	page := filepath.Join(t.TempDir(), "page.html")
	programsOfKubernetes, err := filepath.Abs(bin)
	must(t, err)
	verify := exec.Command(filepath.Join(programs, "rocectl"), "verify", "--daemonset=rails-verify", "--kubeconfig="+n.kubeconfig, "--html="+page)
	verify.Env = append(os.Environ(), "PATH="+programsOfKubernetes+":"+os.Getenv("PATH"))
	out, _ := verify.CombinedOutput() // its status is that of RDMA and of locked memory, which this machine may lack
	for _, want := range []string{
		"round 1 of 1\n", "packets of 1500 bytes pass\n", "no other host has 172.16.1", "1 of 3 nodes have no pod of it", "needs: kubectl describe daemonset rails-verify",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
	if t.Failed() {
		t.Log(n.kubectl(t, "", "logs", "rails-verify-a"))
	}
	if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "packets of 1500 bytes pass") {
		t.Errorf("the page: %v\n%s", err, html)
	}
}
