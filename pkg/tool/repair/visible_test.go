// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package repair

import "testing"

func TestANodeSeesThatANamespaceIsGone(t *testing.T) {
	t.Parallel()
	if err := nodeOwn("/proc/self/ns/mnt", "/proc/1/ns/mnt"); err != nil {
		t.Skip("not where the node's own processes are")
	}
	for _, path := range []string{"/proc/4194305/task/4194305/ns/net", "/proc/4194305/fd/3", "/run/no-such-folder/pod"} {
		if err := Visible(path); err != nil {
			t.Errorf("%s: %v, want it visible that nothing is there", path, err)
		}
	}
}
