// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// TestNodesSharedHWTestTransfersBetweenNodes has all of --peer: ARP, UDP, ib_write_bw,
// datagrams and rdma_cm, on two rails.
func TestNodesSharedHWTestTransfersBetweenNodes(t *testing.T) {
	newNode(t, "shared")
	other := meet(t)
	for rail := range 2 {
		emulate(t, fmt.Sprintf("r%d", rail))
	}
	const address, token = "10.0.9.1:9484", "a test's token"
	if other.self == "1" {
		other.hwserve(address, token)
		return
	}
	ready := gated(t)
	other.swap("waits")
	file := filepath.Join(t.TempDir(), "out.tar.gz")
	cmd := exec.Command(filepath.Join(*programs, "rocectl"), "hwtest", "--mutate", "--out", file, "--peer", address, "--token", token)
	var said strings.Builder
	lines := start(t, cmd)
	for lines.Scan() {
		fmt.Fprintln(&said, lines.Text())
		if strings.Contains(lines.Text(), " peer-mtu ") { // the pod is there, and the transfers come
			ready()
		}
	}
	_ = cmd.Wait() // its status is that of a step that cannot tell
	other.swap("stop")
	for _, step := range []string{"peer-reach", "peer-mtu", "peer-rdma", "peer-ud", "peer-cm"} {
		if got := strings.Count(said.String(), "ok           "+step); got != 2 {
			t.Errorf("%s is ok on %d rails, want 2", step, got)
		}
	}
	t.Log(said.String())
}

// gated makes the RDMA programs of the kit wait until ready is called. This tells
// Soft-RoCE the addresses of the pod, which a NIC need not know. ADD and CHECK come
// before.
func gated(t *testing.T) (ready func()) {
	t.Helper()
	dir := t.TempDir()
	for _, program := range []string{"ib_write_bw", "ib_send_lat", "rping"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("#!/bin/sh\nwhile [ ! -e %s/ready ]; do sleep 0.1; done\nexec %s \"$@\"\n", dir, path)
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return sync.OnceFunc(func() {
		t.Helper()
		for rail := range 2 {
			link, device := fmt.Sprintf("r%d", rail), fmt.Sprintf("rxe%d", rail)
			addr := shell(t, fmt.Sprintf("ip -n roce-hwtest-peer -4 -o addr | grep -o '198[.]19[.]%d[.][0-9]*/' | head -n 1", rail))
			addr = strings.TrimSuffix(addr, "/")
			finally(t, "ip addr del "+addr+"/32 dev "+link)
			run(t, "ip", "addr", "add", addr+"/32", "dev", link, "scope", "host")
			cnitest.Await(t, addr+" has both entries", func() bool { return len(gids(t, "", device).of(addr)) == 2 })
		}
		shell(t, "touch "+filepath.Join(dir, "ready"))
	})
}

// hwserve is the second node until the first one has tested.
func (p *peer) hwserve(address, token string) {
	t := p.t
	t.Helper()
	ready := gated(t)
	cmd := exec.Command(filepath.Join(*programs, "rocectl"), "hwtest", "serve", "--listen", address, "--token", token)
	if lines := start(t, cmd); !lines.Scan() || !strings.HasPrefix(lines.Text(), "listens on ") {
		t.Errorf("it says %q", lines.Text())
	}
	ready()
	p.swap("serves")
	p.swap("stop")
	if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
		t.Error(err)
	}
}
