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
	"testing"

	"github.com/roce-cni/roce-cni/pkg/tool/verify"
)

// TestNodesSharedHWTestTransfersBetweenNodes has all of --peer: ARP, UDP, ib_write_bw,
// datagrams and rdma_cm, on two rails.
func TestNodesSharedHWTestTransfersBetweenNodes(t *testing.T) {
	n := newNode(t, "shared")
	other := meet(t)
	known(t)
	const address = "10.0.9.1:9484"
	t.Setenv(verify.TokenVariable, "the token of a test")
	if other.self == "1" {
		other.hwserve(address)
		return
	}
	other.swap("waits")
	r := n.hwtest("--mutate", "--peer", address)
	other.swap("stop")
	said := strings.Join(told(r.Answers), "\n")
	for _, step := range []string{"peer-reach", "peer-mtu", "peer-rdma", "peer-ud", "peer-cm"} {
		if got := strings.Count(said, "ok "+step); got != 2 {
			t.Errorf("%s is ok on %d rails, want 2\n%s", step, got, said)
		}
	}
}

// known lets Soft-RoCE know the addresses of the pods in which the RDMA programs of the kit
// run, which a NIC need not know. CHECK comes before.
func known(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for rail := range 2 {
		link := fmt.Sprintf("r%d", rail)
		emulate(t, link)
		finally(t, "ip addr flush dev "+link+" scope host")
	}
	for _, program := range []string{"ib_write_bw", "ib_send_lat", "rping"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		script := `#!/bin/sh
for a in $(ip -4 -o addr | grep -o ' 198[.]1[89][.][0-9.]*/' | tr -d ' /'); do
	nsenter --net=/proc/1/ns/net ip addr replace $a/32 dev r$(echo $a | cut -d. -f3) scope host
done
exec ` + path + ` "$@"
`
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestTransferHWTestBetweenPodsOfOneNode has the step pod-rdma, on two rails, and those that need
// a transfer.
func TestTransferHWTestBetweenPodsOfOneNode(t *testing.T) {
	n := newNode(t, "shared")
	known(t)
	r := n.hwtest("--mutate")
	wants(t, r, nil, "pod-rdma", "raw-qp", "gid-time-job")
	if got := strings.Count(strings.Join(told(r.Answers), "\n"), "ok pod-rdma"); got != 6 {
		t.Errorf("%d transfers succeed, want those of 3 programs on 2 rails:\n%s", got, strings.Join(told(r.Answers), "\n"))
	}
}

// hwserve is the second node until the first one has tested.
func (p *peer) hwserve(address string) {
	t := p.t
	t.Helper()
	cmd := exec.Command(filepath.Join(*programs, "roce-hwtest"), "serve", "--listen", address)
	if lines := start(t, cmd); !lines.Scan() || !strings.HasPrefix(lines.Text(), "listens on ") {
		t.Errorf("it says %q", lines.Text())
	}
	p.swap("serves")
	p.swap("stop")
	if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
		t.Error(err)
	}
}
