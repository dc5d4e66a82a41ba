// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
)

// examples is the folder of all examples, and chart that of the Helm chart.
const (
	examples = "../../conf-examples"
	chart    = "../../charts/roce-cni"
)

// TestTheServerAcceptsTheChartAndAllExamples has a control plane of its own: Helm
// installs the chart on it, and then the server is asked about each YAML file of the
// examples, as an operator would apply it, and about what rocectl generate writes.
func TestTheServerAcceptsTheChartAndAllExamples(t *testing.T) {
	t.Parallel()
	c := own(t)
	helm(t, c, "install", "roce-cni", chart, "--create-namespace")
	kubectl(t, c, "wait", "--for=condition=Established", "crd/railpools.roce-cni.io", "crd/railblocks.roce-cni.io", "crd/railleases.roce-cni.io", "crd/railnodes.roce-cni.io")
	installed := chartObjects(t, c)
	for _, want := range []string{
		"daemonset.apps/roce-cni-agent", "deployment.apps/roce-cni-gc", "daemonset.apps/rdma-shared-device-plugin",
		"flowschema.flowcontrol.apiserver.k8s.io/roce-cni-agents", "validatingadmissionpolicy.admissionregistration.k8s.io/roce-cni-own-blocks",
	} {
		if !strings.Contains(installed, want+"\n") {
			t.Errorf("after helm install there is no %s:\n%s", want, installed)
		}
	}

	applyFile(t, c, "e2e/testdata/network-attachment-definition.yaml")
	for _, crds := range []string{"lws-crds", "pytorch-crds", "mpi-crds", "ray-crds"} {
		applyFile(t, c, filepath.Join(bin, crds))
	}
	for _, path := range manifests(t) {
		applyFile(t, c, path, meta.DryRunAll)
	}
	for path, text := range generated(t) {
		applyText(t, c, path, text, meta.DryRunAll)
	}

	helm(t, c, "upgrade", "roce-cni", chart, "--set=gc.replicas=3,imageRegistry=mirror.example.org")
	if got := kubectl(t, c, "--namespace=roce-cni", "get", "deployment/roce-cni-gc", "--output=jsonpath={.spec.replicas} {.spec.template.spec.containers[0].image}"); !strings.HasPrefix(got, "3 mirror.example.org/") {
		t.Errorf("after helm upgrade the reaper has %q", got)
	}
	helm(t, c, "uninstall", "roce-cni", "--wait=false")
	if left := chartObjects(t, c); left != "" {
		t.Errorf("after helm uninstall there is still\n%s", left)
	}
	kubectl(t, c, "get", "crd/railpools.roce-cni.io") // Helm keeps definitions, and with them the pools
}

// manifests returns the YAML files of the examples that an operator applies by
// themselves, in any order. The definition of a Job of Volcano is in no Go module:
// integration/others has a test for it.
func manifests(t *testing.T) []string {
	t.Helper()
	var out []string
	must(t, filepath.WalkDir(examples, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".yaml" || e.Name() == "kustomization.yaml" || e.Name() == "volcano.yaml" ||
			slices.Contains([]string{"pod-label", "monitoring"}, filepath.Base(filepath.Dir(path))) { // podlabel_test.go, monitoring_test.go
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "\nkind: ") || strings.HasPrefix(string(text), "kind: ") {
			out = append(out, path)
		}
		return err
	}))
	if len(out) < 20 {
		t.Fatalf("the examples are only %q", out)
	}
	return out
}

// generated returns what rocectl generate writes, from a node and from the objects of other
// network stacks, in a namespace that exists, and without the documents that are comments
// alone.
func generated(t *testing.T) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("../../pkg/tool/generate/testdata/*.yaml")
	must(t, err)
	namespace := regexp.MustCompile(`(?m)^  namespace: .*$`)
	out := map[string][]byte{}
	for _, path := range paths {
		if strings.HasSuffix(path, ".in.yaml") {
			continue
		}
		text, err := os.ReadFile(path)
		must(t, err)
		docs := slices.DeleteFunc(bytes.Split(text, []byte("\n---\n")), func(doc []byte) bool { return !bytes.Contains(doc, []byte("kind: ")) })
		if len(docs) > 0 {
			out[path] = namespace.ReplaceAll(bytes.Join(docs, []byte("\n---\n")), []byte("  namespace: default"))
		}
	}
	if len(out) < 8 {
		t.Fatalf("what is generated is only %d files", len(out))
	}
	return out
}

// chartObjects lists what the chart has made in the cluster, by kind and name.
func chartObjects(t *testing.T, c *ground.Cluster) string {
	t.Helper()
	const kinds = "daemonsets,deployments,configmaps,serviceaccounts,roles,rolebindings"
	const clusterKinds = "clusterroles,clusterrolebindings,flowschemas,prioritylevelconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings"
	return kubectl(t, c, "--namespace=roce-cni", "get", kinds+","+clusterKinds, "--selector=app.kubernetes.io/managed-by=Helm", "--output=name")
}

// helm runs it with all rights, for a release in the namespace roce-cni.
func helm(t *testing.T, c *ground.Cluster, args ...string) {
	t.Helper()
	need(t, "helm")
	dir := t.TempDir()
	as := filepath.Join(dir, "kubeconfig")
	must(t, c.WriteKubeconfig(as, c.Admin().BearerToken))
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "helm"), append(args, "--kubeconfig="+as, "--namespace=roce-cni")...)
	cmd.Env = append(os.Environ(), "HOME="+dir, "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
