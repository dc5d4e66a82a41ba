// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
)

// kubelet starts containerd and kubelet, once: they run until the node ends.
func (n *node) kubelet(t *testing.T) {
	t.Helper()
	linkPlugins(t)
	began := time.Now()
	n.once.Do(func() {
		must(t, os.Mkdir("/opt/cni/net.d", 0o755))
		must(t, os.WriteFile("/opt/cni/net.d/00-multus.conflist", n.multus, 0o600))
		n.startContainerd(t)
		n.images(t, filepath.Join(bin, "ctr"))
		n.startKubelet(t)
	})
	n.awaitReady(t)
	t.Logf("the node is ready after %v", time.Since(began).Round(10*time.Millisecond))
}

func (n *node) awaitReady(t *testing.T) {
	t.Helper()
	eventually(t, "the node is ready", func(ctx context.Context) error {
		node, err := n.admin.CoreV1().Nodes().Get(ctx, n.name, meta.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == core.NodeReady && c.Status == core.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%+v", node.Status.Conditions)
	})
}

// linkPlugins puts our plugins where runtimes look for them, unless they are there.
func linkPlugins(t *testing.T) {
	t.Helper()
	for _, program := range []string{"roce", "roce-ipam"} {
		if err := os.Symlink(filepath.Join(programs, program), filepath.Join(plugins, program)); !errors.Is(err, fs.ErrExist) {
			must(t, err)
		}
	}
}

func (n *node) startContainerd(t *testing.T) {
	t.Helper()
	from, err := filepath.Abs(bin)
	must(t, err)
	settle(t, "testdata/containerd.toml", "/var/lib/containerd.toml", "BIN", from)
	cmd := exec.Command(filepath.Join(from, "containerd"), "--config=/var/lib/containerd.toml")
	cmd.Env = append(os.Environ(), "PATH="+from+":"+os.Getenv("PATH")) // its shim
	_, err = ground.StartProcess(t.Context(), "/var/log/containerd.log", cmd, func(ctx context.Context) error {
		return exec.CommandContext(ctx, filepath.Join(from, "ctr"), "version").Run()
	})
	must(t, err)
	n.containerd = cmd.Process.Pid
}

func (n *node) startKubelet(t *testing.T) {
	t.Helper()
	must(t, pretend())
	group, err := makeCgroups("")
	must(t, err)
	settle(t, "testdata/kubelet.yaml", "/var/lib/kubelet.yaml", "CGROUP", group)
	must(t, n.WriteKubeconfig("/var/lib/kubelet.conf", ground.KubeletToken(n.name)))
	from, err := filepath.Abs(bin)
	must(t, err)
	cmd := exec.Command(filepath.Join(from, "kubelet"), "--config=/var/lib/kubelet.yaml", "--kubeconfig=/var/lib/kubelet.conf",
		"--hostname-override="+n.name, "--node-ip="+n.address)
	_, err = ground.StartProcess(t.Context(), "/var/log/kubelet.log", cmd, func(ctx context.Context) error {
		return listens(ctx, "127.0.0.1:10248")
	})
	must(t, err)
}

// listens asks whether a program listens at an address.
func listens(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// settle writes a file with words replaced, each by the next one.
func settle(t *testing.T, from, to string, words ...string) {
	t.Helper()
	text, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, []byte(strings.NewReplacer(words...).Replace(string(text))), 0o600))
}

// pretend shows kubelet the kernel settings that it wants, so that it does not
// change those of the machine (setupKernelTunables).
func pretend() error {
	for setting, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		file := filepath.Join("/var/lib", strings.ReplaceAll(setting, "/", "-"))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
			return err
		}
		if err := syscall.Mount(file, "/proc/sys/"+setting, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("pretend %s: %w", setting, err)
		}
	}
	return nil
}

// start makes a pod that kubelet runs, from local images, and returns when it is
// ready.
func (n *node) start(t *testing.T, pod *core.Pod) *core.Pod {
	t.Helper()
	began := time.Now()
	pod.Spec.NodeName = n.name
	grace := int64(1) // with 0 the object is gone before the pod is
	pod.Spec.TerminationGracePeriodSeconds = &grace
	for _, containers := range [][]core.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			containers[i].ImagePullPolicy = core.PullNever
		}
	}
	_, err := n.admin.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, meta.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { n.stop(t, pod) })
	var now *core.Pod
	eventually(t, "the pod "+pod.Name+" is ready", func(ctx context.Context) (err error) {
		now, err = n.admin.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, meta.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range now.Status.Conditions {
			if c.Type == core.PodReady && c.Status == core.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%+v %s", now.Status.ContainerStatuses, n.events(pod))
	})
	t.Logf("%s is ready after %v", pod.Name, time.Since(began).Round(10*time.Millisecond))
	return now
}

// events returns what kubelet says of a pod.
func (n *node) events(pod *core.Pod) string {
	all, err := n.admin.CoreV1().Events(pod.Namespace).List(context.Background(), meta.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, e := range all.Items {
		out = append(out, e.Message)
	}
	return strings.Join(out, "\n")
}

// stop deletes a pod, and returns when kubelet has let go of it.
func (n *node) stop(t *testing.T, pod *core.Pod) {
	t.Helper()
	ctx := context.Background() // also when the test has ended
	began := time.Now()
	err := n.admin.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, meta.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return
	}
	must(t, err)
	eventually(t, "the pod "+pod.Name+" is gone", func(context.Context) error {
		_, err := n.admin.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, meta.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
	t.Logf("%s is gone after %v", pod.Name, time.Since(began).Round(10*time.Millisecond))
}

// shell is a pod that does nothing, with these networks.
func shell(name, networks string) *core.Pod {
	return &core.Pod{
		ObjectMeta: meta.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{"k8s.v1.cni.cncf.io/networks": networks}},
		Spec: core.PodSpec{
			AutomountServiceAccountToken: new(bool),
			Containers:                   []core.Container{{Name: "shell", Image: "docker.io/library/shell:local"}},
		},
	}
}

// running finds the namespace that containerd has made for a pod.
func (n *node) running(t *testing.T, pod *core.Pod) running {
	t.Helper()
	all, err := filepath.Glob("/run/netns/cni-*")
	must(t, err)
	for _, path := range all {
		if strings.Contains(run(t, "nsenter", "--net="+path, "ip", "-o", "addr"), " "+pod.Status.PodIP+"/") {
			return running{pod, n, path, stateDir}
		}
	}
	t.Fatalf("no namespace of %v has %s", all, pod.Status.PodIP)
	return running{}
}

func TestPodsThatKubeletRunsHaveTheirRails(t *testing.T) {
	n := theNode(t)
	n.kubelet(t)
	n.network(t, "rails", rails())
	a := n.running(t, n.start(t, shell("kubelet-a", "rails")))
	b := n.running(t, n.start(t, shell("kubelet-b", "rails")))
	a.pings(t, b)
	n.stop(t, a.Pod)
	n.stop(t, b.Pod)
	a.holds(t, 0)
	b.holds(t, 0)
}
