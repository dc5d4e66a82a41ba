// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTheReapersPodIsElectedAndSumsUp runs it as it is, but for the network: that
// of pods leads nowhere here.
func TestTheReapersPodIsElectedAndSumsUp(t *testing.T) {
	n := theNode(t)
	n.kubelet(t)
	n.deploy(t)
	set, err := n.admin.AppsV1().Deployments("roce-cni").Get(t.Context(), "roce-cni-gc", meta.GetOptions{})
	must(t, err)
	pod := n.inCluster(t, set.Name, set.Spec.Template)
	pod.Spec.HostNetwork = true
	n.start(t, pod)
	eventually(t, "the reaper sums up the pool", func(context.Context) error {
		if n.kubectl(t, "", "get", "railpool", "compute", "-o", "jsonpath={.status.blocks}") != "4" {
			return errors.New(n.kubectl(t, "", "get", "leases,railpools", "-A"))
		}
		return nil
	})
}

// TestTheUninstallerRemovesThePluginsWhenNoPodNeedsThem runs its pod as it is, for a
// runtime with another folder of plugins.
func TestTheUninstallerRemovesThePluginsWhenNoPodNeedsThem(t *testing.T) {
	n := theNode(t)
	n.kubelet(t)
	n.deploy(t)
	const folder = "/var/lib/cni-plugins"
	n.helm(t, "uninstall=true", "cniBinDir="+folder)
	t.Cleanup(func() { n.helm(t) })
	set, err := n.admin.AppsV1().DaemonSets("roce-cni").Get(t.Context(), "roce-cni-uninstall", meta.GetOptions{})
	must(t, err)
	pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Namespace: "roce-cni", Name: set.Name}, Spec: set.Spec.Template.Spec}
	pod.Spec.Containers[0].Image = "registry.k8s.io/pause:local"
	must(t, os.Mkdir(folder, 0o755))
	for _, program := range []string{"roce", "roce-ipam", "rocectl", "other"} {
		must(t, os.WriteFile(filepath.Join(folder, program), nil, 0o600))
	}
	n.start(t, pod)
	if left := run(t, "ls", folder); left != "other\n" {
		t.Errorf("%s has\n%s", folder, left)
	}
}

// TestTheToolsSeeThePodsOfTheirNode starts the pod of the tools before a pod with
// rails, so that the namespace of that pod is a mount that appears later, and runs
// rocectl in it as an operator does.
func TestTheToolsSeeThePodsOfTheirNode(t *testing.T) {
	n := theNode(t)
	n.kubelet(t)
	n.deploy(t)
	n.kubectl(t, "", "apply", "-k", deployment+"/tools")
	set, err := n.admin.AppsV1().DaemonSets("roce-cni").Get(t.Context(), "roce-cni-tools", meta.GetOptions{})
	must(t, err)
	rocectl := filepath.Join(plugins, "rocectl")
	text, err := os.ReadFile(filepath.Join(programs, "rocectl")) // a copy, as the agent's pod makes it
	must(t, err)
	must(t, os.WriteFile(rocectl, text, 0o755))
	t.Cleanup(func() { must(t, os.Remove(rocectl)) })
	tools := &core.Pod{ObjectMeta: meta.ObjectMeta{Namespace: "roce-cni", Name: set.Name}, Spec: set.Spec.Template.Spec}
	tools.Spec.Containers[0].Image = "registry.k8s.io/pause:local"
	n.start(t, tools)

	n.network(t, "rails", rails())
	pod := n.running(t, n.start(t, shell("seen-by-tools", "rails")))
	inTools := func(args ...string) string {
		return n.kubectl(t, "", append([]string{"exec", "--namespace=roce-cni", set.Name, "--", rocectl}, args...)...)
	}
	if got := inTools("show"); strings.Count(got, "default/seen-by-tools") != 2 {
		t.Errorf("rocectl show, in the pod of the tools:\n%s", got)
	}
	inTools("check") // with status 0
	pod.inside(t, "ip", "route", "flush", "table", "100")
	inTools("repair", "--yes")
	inTools("check")
	if pod.inside(t, "ip", "route", "show", "table", "100") == "" {
		t.Error("the pod does not have its routes again")
	}
}
