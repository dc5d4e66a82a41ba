// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// confine makes the state folder read-only but for pools, and becomes the agent without
// any capability, as conf-examples/deploy/agent.yaml has it.
const confine = `set -e
state=$1; shift
mount --bind "$state" "$state"
mount -o remount,bind,ro "$state"
mount --bind "$state/pools" "$state/pools"
mount -o remount,bind,rw "$state/pools"
if touch "$state/x" 2>/dev/null; then echo "the state folder can be written"; exit 1; fi
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"`

// TestTheAgentWorksWithAReadOnlyStateFolder claims, sees leases, claims again, and writes
// the node file.
func TestTheAgentWorksWithAReadOnlyStateFolder(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounts folders, which needs root")
	}
	m := joins(t, pooled(t), "n1")
	must(t, os.Mkdir(filepath.Join(m.state, "pools"), 0o755)) // as kubelet does
	out, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must(t, err)
	defer out.Close()
	m.agent = &program{t: t, log: out.Name()}
	args := append([]string{"--mount", "--propagation", "private", "sh", "-c", confine, "sh", m.state, rocectl}, m.args()...)
	m.agent.run(out, exec.Command("unshare", append(args, "--kubeconfig", m.kubeconfig)...))
	m.healthy()
	m.eventuallyOwns("compute", 1)
	m.lease("compute", 1, 14)
	m.eventuallyOwns("compute", 2)
	m.agent.end()
	var s unix.Stat_t
	must(t, unix.Stat(filepath.Join(m.state, "pools"), &s))
	if s.Mode&0o077 != 0 {
		t.Errorf("others may look into pools: %o", s.Mode)
	}
	entries, err := os.ReadDir(m.state)
	must(t, err)
	for _, e := range entries {
		if name := e.Name(); name != "pools" && name != "leases.db" && name != "leases.lock" { // the plugins make the leases
			t.Errorf("there is %s", name)
		}
	}
}
