// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// layouts are where distributions have the folders of their runtime. The texts are the parts of
// the files that they write.
func layouts() map[string]struct {
	files           map[string]string
	conf, bin, root string
} {
	const (
		kubelet = "var/lib/kubelet"
		release = "1f5aa17d7bf2e23e3d38790a4a252f21b246031ee4831640110d1ddaf8834f1c"
	)
	type files = map[string]string
	return map[string]struct {
		files           map[string]string
		conf, bin, root string
	}{
		"k3s since October 2024": {files{
			"var/lib/rancher/k3s/agent/etc/containerd/config.toml": "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\n  bin_dirs = [\"/var/lib/rancher/k3s/data/cni\"]\n  conf_dir = \"/var/lib/rancher/k3s/agent/etc/cni/net.d\"\n",
			"etc/cni/net.d/05-cilium.conflist":                     "of another time",
			"etc/containerd/config.toml":                           "of another runtime",
		}, "var/lib/rancher/k3s/agent/etc/cni/net.d", "var/lib/rancher/k3s/data/cni", kubelet},
		"k3s before": {files{
			"var/lib/rancher/k3s/agent/etc/containerd/config.toml": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"/var/lib/rancher/k3s/data/" + release + "/bin\"\n  conf_dir = \"/var/lib/rancher/k3s/agent/etc/cni/net.d\"\n",
		}, "var/lib/rancher/k3s/agent/etc/cni/net.d", "var/lib/rancher/k3s/data/" + release + "/bin", kubelet},
		"k3s with a file of its own": {files{
			"var/lib/rancher/k3s/agent/etc/containerd/config.toml":   "imports = [\"conf.d/*.toml\"]\n",
			"var/lib/rancher/k3s/agent/etc/containerd/conf.d/a.toml": "[plugins.cri.cni]\nbin_dir = \"/usr/lib/cni\"\nconf_dir = \"/etc/cni/conf\"\n",
			"etc/containerd/conf.d/b.toml":                           "of another runtime",
		}, "etc/cni/conf", "usr/lib/cni", kubelet},
		"k3s without Flannel": {files{
			"var/lib/rancher/k3s/agent/etc/containerd/config.toml": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_selinux = false\n",
		}, "etc/cni/net.d", "opt/cni/bin", kubelet},
		"RKE2": {files{
			"var/lib/rancher/rke2/agent/etc/containerd/config.toml": "version = 2\n[plugins.\"io.containerd.internal.v1.opt\"]\n  path = \"/var/lib/rancher/rke2/agent/containerd\"\n",
		}, "etc/cni/net.d", "opt/cni/bin", kubelet},
		"MicroK8s": {files{
			"var/snap/microk8s/current/args/containerd.toml": "[plugins.\"io.containerd.grpc.v1.cri\".cni]\n    bin_dir = \"/var/snap/microk8s/current/opt/cni/bin\"\n    conf_dir = \"/var/snap/microk8s/current/args/cni-network\"\n",
		}, "var/snap/microk8s/current/args/cni-network", "var/snap/microk8s/current/opt/cni/bin", "var/snap/microk8s/common/var/lib/kubelet"},
		"k0s": {files{
			"etc/k0s/containerd.toml":      "# k0s_managed=true\nversion = 2\nimports = [\"/run/k0s/containerd-cri.toml\"]\n",
			"run/k0s/containerd-cri.toml":  "[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"registry.k8s.io/pause:3.9\"\n",
			"var/lib/k0s/kubelet/pods/pod": "",
		}, "etc/cni/net.d", "opt/cni/bin", "var/lib/k0s/kubelet"},
		"containerd with conf.d": {files{
			"etc/containerd/config.toml":     "version = 2\nimports = [\"conf.d/*.toml\", \"/etc/containerd/config.toml\"]\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nconf_dir = \"/etc/other\"\n",
			"etc/containerd/conf.d/cni.toml": "[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/usr/lib/cni/\"\nconf_dir = \"/etc/cni/conf\"\n",
		}, "etc/cni/conf", "usr/lib/cni", kubelet},
	}
}

// move takes what the healthy node has in the folders of kubeadm to those of a layout.
func (w *world) move(from, to string) {
	moved := fstest.MapFS{}
	for name, file := range w.files {
		if rest, below := strings.CutPrefix(name, from+"/"); below && from != to {
			delete(w.files, name)
			moved[to+"/"+rest] = file
		}
	}
	maps.Copy(w.files, moved)
}

