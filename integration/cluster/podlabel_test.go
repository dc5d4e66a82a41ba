// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
)

// withPodLabels returns a control plane that can have the policies of the label on pods, and the
// version of their API: Kubernetes 1.35 has them behind a flag, and as v1beta1.
func withPodLabels(t *testing.T) (c *ground.Cluster, apiVersion string) {
	t.Helper()
	need(t, "kube-apiserver")
	version, err := exec.CommandContext(t.Context(), filepath.Join(bin, "kube-apiserver"), "--version").Output()
	must(t, err)
	minor := regexp.MustCompile(`v1\.(\d+)`).FindSubmatch(version)
	switch {
	case minor == nil || bytes.Compare(minor[1], []byte("35")) < 0:
		t.Skipf("%s has no such policies", version)
	case string(minor[1]) == "35":
		return own(t, "--feature-gates=MutatingAdmissionPolicy=true", "--runtime-config=admissionregistration.k8s.io/v1beta1=true"), "v1beta1"
	}
	return own(t), "v1"
}

// tryPod asks the API server what a pod of the namespace default would be.
func tryPod(ctx context.Context, t *testing.T, c *ground.Cluster, metadata, spec string) (*core.Pod, error) {
	t.Helper()
	pod := &core.Pod{}
	must(t, yaml.UnmarshalStrict([]byte("metadata: {name: x, "+metadata+"}\nspec: {"+spec+"}"), pod))
	return client(t, c.Admin()).CoreV1().Pods("default").Create(ctx, pod, meta.CreateOptions{DryRun: []string{meta.DryRunAll}})
}

// podLabelsInForce waits until the policies know the class big.
func podLabelsInForce(t *testing.T, c *ground.Cluster) {
	t.Helper()
	inForce(t, c)
	eventually(t, "the policies are in force", func(ctx context.Context) error {
		pod, err := tryPod(ctx, t, c, "labels: {roce-cni.io/rails: big}", "containers: [{name: a, image: i}]")
		if err != nil || len(pod.Spec.InitContainers) == 0 {
			return apierrors.NewServiceUnavailable(fmt.Sprint("the label has no effect yet: ", err))
		}
		_, err = tryPod(ctx, t, c, "labels: {roce-cni.io/rails: none}", "containers: [{name: a, image: i}]")
		if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			return errors.New("a label without class is not refused yet")
		}
		return nil
	})
}

// TestTheChartHasTheLabelOnPods installs it with another class than its own.
func TestTheChartHasTheLabelOnPods(t *testing.T) {
	t.Parallel()
	c, apiVersion := withPodLabels(t)
	helm(t, c, "install", "roce-cni", chart, "--create-namespace", "--set=image.tag=v7,podLabel.enabled=true,podLabel.apiVersion="+apiVersion,
		"--set=podLabel.classes.big.network=infra/rails,podLabel.classes.big.resource=example.org/rdma,podLabel.classes.big.shm=64Gi")
	podLabelsInForce(t, c)
	pod, err := tryPod(t.Context(), t, c, "labels: {roce-cni.io/rails: big}", "containers: [{name: a, image: i}]")
	must(t, err)
	const want = "networks=infra/rails; init roce-cni-env; a: example.org/rdma=1 [IPC_LOCK] roce-cni-env@/roce roce-cni-shm@/dev/shm; volume roce-cni-env; volume roce-cni-shm Memory 64Gi"
	if image := pod.Spec.InitContainers[0].Image; got(pod) != want || image != "registry.example.org/roce-cni:v7" {
		t.Errorf("the pod has the image %s and\n%s\nwant\n%s", image, got(pod), want)
	}
}

// otherClass has a network in another namespace.
const otherClass = `
apiVersion: v1
kind: ConfigMap
metadata: {name: big, namespace: roce-cni, labels: {roce-cni.io/pod-label: class}}
data: {network: infra/rails, resource: example.org/rdma, shm: 64Gi, image: "example.org/roce:1"}`

