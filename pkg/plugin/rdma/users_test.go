// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// procs is a procfs with two programs: one in the namespace 77, and one in the host's.
func procs() fstest.MapFS {
	return fstest.MapFS{
		"223/comm": {Data: []byte("ib_write_bw\n")}, "223/ns/net": symlink("net:[77]"),
		"9/comm": {Data: []byte("rdma-server\n")}, "9/ns/net": symlink("net:[1]"),
	}
}

// TestADeviceThatTheHostUsesIsNotMoved has queue pairs that the kernel itself has, those of
// programs, and those of storage in the kernel.
func TestADeviceThatTheHostUsesIsNotMoved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		qps  []nldev.Resource
		says string // "": it is moved
	}{
		"nothing":                     {nil, ""},
		"the kernel's own":            {[]nldev.Resource{{Type: 0, Module: "mlx5_ib"}, {Type: 1, Module: "ib_core"}, {Type: 4, Module: "mlx5_ib"}}, ""},
		"a program":                   {[]nldev.Resource{{Type: 1, Module: "ib_core"}, {Type: 2, PID: 9}, {Type: 2, PID: 9}}, "the host uses it: process 9 (rdma-server)"},
		"a program of another tenant": {[]nldev.Resource{{Type: 4}}, "a process of another PID namespace"},
		"storage":                     {[]nldev.Resource{{Type: 2, Module: "nvme_rdma"}, {Type: 2, PID: 9}}, "the kernel's nvme_rdma, process 9 (rdma-server)"},
	} {
		for _, take := range []bool{false, true} {
			n, _ := movable()
			n.devices[0].qps = c.qps
			s := n.subsystem(t, verbs("mlx5_0", "mlx5_1"), func(c *Config) { c.TakeInUse, c.Proc = take, procs() })
			_, err := s.Facts(t.Context(), conf.RDMA{}, plan.Link{Layers: [][]int32{{n.devices[0].Ports[0].NetdevIndex}}}, false)
			if c.says == "" || take {
				if err != nil {
					t.Errorf("%s, take %v: %v", name, take, err)
				}
				continue
			}
			if cnierr.CodeOf(err) != cnierr.RDMAHeld || !strings.Contains(err.Error(), c.says) || !strings.Contains(hintOf(err), "node.json") {
				t.Errorf("%s: got %v, want code %d with %q", name, err, cnierr.RDMAHeld, c.says)
			}
		}
	}
}

// TestUsersOfASharedDeviceAreThoseOfANamespace asks for all programs, and for those of a pod.
func TestUsersOfASharedDeviceAreThoseOfANamespace(t *testing.T) {
	t.Parallel()
	n, op := movable()
	n.exclusive = false
	n.devices[0].qps = []nldev.Resource{{Type: 1, Module: "ib_core"}, {Type: 2, PID: 223}, {Type: 3, PID: 223}, {Type: 2, PID: 9}, {Type: 2, Module: "nvme_rdma"}, {Type: 2, PID: 4242}}
	gone := op.Device
	gone.Index, gone.GUID = 99, "1"
	recorded := append(plan.OnHost(plan.Port{Device: gone}, plan.Port{Device: op.Device}), plan.InPod(plan.Port{Device: op.Device})...)
	s := n.subsystem(t, fstest.MapFS{}, func(c *Config) { c.Proc = procs() })
	pod, err := s.Users(t.Context(), recorded, netns.ID{Ino: 77})
	all, err2 := s.Users(t.Context(), recorded, netns.ID{})
	if diff := cmp.Diff([]string{"process 223 (ib_write_bw) uses mlx5_0/1"}, pod); errors.Join(err, err2) != nil || diff != "" || len(all) != 4 {
		t.Errorf("got %v and %v, %v, %v", pod, all, err, err2)
	}
	recorded = append(recorded, plan.OnHost(plan.Port{Device: n.devices[1].device()})...)
	n.failAt = 2 + 3 + 3 // the last of three questions about each device, the first of which is gone
	if got, err := s.Users(t.Context(), recorded, netns.ID{}); cnierr.CodeOf(err) != cnierr.IO || !strings.Contains(err.Error(), "mlx5_1") || !cmp.Equal(got, all) {
		t.Errorf("without an answer about the last device: %v, %v, want those of the first beside code %d", got, err, cnierr.IO)
	}
	n.deaf = unix.ENOBUFS // the kernel has no memory now
	if got, err := s.Users(t.Context(), recorded, netns.ID{}); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("without an answer: %v, %v, want code %d and not the users of another device", got, err, cnierr.TryAgain)
	}
}
