// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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

// TestTheUninstallerRemovesThePluginsWhenNoPodNeedsThem runs its pod as it is.
func TestTheUninstallerRemovesThePluginsWhenNoPodNeedsThem(t *testing.T) {
	n := theNode(t)
	n.kubelet(t)
	n.deploy(t)
	n.kubectl(t, "", "apply", "-k", deployment+"/uninstall")
	set, err := n.admin.AppsV1().DaemonSets("roce-cni").Get(t.Context(), "roce-cni-uninstall", meta.GetOptions{})
	must(t, err)
	pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Namespace: "roce-cni", Name: set.Name}, Spec: set.Spec.Template.Spec}
	pod.Spec.InitContainers[0].Image, pod.Spec.Containers[0].Image = "docker.io/library/roce-cni:local", "registry.k8s.io/pause:local"
	n.start(t, pod)
	for _, plugin := range []string{"roce", "roce-ipam"} {
		path := filepath.Join(plugins, plugin)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", path, err)
		}
		must(t, os.Symlink(filepath.Join(programs, plugin), path)) // as it was
	}
}