// TestTheFoldersOfTheRuntimeAreFound has the same node in each layout: all is well there, and
// without Multus or the plugin the answer names the folder.
func TestTheFoldersOfTheRuntimeAreFound(t *testing.T) {
	t.Parallel()
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := healthy(t)
			w.move("etc/cni/net.d", l.conf)
			w.move("opt/cni/bin", l.bin)
			w.move("var/lib/kubelet", l.root)
			for _, plugin := range []string{"roce", "roce-ipam"} {
				was := w.programs["/opt/cni/bin/"+plugin]
				delete(w.programs, "/opt/cni/bin/"+plugin)
				w.programs["/"+l.bin+"/"+plugin] = was
			}
			for file, text := range l.files {
				w.write(file, text)
			}
			for _, a := range w.answers() {
				if a.Verdict != report.OK {
					t.Errorf("%s says %s: %s", a.Check, a.Verdict, a.Found)
				}
			}
			w.remove(l.conf + "/00-multus.conf")
			w.remove(l.bin + "/roce")
			found := map[string]string{}
			for _, a := range w.answers() {
				if a.Verdict == report.Problem {
					found[a.Check] = a.Found + " " + a.Fix
				}
			}
			if len(found) != 2 || !strings.Contains(found["cni-config"], "/"+l.conf) || !strings.Contains(found["cni-plugins"], "/"+l.bin) {
				t.Errorf("without Multus and roce: %q", found)
			}
			if strings.Contains(found["cni-config"], "master") {
				t.Errorf("it installs a branch of another project: %s", found["cni-config"])
			}
		})
	}
}

func TestTheFoldersThatTheUserNamesAreTaken(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	w.move("etc/cni/net.d", "cni/conf")
	w.move("opt/cni/bin", "cni/bin")
	w.write("etc/containerd/config.toml", "[plugins.cri.cni]\nbin_dir = \"/usr/lib/cni\"\n")
	for plugin := range maps.Clone(w.programs) {
		w.programs["/cni/bin/"+plugin[strings.LastIndex(plugin, "/")+1:]] = w.programs[plugin]
	}
	n := w.node()
	n.ConfDir, n.BinDir = "/cni/conf/", "/cni/bin"
	checks, err := Named("cni-plugins", "cni-config", "cni-lists")
	if err != nil {
		t.Fatal(err)
	}
	for a := range Run(t.Context(), n, checks) {
		if a.Verdict != report.OK {
			t.Errorf("%s says %s: %s", a.Check, a.Verdict, a.Found)
		}
	}
	n.ConfDir, n.BinDir = "/none", "/none/bin"
	for a := range Run(t.Context(), n, checks[:2]) {
		if a.Verdict != report.CannotTell || !strings.Contains(a.Found, "there is no folder /none") || !strings.Contains(a.Found, "(--cni-conf-dir)") {
			t.Errorf("%s says %s: %s", a.Check, a.Verdict, a.Found)
		}
	}
}

// TestTheChartGetsAFolderThatOutlivesARelease is about k3s before October 2024.
func TestTheChartGetsAFolderThatOutlivesARelease(t *testing.T) {
	t.Parallel()
	l := layouts()["k3s before"]
	for _, link := range []string{"var/lib/rancher/k3s/data/current/bin", ""} {
		w := healthy(t)
		for file, text := range l.files {
			w.write(file, text)
		}
		w.write(l.bin+"/bridge", "")
		w.write(l.conf+"/10-flannel.conflist", `{"plugins": [{"type": "flannel"}]}`)
		want := "/" + l.bin
		if link != "" {
			w.write(link+"/bridge", "")
			want = "/" + link
		}
		for _, a := range w.answers() {
			if a.Check == "cni-plugins" && (!strings.Contains(a.Found, "/"+l.bin) || !strings.Contains(a.Fix, "cniBinDir="+want+" ")) {
				t.Errorf("%s: %s, want %s", a.Found, a.Fix, want)
			}
			if a.Check == "cni-config" && !strings.Contains(a.Fix, " "+want+": ") {
				t.Errorf("%s, want %s", a.Fix, want)
			}
		}
	}
}

// TestTheLimitIsSetInTheUnitThatRunsTheRuntime: k3s starts containerd itself.
func TestTheLimitIsSetInTheUnitThatRunsTheRuntime(t *testing.T) {
	t.Parallel()
	for group, want := range map[string]string{
		"":                                "containerd",
		"0::/system.slice/k3s.service\n":  "k3s",
		"0::/k3s.service/init.scope\n":    "k3s",
		"0::/system.slice/docker.scope\n": "containerd",
		"0::/system.slice/snap.microk8s.daemon-containerd.service\n": "snap.microk8s.daemon-containerd",
	} {
		w := healthy(t)
		w.write("proc/911/limits", "Max locked memory         8388608              8388608              bytes     \n")
		w.write("proc/911/cgroup", group)
		got := (&look{Node: w.node(), ctx: t.Context()}).memlock()
		if len(got) != 1 || !strings.Contains(got[0].Fix, "/etc/systemd/system/"+want+".service.d/memlock.conf") || !strings.HasSuffix(got[0].Fix, "systemctl restart "+want+"  # pods that run keep the old limit") {
			t.Errorf("in %q: %+v", group, got)
		}
	}
}
