// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
)

// deployment is what an operator applies, and chart what Helm installs in its place.
const (
	deployment = "../../../conf-examples/deploy"
	chart      = "../../../charts/roce-cni"
)

// compute is a pool of four blocks: slots 64 to 127 of both rails.
const compute = `
apiVersion: roce-cni.io/v1alpha1
kind: RailPool
metadata: {name: compute}
spec:
  template:
    count: 2
    subnets: [{subnet: "172.16.{rail+10}.0/24", ranges: ["172.16.{rail+10}.64/26"], gateway: "172.16.{rail+10}.254"}]
`

// kubectl runs it with all rights and a standard input, and returns what it
// prints. A cleanup may call it, too.
func (n *node) kubectl(t *testing.T, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "kubectl"), append([]string{"--kubeconfig=" + n.kubeconfig, "--cache-dir=" + t.TempDir()}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// helm installs or upgrades the chart, with values beside those for our image.
func (n *node) helm(t *testing.T, values ...string) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(filepath.Join(bin, "helm"), "upgrade", "--install", "roce-cni", chart, "--namespace=roce-cni", "--kubeconfig="+n.kubeconfig,
		"--set="+strings.Join(append([]string{"image.registry=docker.io/library,image.tag=local"}, values...), ","))
	cmd.Env = append(os.Environ(), "HOME="+dir, "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("helm %q: %v\n%s", values, err, out)
	}
}

// deploy installs the chart if no test has done so before, and applies the pool.
func (n *node) deploy(t *testing.T) {
	t.Helper()
	if _, err := n.admin.CoreV1().Namespaces().Get(t.Context(), "roce-cni", meta.GetOptions{}); apierrors.IsNotFound(err) {
		n.kubectl(t, "", "apply", "-f", deployment+"/namespace.yaml")
		n.helm(t)
	}
	n.kubectl(t, "", "wait", "--for=condition=Established", "crd/railpools.roce-cni.io", "crd/railblocks.roce-cni.io", "crd/railnodes.roce-cni.io")
	n.kubectl(t, compute, "apply", "-f", "-")
}

// reaper runs rocectl gc, which marks pools, where its pod is not what is tested.
func (n *node) reaper(t *testing.T) {
	t.Helper()
	cmd := exec.Command(filepath.Join(programs, "rocectl"), "gc", "--cluster", "--kubeconfig="+n.kubeconfig)
	p, err := ground.StartProcess(t.Context(), "/var/log/gc", cmd, func(context.Context) error { return nil })
	must(t, err)
	t.Cleanup(func() { must(t, p.Kill()) })
}

// agent is the pod that the DaemonSet's controller would make.
func (n *node) agent(t *testing.T) *core.Pod {
	t.Helper()
	set, err := n.admin.AppsV1().DaemonSets("roce-cni").Get(t.Context(), "roce-cni-agent", meta.GetOptions{})
	must(t, err)
	return n.inCluster(t, set.Name, set.Spec.Template)
}

// inCluster is a pod of ours as a controller would make it of a template. Its
// container reaches the API server. The volume is what the admission of service
// accounts would add.
func (n *node) inCluster(t *testing.T, name string, template core.PodTemplateSpec) *core.Pod {
	t.Helper()
	authority, err := os.ReadFile(n.Admin().CAFile)
	must(t, err)
	root := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": string(authority)}}
	if _, err := n.admin.CoreV1().ConfigMaps("roce-cni").Create(t.Context(), root, meta.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		must(t, err)
	}
	pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Namespace: "roce-cni", Name: name, Labels: template.Labels}, Spec: template.Spec}
	lifetime := int64(3600)
	pod.Spec.Volumes = append(pod.Spec.Volumes, core.Volume{Name: "token", VolumeSource: core.VolumeSource{Projected: &core.ProjectedVolumeSource{
		Sources: []core.VolumeProjection{
			{ServiceAccountToken: &core.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &lifetime}},
			{ConfigMap: &core.ConfigMapProjection{LocalObjectReference: core.LocalObjectReference{Name: root.Name}}},
			{DownwardAPI: &core.DownwardAPIProjection{Items: []core.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &core.ObjectFieldSelector{FieldPath: "metadata.namespace"}},
			}}},
		},
	}}})
	pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, core.VolumeMount{
		Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true,
	})
	return pod
}

// TestTheDaemonSetServesTheNodesPods deploys what the chart has, and nothing else: the
// agent's pod installs the plugins, claims a block, and pods have addresses of it.
func TestTheDaemonSetServesTheNodesPods(t *testing.T) {
	n := theNode(t)
	n.kubelet(t)
	for _, plugin := range []string{"roce", "roce-ipam"} {
		must(t, os.Remove(filepath.Join(plugins, plugin)))
	}
	n.deploy(t)
	n.reaper(t)
	n.network(t, "rails", railsOf(map[string]any{"type": "roce-ipam", "railPool": "compute"}))
	n.start(t, n.agent(t))
	for _, plugin := range []string{"roce", "roce-ipam"} {
		if run(t, "cmp", filepath.Join(programs, plugin), filepath.Join(plugins, plugin)) != "" {
			t.Errorf("%s is not what the image has", plugin)
		}
	}

	a := n.running(t, n.start(t, shell("pooled-a", "rails")))
	b := n.running(t, n.start(t, shell("pooled-b", "rails")))
	a.pings(t, b)
	a.holds(t, 2)
	var index int
	block := strings.TrimSpace(n.kubectl(t, "", "get", "railblocks", "--field-selector=spec.nodeName="+n.name, "-o", "jsonpath={.items[*].spec.index}"))
	if _, err := fmt.Sscanf(block, "%d", &index); err != nil {
		t.Fatalf("the blocks of the node are %q: %v", block, err)
	}
	for _, address := range append(a.rails(t), b.rails(t)...) {
		if slot := int(address.As4()[3]); slot/16 != index {
			t.Errorf("%v is not of block %d", address, index)
		}
	}
	n.stop(t, a.Pod)
	a.holds(t, 0)

	orphan := n.sandbox(t, "pooled-orphan", "rails")
	orphan.add(t)
	orphan.holds(t, 2)
	must(t, n.KillServer())
	t.Cleanup(func() { must(t, n.StartServer(context.Background())) })
	orphan.del(t)
	orphan.isBare(t)
}