// got says in one line what a pod has of the lines that its label stands for.
func got(pod *core.Pod) string {
	out := []string{"networks=" + pod.Annotations["k8s.v1.cni.cncf.io/networks"]}
	for _, c := range pod.Spec.InitContainers {
		out = append(out, "init "+c.Name)
	}
	for _, c := range pod.Spec.Containers {
		has := []string{c.Name + ":"}
		for name, n := range c.Resources.Limits {
			if strings.HasSuffix(string(name), "rdma") || strings.HasSuffix(string(name), "rails") {
				has = append(has, fmt.Sprint(name, "=", n.Value()))
				if request := c.Resources.Requests[name]; request.Cmp(n) != 0 {
					has = append(has, "another request")
				}
			}
		}
		if c.SecurityContext != nil && c.SecurityContext.Capabilities != nil {
			has = append(has, fmt.Sprint(c.SecurityContext.Capabilities.Add))
		}
		for _, m := range c.VolumeMounts {
			has = append(has, m.Name+"@"+m.MountPath)
		}
		out = append(out, strings.Join(has, " "))
	}
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil:
			out = append(out, "volume "+v.Name+" "+string(v.EmptyDir.Medium)+" "+v.EmptyDir.SizeLimit.String())
		default:
			out = append(out, "volume "+v.Name)
		}
	}
	return strings.Join(out, "; ")
}

