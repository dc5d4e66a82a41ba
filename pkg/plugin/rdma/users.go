// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// Users returns the programs that have queue pairs on the devices that recorded operations
// share with the host; with a namespace only the programs in it. Errors are those of System.
func (s *Subsystem) Users(ctx context.Context, recorded plan.Ops, in netns.ID) ([]string, error) {
	var out []string
	for p := range plan.All[plan.Port](recorded.At(plan.Host)) {
		d, err := s.device(ctx, Host, p.Device)
		if noDevice(err) {
			continue
		}
		users, err := s.users(ctx, Host, d.Index, in)
		if err != nil {
			return nil, classify("list users of RDMA device", d.Name, err)
		}
		for _, u := range users {
			out = append(out, u+" uses "+portName(p.Device))
		}
	}
	return out, nil
}

// users returns the programs, and the modules of the kernel, that have queue pairs on a
// device; with a namespace only the programs in it. Queue pairs that the driver and ib_core
// have for themselves are left out: they are not connected.
func (s *Subsystem) users(ctx context.Context, side Side, device uint32, in netns.ID) ([]string, error) {
	c, err := s.conn(side)
	if err != nil {
		return nil, err
	}
	qps, err := c.Resources(ctx, device, nldev.QueuePairs)
	var out []string
	seen := map[nldev.Resource]bool{} // a program has thousands
	for _, q := range qps {
		if seen[q] {
			continue
		}
		seen[q] = true
		user := s.user(q, in)
		if user != "" && !slices.Contains(out, user) {
			out = append(out, user)
		}
	}
	return out[:min(len(out), maxNames)], err
}

// user returns who has a queue pair, "" if that does not count.
func (s *Subsystem) user(q nldev.Resource, in netns.ID) string {
	pid := fmt.Sprint(q.PID)
	switch {
	case q.Own(), q.Module != "" && in != netns.ID{}:
		return ""
	case q.Module != "":
		return "the kernel's " + q.Module
	case in != netns.ID{}:
		if ino, err := netns.Inode(s.c.Proc, pid); err != nil || ino != in.Ino {
			return ""
		}
	case q.PID == 0:
		return "a process of another PID namespace"
	}
	return process{pid, text(s.c.Proc, pid+"/comm")}.String()
}

// unused refuses a device of the host with users: a move to a pod ends everything that
// they have on it, such as storage.
func (s *Subsystem) unused(ctx context.Context, d nldev.Device) error {
	if s.c.TakeInUse {
		return nil
	}
	users, err := s.users(ctx, Host, d.Index, netns.ID{})
	if err != nil {
		return classify("list users of RDMA device", d.Name, err)
	}
	if len(users) == 0 {
		return nil
	}
	return cnierr.New(cnierr.RDMAHeld, moving, d.Name,
		`end them, or choose another NIC; if pods may take devices from them, set "rdma": {"inUse": "take"} in /etc/roce/node.json`,
		"the host uses it: %s", strings.Join(users, ", "))
}
