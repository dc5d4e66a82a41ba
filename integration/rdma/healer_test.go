// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// healer is a rocectl heal.
type healer struct {
	*exec.Cmd
	log string
}

// healer starts rocectl heal with settings and the capabilities that its container has, and waits
// until its log has a text.
func (n *node) healer(settings, says string) healer {
	n.t.Helper()
	n.settle(", " + settings)
	log, err := os.CreateTemp(n.t.TempDir(), "log")
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	command := append(cnitest.AsHealer(n.t, filepath.Dir(*programs)), filepath.Join(*programs, "rocectl"), "heal")
	h := healer{exec.Command(command[0], command[1:]...), log.Name()}
	h.Stderr = log
	if err := h.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		h.end(unix.SIGTERM)
		if n.t.Failed() {
			n.t.Logf("rocectl heal said\n%s", h.said())
		}
	})
	cnitest.Await(n.t, "the healer says "+says, func() bool { return strings.Contains(h.said(), says) })
	return h
}

func (h healer) said() string {
	b, _ := os.ReadFile(h.log)
	return string(b)
}

func (h healer) end(by unix.Signal) {
	if h.ProcessState == nil {
		_ = h.Process.Signal(by)
		_ = h.Wait() // with whatever status
	}
}

// TestHealerGivesIndexesBack takes from a pod an address, an interface, and the entries
// of a device that is made again, behind the entries of a pod that is gone.
func TestHealerGivesIndexesBack(t *testing.T) {
	n := newNode(t, "shared")
	gone, a := n.attach(promising(n.allRails(), "equal"), n.pod()), n.attach(promising(n.allRails(), "equal"), n.pod())
	gone.addRails()
	addr := a.addRails()[0][0]
	gone.mustDel()
	was := a.indexes()
	finally(t, "rdma link add rxe0 type rxe netdev r0; ip link set r0 up")
	n.healer(`"heal": "all"`, "heal=all")
	in := "ip -n " + a.pod.Name
	for _, loses := range []string{
		in + " addr del " + addr + "/24 dev net1",
		in + " link del net1",
		"rdma link del rxe0; rdma link add rxe0 type rxe netdev r0; ip link set r0 down; ip link set r0 up",
	} {
		shell(t, loses)
		cnitest.Await(t, "all is healed after "+loses, func() bool {
			now := allGIDs(t, "")
			for addr, at := range was {
				if !slices.ContainsFunc(now, func(t table) bool { return slices.Contains(t.of(addr), at) }) {
					return false
				}
			}
			return a.check() == ""
		})
	}
	contains(t, n.rocectl("show"), "healed")
	a.mustDel()
	n.nothingLeft()
}