// TestALabelOnAPodStandsForItsLines has pods as people write them: what each becomes, or why it is
// refused.
func TestALabelOnAPodStandsForItsLines(t *testing.T) {
	t.Parallel()
	const (
		volumes = "; volume roce-cni-env; volume roce-cni-shm Memory 8Gi"
		mounts  = " roce-cni-env@/roce roce-cni-shm@/dev/shm"
		all     = " rdma/rails=1 [IPC_LOCK]" + mounts
		one     = "networks=rails; init roce-cni-env; a:" + all + volumes
	)
	rails := "labels: {roce-cni.io/rails: rails}"
	c, apiVersion := withPodLabels(t)
	applyText(t, c, "namespace", []byte("{apiVersion: v1, kind: Namespace, metadata: {name: roce-cni}}"))
	for _, path := range kustomized(t, filepath.Join(deployment, "pod-label")) {
		text, err := os.ReadFile(path)
		must(t, err)
		applyText(t, c, path, bytes.ReplaceAll(text, []byte("/v1\nkind: Mutating"), []byte("/"+apiVersion+"\nkind: Mutating")))
	}
	applyText(t, c, "class", []byte(otherClass))
	podLabelsInForce(t, c)
	for name, p := range map[string]struct{ metadata, spec, want string }{
		"no label":                        {"labels: {a: b}", "containers: [{name: a, image: i}]", "networks=; a:"},
		"one container":                   {rails, "containers: [{name: a, image: i}]", one},
		"another class":                   {"labels: {roce-cni.io/rails: big}", "containers: [{name: a, image: i}]", "networks=infra/rails; init roce-cni-env; a: example.org/rdma=1 [IPC_LOCK]" + mounts + "; volume roce-cni-env; volume roce-cni-shm Memory 64Gi"},
		"other labels and annotations":    {"labels: {a: b, roce-cni.io/rails: rails}, annotations: {c: d}", "containers: [{name: a, image: i}]", one},
		"a sidecar":                       {rails, "containers: [{name: a, image: i}, {name: b, image: i}]", "networks=rails; init roce-cni-env; a:" + all + "; b:" + volumes},
		"a GPU in the second":             {rails, "containers: [{name: a, image: i}, {name: b, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]", "networks=rails; init roce-cni-env; a:; b:" + all + volumes},
		"GPUs in both":                    {rails, "containers: [{name: a, image: i, resources: {limits: {amd.com/gpu: 1}}}, {name: b, image: i, resources: {limits: {amd.com/gpu: 1}}}]", "networks=rails; init roce-cni-env; a:" + all + "; b:" + all + volumes},
		"a GPU in none of three":          {rails, "containers: [{name: a, image: i}, {name: b, image: i}, {name: c, image: i}]", "networks=rails; init roce-cni-env; a:" + all + "; b:; c:" + volumes},
		"an init container":               {rails, "initContainers: [{name: first, image: i}], containers: [{name: a, image: i}]", "networks=rails; init roce-cni-env; init first; a:" + all + volumes},
		"volumes":                         {rails, "volumes: [{name: data, emptyDir: {}}], containers: [{name: a, image: i, volumeMounts: [{name: data, mountPath: /data}]}]", "networks=rails; init roce-cni-env; a: rdma/rails=1 [IPC_LOCK] data@/data" + mounts + "; volume data; volume roce-cni-env; volume roce-cni-shm Memory 8Gi"},
		"a /dev/shm of its own":           {rails, "volumes: [{name: s, emptyDir: {medium: Memory}}], containers: [{name: a, image: i, volumeMounts: [{name: s, mountPath: /dev/shm}]}]", "networks=rails; init roce-cni-env; a: rdma/rails=1 [IPC_LOCK] s@/dev/shm roce-cni-env@/roce; volume s; volume roce-cni-env; volume roce-cni-shm Memory 8Gi"},
		"a /roce of its own":              {rails, "volumes: [{name: r, emptyDir: {}}], containers: [{name: a, image: i, volumeMounts: [{name: r, mountPath: /roce}]}]", "networks=rails; init roce-cni-env; a: rdma/rails=1 [IPC_LOCK] r@/roce roce-cni-shm@/dev/shm; volume r; volume roce-cni-env; volume roce-cni-shm Memory 8Gi"},
		"limits":                          {rails, "containers: [{name: a, image: i, resources: {limits: {cpu: 8, memory: 64Gi}}}]", one},
		"requests":                        {rails, "containers: [{name: a, image: i, resources: {requests: {cpu: 8}}}]", one},
		"the resource is there":           {rails, "containers: [{name: a, image: i, resources: {limits: {rdma/rails: 1}}}]", one},
		"two of the resource":             {rails, "containers: [{name: a, image: i, resources: {limits: {rdma/rails: 2}}}]", strings.Replace(one, "rails=1", "rails=2", 1)},
		"IPC_LOCK is there":               {rails, "containers: [{name: a, image: i, securityContext: {capabilities: {add: [IPC_LOCK]}}}]", one},
		"another capability":              {rails, "containers: [{name: a, image: i, securityContext: {capabilities: {add: [NET_RAW]}}}]", strings.Replace(one, "[IPC", "[NET_RAW IPC", 1)},
		"drops all":                       {rails, "containers: [{name: a, image: i, securityContext: {capabilities: {drop: [ALL]}}}]", one},
		"a security context":              {rails, "containers: [{name: a, image: i, securityContext: {runAsUser: 1000}}]", one},
		"the annotation is there":         {rails + ", annotations: {k8s.v1.cni.cncf.io/networks: rails}", "containers: [{name: a, image: i}]", one},
		"with another network":            {rails + ", annotations: {k8s.v1.cni.cncf.io/networks: 'rails, other@net9'}", "containers: [{name: a, image: i}]", strings.Replace(one, "=rails;", "=rails, other@net9;", 1)},
		"in JSON":                         {rails + `, annotations: {k8s.v1.cni.cncf.io/networks: '[{"name":"rails"}]'}`, "containers: [{name: a, image: i}]", strings.Replace(one, "=rails;", `=[{"name":"rails"}];`, 1)},
		"the second annotation of a user": {rails + ", annotations: {roce-cni.io/rails: other}", "containers: [{name: a, image: i}]", one},
		"no such class":                   {"labels: {roce-cni.io/rails: none}", "containers: [{name: a, image: i}]", `has no ConfigMap "none"`},
		"an empty label":                  {"labels: {roce-cni.io/rails: ''}", "containers: [{name: a, image: i}]", `has no ConfigMap ""`},
		"another network only":            {rails + ", annotations: {k8s.v1.cni.cncf.io/networks: other}", "containers: [{name: a, image: i}]", "add rails to it"},
		"a name that contains the name":   {rails + ", annotations: {k8s.v1.cni.cncf.io/networks: 'rails2,my-rails'}", "containers: [{name: a, image: i}]", "add rails to it"},
		"another network in JSON":         {rails + `, annotations: {k8s.v1.cni.cncf.io/networks: '[{"name":"rails2"}]'}`, "containers: [{name: a, image: i}]", "add rails to it"},
		"hostNetwork":                     {rails, "hostNetwork: true, containers: [{name: a, image: i}]", "has the NICs of the node already"},
		"drops IPC_LOCK":                  {rails, "containers: [{name: a, image: i, securityContext: {capabilities: {drop: [IPC_LOCK]}}}]", "Remove it from capabilities.drop"},
		"a volume of our name":            {rails, "volumes: [{name: roce-cni-shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}], containers: [{name: a, image: i}]", "networks=rails; init roce-cni-env; a:" + all + "; volume roce-cni-shm Memory 1Gi; volume roce-cni-env"},
		"the network with its namespace":  {rails + ", annotations: {k8s.v1.cni.cncf.io/networks: default/rails}", "containers: [{name: a, image: i}]", strings.Replace(one, "=rails;", "=default/rails;", 1)},
		"of another namespace":            {rails + ", annotations: {k8s.v1.cni.cncf.io/networks: other/rails}", "containers: [{name: a, image: i}]", "add rails to it"},
		"of another namespace in JSON":    {rails + `, annotations: {k8s.v1.cni.cncf.io/networks: '[{"name":"rails","namespace":"other"}]'}`, "containers: [{name: a, image: i}]", "add rails to it"},
		"an interface of that name":       {rails + `, annotations: {k8s.v1.cni.cncf.io/networks: '[{"name":"other","interface":"rails"}]'}`, "containers: [{name: a, image: i}]", "add rails to it"},
		"second in JSON":                  {rails + `, annotations: {k8s.v1.cni.cncf.io/networks: '[{"name":"other","interface":"net9"}, {"name": "rails", "namespace": "default"}]'}`, "containers: [{name: a, image: i}]", strings.Replace(one, "=rails;", `=[{"name":"other","interface":"net9"}, {"name": "rails", "namespace": "default"}];`, 1)},
		"the marker of another class":     {"labels: {roce-cni.io/rails: none}, annotations: {roce-cni.io/rails: rails=rails, k8s.v1.cni.cncf.io/networks: rails}", "containers: [{name: a, image: i}]", `has no ConfigMap "none"`},
		"a sidecar drops IPC_LOCK":        {rails, "containers: [{name: a, image: i}, {name: b, image: i, securityContext: {capabilities: {drop: [IPC_LOCK]}}}]", "networks=rails; init roce-cni-env; a:" + all + "; b: []" + volumes},
	} {
		pod, err := tryPod(t.Context(), t, c, p.metadata, p.spec)
		switch {
		case err != nil && !(apierrors.IsInvalid(err) && strings.Contains(err.Error(), p.want)):
			t.Errorf("%s: %v\nwant %s", name, err, p.want)
		case err == nil && got(pod) != p.want:
			t.Errorf("%s:\n%s\nwant\n%s", name, got(pod), p.want)
		}
		if err != nil {
			continue
		}
		again, err := client(t, c.Admin()).CoreV1().Pods("default").Create(t.Context(), &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "x", Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec},
			meta.CreateOptions{DryRun: []string{meta.DryRunAll}})
		if err != nil || got(again) != p.want {
			t.Errorf("%s, made again from the pod that there is: %v, error %v", name, got(again), err)
		}
	}
	pod, err := tryPod(t.Context(), t, c, rails, "containers: [{name: a, image: i, resources: {limits: {cpu: 8, memory: 64Gi}}}]")
	if must(t, err); pod.Status.QOSClass != core.PodQOSGuaranteed {
		t.Errorf("a pod that was Guaranteed is %s", pod.Status.QOSClass)
	}
}
