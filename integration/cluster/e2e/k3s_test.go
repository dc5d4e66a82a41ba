// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
)

// k3sNode is the name of a node with the folders of k3s. It lives as long as its test.
const k3sNode = "k3s-0"

// Where k3s has what its runtime reads. A release is the folder of a release, with a hash as
// its name.
const (
	k3sData    = "/var/lib/rancher/k3s"
	k3sConf    = k3sData + "/agent/etc/cni/net.d"
	k3sRuntime = k3sData + "/agent/etc/containerd/config.toml"
	k3sSocket  = "/run/k3s/containerd/containerd.sock"
	k3sState   = stateDir + "/k3s" // of roce
	release    = "1f5aa17d7bf2e23e3d38790a4a252f21b246031ee4831640110d1ddaf8834f1c"
)

// k3s is a node beside the other one: a mount namespace in which /opt is empty.
type k3s struct {
	*node
	space string // the path of the namespace
}

// newK3s makes the node, without containerd and kubelet.
func (n *node) newK3s(t *testing.T) *k3s {
	t.Helper()
	k := &k3s{node: &node{Cluster: n.Cluster, name: k3sNode, admin: n.admin, kubeconfig: n.kubeconfig, address: "192.0.2.9", multus: n.multus}}
	run(t, "ip", "addr", "add", k.address+"/32", "dev", "lo")
	t.Cleanup(func() { run(t, "ip", "addr", "del", k.address+"/32", "dev", "lo") })
	hidden := []string{"/opt", "/etc/roce", "/etc/cni", "/var/lib/kubelet", "/var/log/pods"}
	for _, dir := range append(hidden, k3sConf, filepath.Dir(k3sRuntime)) {
		must(t, os.MkdirAll(dir, 0o755))
	}
	const mount = `for dir; do mount -t tmpfs -o mode=755 e2e "$dir"; done; mkdir -p /opt/cni/bin /etc/cni/net.d; exec sleep infinity`
	cmd := exec.Command("unshare", append([]string{"--mount", "--propagation=unchanged", "sh", "-euc", mount, "sh"}, hidden...)...)
	p, err := ground.StartProcess(t.Context(), "/var/log/k3s", cmd, func(context.Context) error {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
		if err == nil && string(name) != "sleep\n" {
			err = errors.New("the folders are not hidden yet")
		}
		return err
	})
	must(t, err)
	k.space = fmt.Sprintf("/proc/%d/ns/mnt", cmd.Process.Pid)
	t.Cleanup(func() { must(t, errors.Join(p.Kill(), os.RemoveAll(k3sData))) })
	run(t, k.on("sh", "-c", `echo '{"version": 1, "stateDir": "'$0'"}' > /etc/roce/node.json`, k3sState)...)
	return k
}

// on returns a command that runs on the node.
func (k *k3s) on(command ...string) []string {
	return append([]string{"nsenter", "--mount=" + k.space}, command...)
}

// rocectl returns what it prints on the node. Its status tells of problems.
func (k *k3s) rocectl(t *testing.T, args ...string) string {
	t.Helper()
	all := k.on(append([]string{filepath.Join(programs, "rocectl")}, args...)...)
	cmd := exec.CommandContext(t.Context(), all[0], all[1:]...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("rocectl %q: %v", args, err)
	}
	return string(out)
}

// install puts plugins of others into a folder as k3s does, Multus as its chart does, and
// the configuration of the network of k3s behind that of Multus.
func (k *k3s) install(t *testing.T, folder string) {
	t.Helper()
	must(t, os.MkdirAll(folder, 0o755))
	must(t, os.Symlink(filepath.Join(k3sData, "data", release), filepath.Join(k3sData, "data", "current")))
	from, err := filepath.Abs(bin)
	must(t, err)
	for _, program := range []string{"multus", "bridge", "host-local", "loopback"} {
		must(t, os.Symlink(filepath.Join(from, program), filepath.Join(folder, program)))
	}
	flannel, err := json.Marshal(map[string]any{"name": "cbr0", "cniVersion": "1.0.0", "plugins": []any{map[string]any{"type": "flannel"}}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(k3sConf, "10-flannel.conflist"), flannel, 0o600))
	must(t, os.WriteFile(filepath.Join(k3sConf, "00-multus.conflist"), k.multus, 0o600))
}

