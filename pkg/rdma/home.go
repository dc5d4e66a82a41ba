// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/rdma/nldev"
)

// returnTime is how long the kernel may take to bring a device back to the
// first namespace after that of the pod is gone (rdma_dev_exit_net): 0.2 to 0.5 s
// were measured. returnInterval is how often it is looked for.
const (
	returnTime     = 3 * time.Second
	returnInterval = 10 * time.Millisecond
)

// undo brings the device back to the host's namespace, under its own name and
// with the host's settings. Success means that it is there, or that the node
// does not have it any more. A device that is there as it was is left alone.
func (m move) undo(ctx context.Context) error {
	if m.c.Enter == nil {
		if back, err := m.await(ctx); !back || err != nil {
			return err
		}
	}
	release, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	return m.home(ctx)
}

// await waits until the kernel has brought the device back, and returns false
// if the node has no such device any more. Nobody is kept waiting for the lock
// meanwhile.
func (m move) await(ctx context.Context) (bool, error) {
	back, err := poll(ctx, returnTime, returnInterval, func() (bool, error) {
		_, err := m.inHost(ctx)
		if noDevice(err) {
			return false, nil
		}
		return err == nil, err
	})
	switch {
	case err != nil:
		return false, classify("wait for RDMA device", m.op.Device.Name, err)
	case back || !m.exists(ctx):
		return back, nil
	}
	return false, m.kept()
}

// home moves the device back if the pod has it, and makes it what it was.
func (m move) home(ctx context.Context) error {
	if err := m.fetch(ctx); err != nil {
		return err
	}
	d, err := m.inHost(ctx)
	if noDevice(err) && !m.exists(ctx) {
		return nil
	}
	if noDevice(err) {
		return m.elsewhere(ctx, "bring back RDMA device", m.seek(), err)
	}
	if err != nil {
		return err
	}
	name := m.op.Device.Name
	err = m.rename(ctx, Host, d)
	if errors.Is(err, unix.EEXIST) {
		m.c.Log.Warn("RDMA device is home, but another one has its name", "device", name, "is", d.Name,
			"hint", "give them their names with rdma dev set OLD name NEW, or load the driver anew")
		name, err = d.Name, nil
	}
	if err != nil {
		return err
	}
	return m.restore(name)
}

// fetch moves the device back to the host if the pod has it. A node that shares
// its devices by now has nothing to move: each namespace has all.
func (m move) fetch(ctx context.Context) error {
	if m.c.Enter == nil {
		return nil
	}
	pod, err := m.System(ctx, Pod)
	if noDevice(err) {
		return nil // the kernel has no RDMA any more
	}
	d, ok := match(pod, m.op.Device)
	if err != nil || !pod.Exclusive || !ok {
		return err
	}
	err = m.send(ctx, d.Index, Pod, Host)
	if errors.Is(err, unix.EEXIST) {
		if err = m.makeWay(ctx, d); err == nil {
			err = m.send(ctx, d.Index, Pod, Host)
		}
	}
	if noDevice(err) {
		return nil // it went meanwhile
	}
	return classify(moving, m.op.Device.Name, err)
}

// makeWay gives the device in the pod a name that none has in the host, where
// another one has its own: the name that the kernel gives in this case when it
// moves devices itself (rdma_dev_pick_netns_name).
func (m move) makeWay(ctx context.Context, d nldev.Device) error {
	c, err := m.conn(Pod)
	if err == nil {
		err = c.Rename(ctx, d.Index, fmt.Sprintf("ibdev%d", d.Index))
	}
	return err
}

// restore sets, for the device by the name that it has now, what the move left behind: no type of service, because the
// kernel makes the port anew (cma_add_one), and the pod's traffic class. What
// is neither has been set by somebody else since.
func (m move) restore(name string) error {
	d := m.op.Device
	d.Name = name
	if want := m.op.HostTOS; want != nil && *want != 0 {
		have, err := m.tos(Host, d)
		if err == nil && have != nil && *have == 0 {
			err = m.setTOS(Host, d, *want)
		}
		if err != nil {
			return err
		}
	}
	pods, want := m.op.TrafficClass, m.op.HostTrafficClass
	if pods == nil || want == nil || *pods == *want {
		return nil
	}
	have, err := m.trafficClass(Host, d)
	if err == nil && have != nil && *have == *pods {
		err = m.setTrafficClass(d, *want)
	}
	return err
}

// exists says whether the node has the device, in whatever namespace: the files
// for programs that use devices are in the view of all of them. One of them may be
// of another device of its name, which the host has.
func (m move) exists(ctx context.Context) bool {
	named := m.named(m.op.Device.Name)
	host, err := m.System(ctx, Host)
	if _, ours := match(host, m.op.Device); err == nil && !ours && slices.ContainsFunc(host.Devices, func(d nldev.Device) bool { return d.Name == m.op.Device.Name }) {
		named--
	}
	if named > 0 {
		return true
	}
	files, err := fs.Glob(m.c.Sys, "class/infiniband_verbs/*/ibdev")
	if err != nil || m.op.Device.PCI == "" {
		return false
	}
	return slices.ContainsFunc(files, func(f string) bool {
		id, err := fs.ReadLink(m.c.Sys, path.Join(path.Dir(f), "device"))
		return err == nil && path.Base(id) == m.op.Device.PCI
	})
}

// kept returns the error for a device that does not come back although its
// namespace should be gone.
func (m move) kept() error {
	ns := fmt.Sprintf("net:[%d]", m.op.Netns.Ino)
	holders := m.holders(ns)
	if len(holders) == 0 {
		return cnierr.New(cnierr.RDMAHeld, "bring back RDMA device", m.op.Device.Name,
			"find what keeps the namespace: findmnt -t nsfs, and lsns -t net; the device comes back when the namespace is gone",
			"its namespace %s is still there, without a process in it", ns)
	}
	return cnierr.New(cnierr.RDMAHeld, "bring back RDMA device", m.op.Device.Name,
		"end the process that keeps the pod's namespace: kill "+holders[0].pid, "its namespace %s is kept by %s", ns, processes(holders))
}

// maxNames bounds what an error lists: it ends in an event of the pod.
const maxNames = 12

type process struct{ pid, command string }

func (p process) String() string { return fmt.Sprintf("process %s (%s)", p.pid, p.command) }

// holders returns the processes in a network namespace.
func (m move) holders(ns string) []process {
	links, err := fs.Glob(m.c.Proc, "[0-9]*/ns/net")
	if err != nil {
		return nil // the pattern is right: there are none
	}
	var out []process
	for _, l := range links {
		if target, err := fs.ReadLink(m.c.Proc, l); err == nil && target == ns {
			pid, _, _ := strings.Cut(l, "/")
			out = append(out, process{pid, text(m.c.Proc, pid+"/comm")})
		}
	}
	return out
}

func processes(ps []process) string {
	var out []string
	for _, p := range ps[:min(len(ps), maxNames)] {
		out = append(out, p.String())
	}
	return strings.Join(out, ", ")
}

// damaged returns the finding of a Check: what is not as it was done, and the
// commands that make it so again.
func damaged(action, subject string, fix []string, format string, args ...any) error {
	return cnierr.New(cnierr.Damaged, action, subject, "restore it: "+strings.Join(fix, " && "), format, args...)
}
