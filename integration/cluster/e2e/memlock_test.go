// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
)

// TestAContainerThatIsNotRootInheritsTheLimitOfContainerd is the recipe of
// docs/testing-rdma.md: LimitMEMLOCK of containerd's unit sets this limit. The
// capability IPC_LOCK does not help such a container.
func TestAContainerThatIsNotRootInheritsTheLimitOfContainerd(t *testing.T) {
	n := theNode(t)
	n.kubelet(t)
	var had unix.Rlimit
	must(t, unix.Prlimit(n.containerd, unix.RLIMIT_MEMLOCK, nil, &had))
	t.Cleanup(func() { must(t, unix.Prlimit(n.containerd, unix.RLIMIT_MEMLOCK, &had, nil)) })
	for i, limit := range []uint64{64 << 10, had.Max} { // root may lower it, and raise it up to the hard limit
		must(t, unix.Prlimit(n.containerd, unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: had.Max}, nil))
		pod := shell(fmt.Sprintf("memlock-%d", i), "")
		user := int64(1000)
		pod.Spec.Containers[0].SecurityContext = &core.SecurityContext{RunAsUser: &user, Capabilities: &core.Capabilities{Add: []core.Capability{"IPC_LOCK"}}}
		n.start(t, pod)
		want := "unlimited"
		if limit != unix.RLIM_INFINITY {
			want = fmt.Sprint(limit >> 10)
		}
		got := strings.Fields(n.kubectl(t, "", "exec", pod.Name, "--", "/bin/busybox", "sh", "-c", "ulimit -l; /bin/busybox grep CapEff /proc/self/status"))
		if len(got) != 3 || got[0] != want || strings.Trim(got[2], "0") != "" {
			t.Errorf("it may lock %q KiB, want %s, with no capability in effect", got, want)
		}
	}
}