// runs starts containerd as k3s does, and kubelet, until the test ends.
func (k *k3s) runs(t *testing.T) {
	t.Helper()
	from, err := filepath.Abs(bin)
	must(t, err)
	ctr := []string{filepath.Join(from, "ctr"), "-a", k3sSocket}
	all := k.on(filepath.Join(from, "containerd"), "-c", k3sRuntime, "-a", k3sSocket, "--state", filepath.Dir(k3sSocket), "--root", k3sData+"/agent/containerd")
	cmd := exec.Command(all[0], all[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+from+":"+os.Getenv("PATH"))
	containerd, err := ground.StartProcess(t.Context(), "/var/log/k3s", cmd, func(ctx context.Context) error {
		return exec.CommandContext(ctx, ctr[0], append(ctr[1:], "version")...).Run()
	})
	must(t, err)
	t.Cleanup(func() { must(t, containerd.Kill()) })
	k.images(t, ctr...)

	group, err := makeCgroups("k3s")
	must(t, err)
	settle(t, "testdata/kubelet.yaml", "/var/lib/k3s-kubelet.yaml", "CGROUP", group, "/run/containerd/containerd.sock", k3sSocket)
	must(t, k.WriteKubeconfig("/var/lib/k3s-kubelet.conf", ground.KubeletToken(k.name)))
	all = k.on(filepath.Join(from, "kubelet"), "--config=/var/lib/k3s-kubelet.yaml", "--kubeconfig=/var/lib/k3s-kubelet.conf",
		"--hostname-override="+k.name, "--node-ip="+k.address, "--port=10350", "--healthz-port=10348")
	kubelet, err := ground.StartProcess(t.Context(), "/var/log/k3s", exec.Command(all[0], all[1:]...), func(ctx context.Context) error {
		return listens(ctx, "127.0.0.1:10348")
	})
	must(t, err)
	t.Cleanup(func() {
		must(t, kubelet.Kill())
		must(t, k.admin.CoreV1().Nodes().Delete(context.Background(), k.name, meta.DeleteOptions{}))
		k.kubectl(t, "", "delete", "railblocks", "--field-selector=spec.nodeName="+k.name)
		k.kubectl(t, "", "delete", "railnode", k.name, "--ignore-not-found") // other tests need those of compute
	})
	k.awaitReady(t)
}

// says fails the test if no line of a check has all of these words.
func says(t *testing.T, answers, check string, words ...string) {
	t.Helper()
	for answer := range strings.SplitSeq(answers, "\n") {
		lacks := func(word string) bool { return !strings.Contains(answer, word) }
		if !lacks(" "+check+" ") && !slices.ContainsFunc(words, lacks) {
			return
		}
	}
	t.Errorf("%s does not say %q:\n%s", check, words, answers)
}

// TestANodeWithTheFoldersOfK3sServesItsPods has what releases of k3s write for containerd.
// rocectl finds the folders without flags, and its command for Helm installs the plugins where
// containerd looks. With the release that has the containerd of the test, a pod gets its rails.
func TestANodeWithTheFoldersOfK3sServesItsPods(t *testing.T) {
	if os.Getenv(thick) != "" {
		t.Skip("the daemon of Multus has the folders of the other node")
	}
	n := theNode(t)
	n.kubelet(t)
	n.deploy(t)
	n.reaper(t)
	n.network(t, "rails", railsOf(map[string]any{"type": "roce-ipam", "railPool": "compute"}))
	from, err := filepath.Abs(bin)
	must(t, err)
	now, later := "containerd1.toml", "containerd2.toml"
	if !strings.Contains(run(t, filepath.Join(from, "containerd"), "--version"), " 1.") {
		now, later = later, now
	}
	for file, folders := range map[string]struct{ reads, chart string }{
		"before.toml": {k3sData + "/data/" + release + "/bin", k3sData + "/data/current/bin"},
		now:           {k3sData + "/data/cni", k3sData + "/data/cni"},
		later:         {k3sData + "/data/cni", k3sData + "/data/cni"},
	} {
		t.Run(file, func(t *testing.T) {
			k := n.newK3s(t)
			settle(t, "testdata/k3s/"+file, k3sRuntime, "HASH", release, "BIN", from)
			k.install(t, folders.reads)
			must(t, os.Rename(filepath.Join(k3sConf, "00-multus.conflist"), filepath.Join(k3sConf, "multus")))
			before := k.rocectl(t, "doctor", "cni-config", "cni-plugins")
			says(t, before, "cni-config", "problem ", "no file of "+k3sConf+" calls Multus")
			says(t, before, "cni-plugins", "problem ", "roce: it is not in "+folders.reads)
			chart := "cniBinDir=" + folders.chart
			if !strings.Contains(before, "helm upgrade roce-cni charts/roce-cni -n roce-cni --reuse-values --set "+chart+" ") {
				t.Errorf("no command of Helm has %s:\n%s", chart, before)
			}
			must(t, os.Rename(filepath.Join(k3sConf, "multus"), filepath.Join(k3sConf, "00-multus.conflist")))
			if file == later {
				return
			}

			k.runs(t)
			n.helm(t, chart, "stateDir="+k3sState)
			t.Cleanup(func() { n.helm(t) })
			k.start(t, k.agent(t))
			after := k.rocectl(t, "doctor", "cni-config", "cni-plugins", "cni-lists")
			says(t, after, "cni-config", "ok ", k3sConf+"/00-multus.conflist calls multus")
			says(t, after, "cni-plugins", "ok ", "roce: ")
			says(t, after, "cni-plugins", "ok ", "roce-ipam: ")
			says(t, after, "cni-lists", "ok ", "no file of "+k3sConf+" has sbr")
			status := k.rocectl(t, "status")
			says(t, status, "plugins", "ok ")
			says(t, status, "agent", "ok ", "healthy, ")
			if file != now {
				return
			}
			pod := k.running(t, k.start(t, shell("k3s-pod", "rails")))
			pod.state = k3sState
			pod.holds(t, 2)
			for i, address := range pod.rails(t) {
				pod.inside(t, "ping", "-c1", "-W2", "-I", address.String(), fmt.Sprintf("172.16.%d.254", 10+i))
			}
			if left := run(t, k.on("find", "/opt/cni", "/etc/cni", "!", "-type", "d")...); left != "" {
				t.Errorf("the folders of other runtimes have\n%s", left)
			}
		})
	}
}
