// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
)

// NewLinux returns the World of a node and a pod in namespaces of their own: see NewNode.
func NewLinux(t *testing.T) World {
	t.Helper()
	node := NewNode(t)
	node.NIC("nic0")
	pod := node.Pod()
	return World{
		NIC: "nic0", Container: Container(t), Pod: pod.Path, Host: node.Path,
		Open:   func(path string) (Kernel, error) { return kernel.Open(path, os.DirFS("/sys")) },
		IP:     func(command string) { t.Helper(); pod.IP(command) },
		HostIP: func(command string) { t.Helper(); node.IP(command) },
		Sysctl: func(path, value string) {
			t.Helper()
			if err := pod.Do(func() error { return os.WriteFile(filepath.Join("/proc/sys", path), []byte(value), 0) }); err != nil {
				t.Fatal(err)
			}
		},
		Show:     func() string { return show(t, pod) },
		ShowHost: func() string { return show(t, node.Netns) },
		OpenHost: func() (Kernel, error) { return kernel.OpenHost() },
		Has:      func(kind string) bool { return has(pod, kind) },
	}
}

// show returns what is in a namespace, without what changes by itself: the
// state of links, and what the kernel does in a work queue (addrconf_dad_work):
// the local routes of IPv6 addresses, also without duplicate detection, and the
// end of an address's time as tentative.
func show(t *testing.T, pod *Netns) string {
	t.Helper()
	var links []struct {
		Name    string `json:"ifname"`
		Alias   string `json:"ifalias"`
		Address string
		Group   string
		MTU     int
		Flags   []string
	}
	if err := json.Unmarshal([]byte(pod.IP("-j link")), &links); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, l := range links {
		fmt.Fprintln(&b, l.Name, l.Alias, l.Address, l.Group, l.MTU, strings.Contains(strings.Join(l.Flags, " ")+" ", "UP "))
	}
	for _, what := range []string{"-o addr", "route show table all", "-6 route show table all", "rule", "-6 rule"} {
		for line := range strings.Lines(pod.IP(what)) {
			if !strings.Contains(line, " table local ") {
				b.WriteString(strings.ReplaceAll(line, " tentative", ""))
			}
		}
	}
	return b.String()
}

// has says whether the kernel can make links of a kind in a namespace.
func has(n *Netns, kind string) bool {
	return n.Do(func() error {
		return exec.Command("sh", "-c", "ip link add below type dummy && ip link add link below name above type "+kind+
			map[string]string{"vlan": " id 7"}[kind]+"; r=$?; ip link del below; exit $r").Run()
	}) == nil
}
