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

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// returnTime is how long the kernel may take to bring a device back to the first
// namespace after the pod's namespace is gone (rdma_dev_exit_net). We measured 0.2 to
// 0.5 s. returnInterval is the time between two looks for the device.
const (
	returnTime     = 3 * time.Second
	returnInterval = 10 * time.Millisecond
)

// undo brings the device back to the host's namespace, under its own name and with
// the host's settings. Success means that it is there, or that the node does not have
// it any more. undo does not change a device that is there as it was.
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

// await waits until the kernel has brought the device back. It returns false if the
// node has no such device any more. It does not hold the lock meanwhile.
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

// home moves the device back if the pod has it, and restores its name and settings.
func (m move) home(ctx context.Context) error {
	if err := m.fetch(ctx); err != nil {
		return err
	}
	d, err := m.inHost(ctx)
	if noDevice(err) && !m.exists(ctx) {
		return nil
	}
	if noDevice(err) {
		return m.elsewhere(ctx, "move back RDMA device", m.seek(), err)
	}
	if err != nil {
		return err
	}
	name := m.op.Device.Name
	err = m.rename(ctx, Host, d)
	if errors.Is(err, unix.EEXIST) {
		m.c.Log.Warn("the RDMA device is back in the host, but another device has its name", "device", name, "is", d.Name,
			"hint", "give them their names with rdma dev set OLD name NEW, or reload the driver")
		name, err = d.Name, nil
	}
	if err != nil {
		return err
	}
	return m.restore(name)
}

// fetch moves the device back to the host if the pod has it. A node that now shares
// its devices has nothing to move: each namespace has all devices.
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
		return nil // it is gone meanwhile
	}
	return classify(moving, m.op.Device.Name, err)
}

// makeWay renames the device in the pod if another device of the host has its name.
// The new name is unused on the host. It is the name that the kernel gives when it
// moves such a device itself (rdma_dev_pick_netns_name).
func (m move) makeWay(ctx context.Context, d nldev.Device) error {
	c, err := m.conn(Pod)
	if err == nil {
		err = c.Rename(ctx, d.Index, fmt.Sprintf("ibdev%d", d.Index))
	}
	return err
}

// restore sets the host's type of service and traffic class again. name is the name
// of the device now. After the move there is no type of service, because the kernel
// creates the port again (cma_add_one), and the traffic class is the pod's. restore
// does not touch other values, because another program has set them since.
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

// exists says whether the node has the device in any namespace. Every namespace sees
// the files for programs that use devices. One of these files may belong to another
// device of the host with the same name.
func (m move) exists(ctx context.Context) bool {
	named := m.named(m.op.Device.Name)
	host, err := m.System(ctx, Host)
	if _, ours := match(host, m.op.Device); err == nil && !ours && slices.ContainsFunc(host.Devices, func(d nldev.Device) bool { return d.Name == m.op.Device.Name }) {
		named--
	}
	if named > 0 {
		return true
	}
	if m.op.Device.PCI == "" {
		return false
	}
	return slices.ContainsFunc(discover.Files(m.c.Sys), func(f discover.File) bool {
		id, err := fs.ReadLink(m.c.Sys, path.Join(f.Dir, "device"))
		return err == nil && path.Base(id) == m.op.Device.PCI
	})
}

// kept returns the error for a device that does not come back, although its namespace
// should be gone.
func (m move) kept() error {
	ns := fmt.Sprintf("net:[%d]", m.op.Netns.Ino)
	holders := m.holders(ns)
	if len(holders) == 0 {
		return cnierr.New(cnierr.RDMAHeld, "move back RDMA device", m.op.Device.Name,
			"find what keeps the namespace: findmnt -t nsfs, and lsns -t net; the device comes back when the namespace is gone",
			"its namespace %s is still there, without a process in it", ns)
	}
	return cnierr.New(cnierr.RDMAHeld, "move back RDMA device", m.op.Device.Name,
		"end the process that keeps the pod's namespace: kill "+holders[0].pid, "its namespace %s is kept by %s", ns, processes(holders))
}

// maxNames limits what an error lists, because the error is shown in an event of the
// pod.
const maxNames = 12

type process struct{ pid, command string }

func (p process) String() string { return fmt.Sprintf("process %s (%s)", p.pid, p.command) }

// holders returns the processes in a network namespace.
func (m move) holders(ns string) []process {
	links, err := fs.Glob(m.c.Proc, "[0-9]*/ns/net")
	if err != nil {
		return nil // the pattern is correct, so there are none
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

// damaged returns the finding of a Check: what is different, and the commands that
// restore it.
func damaged(action, subject string, fix []string, format string, args ...any) error {
	return cnierr.New(cnierr.Damaged, action, subject, "restore it: "+strings.Join(fix, " && "), format, args...)
}
