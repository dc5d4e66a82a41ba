// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"fmt"
	"io/fs"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// Users returns the programs that have queue pairs on the devices that recorded operations
// share with the host; with a namespace only the programs in it. Beside an error there are those
// that it found before. Errors are those of System.
func (s *Subsystem) Users(ctx context.Context, recorded plan.Ops, in netns.ID) ([]string, error) {
	var out []string
	for p := range plan.All[plan.Port](recorded.At(plan.Host)) {
		d, err := s.device(ctx, plan.Host, p.Device)
		if noDevice(err) {
			continue
		}
		if err != nil {
			return out, err
		}
		users, err := s.users(ctx, plan.Host, d.Index, in)
		if err != nil {
			return out, classify("list users of RDMA device", d.Name, err)
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
func (s *Subsystem) users(ctx context.Context, side plan.Place, device uint32, in netns.ID) ([]string, error) {
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
	return out, err
}

// user returns who has a queue pair, "" if that does not count.
func (s *Subsystem) user(q nldev.Resource, in netns.ID) string {
	switch {
	case q.Own(), q.Module != "" && in != netns.ID{}:
		return ""
	case q.Module != "":
		return "the kernel's " + q.Module
	}
	p := ProcessOf(s.c.Proc, q.PID)
	if in != (netns.ID{}) && p.Netns != in.Ino {
		return ""
	}
	return p.String()
}

// Process is a program that has objects of a device, or a network namespace. PID 0: this PID
// namespace does not show it.
type Process struct {
	PID   uint32 `json:"pid"`
	Comm  string `json:"comm"`
	Netns uint64 `json:"netns,omitempty"` // the inode of its network namespace; 0: it has ended, or the reader may not know
}

// ProcessOf returns what procfs has of a process, or of a thread. It may have ended: then it
// has neither a name nor a namespace.
func ProcessOf(proc fs.FS, pid uint32) Process {
	ino, _ := netns.Inode(proc, fmt.Sprint(pid))
	return Process{PID: pid, Comm: discover.Text(proc, fmt.Sprintf("%d/comm", pid)), Netns: ino}
}

// String returns the process as ps(1) names it.
func (p Process) String() string {
	if p.PID == 0 {
		return "a process of another PID namespace"
	}
	return fmt.Sprintf("process %d (%s)", p.PID, p.Comm)
}

// unused refuses a device of the host with users: a move to a pod ends everything that
// they have on it, such as storage.
func (s *Subsystem) unused(ctx context.Context, d nldev.Device) error {
	if s.c.TakeInUse {
		return nil
	}
	users, err := s.users(ctx, plan.Host, d.Index, netns.ID{})
	if err != nil {
		return classify("list users of RDMA device", d.Name, err)
	}
	if len(users) == 0 {
		return nil
	}
	return cnierr.New(cnierr.RDMAHeld, moving, d.Name,
		`end them, or choose another NIC; if pods may take devices from them, set "rdma": {"inUse": "take"} in /etc/roce/node.json`,
		"the host uses it: %s", cnierr.Some(users))
}
