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
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// move executes plan.Move.
type move struct {
	*Subsystem
	op plan.Move
}

const moving = "move RDMA device"

func (m move) do(ctx context.Context) error {
	release, err := m.c.Lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	host, err := m.System(ctx, plan.Host)
	if err != nil {
		return err
	}
	if !host.Exclusive {
		return cnierr.New(cnierr.RDMAMode, moving, m.op.Device.Name, setMode(conf.RDMAExclusive), "the node shares its devices: each namespace has all of them")
	}
	d, ok := match(host, m.op.Device)
	if !ok {
		return m.again(ctx)
	}
	if err = m.give(ctx, d.Index); err != nil {
		return errors.Join(err, m.home(context.WithoutCancel(ctx)))
	}
	return nil
}

// again finishes a move that an earlier call began.
func (m move) again(ctx context.Context) error {
	d, err := m.device(ctx, plan.Pod, m.op.Device)
	if noDevice(err) {
		return m.elsewhere(ctx, moving, inAnother, err)
	}
	if err == nil {
		err = m.rename(ctx, plan.Pod, d)
	}
	if err != nil {
		return err
	}
	return m.settle()
}

// rename gives the device its own name back if it has another one.
func (m move) rename(ctx context.Context, at plan.Place, d nldev.Device) error {
	if d.Name == m.op.Device.Name {
		return nil
	}
	c, err := m.conn(at)
	if err == nil {
		err = c.Rename(ctx, d.Index, m.op.Device.Name)
	}
	return classify("restore name of RDMA device", d.Name, err)
}

// give moves the device from the host to the pod, and checks that the pod has it.
func (m move) give(ctx context.Context, index uint32) error {
	// A driver may refuse to set it from the pod's namespace.
	if m.op.TrafficClass != nil {
		if err := m.setTrafficClass(m.op.Device, *m.op.TrafficClass); err != nil {
			return err
		}
	}
	if err := m.send(ctx, index, plan.Host, plan.Pod); err != nil {
		return m.refused(ctx, err)
	}
	if _, err := m.device(ctx, plan.Pod, m.op.Device); err != nil {
		return err
	}
	if err := m.renumbered(); err != nil {
		return err
	}
	return m.settle()
}

// settle sets what the kernel forgets on a move. After a move the value is 0.
func (m move) settle() error {
	if m.op.TOS == nil || *m.op.TOS == 0 {
		return nil
	}
	return m.setTOS(plan.Pod, m.op.Device, *m.op.TOS)
}

// send moves the device from one namespace to the other. It uses the current index of
// the device.
func (m move) send(ctx context.Context, index uint32, from, to plan.Place) error {
	var fd int
	err := m.at(to, func() (err error) {
		fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written to it
	c, err := m.conn(from)
	if err != nil {
		return err
	}
	return m.at(from, func() error { return c.SetNetns(ctx, index, fd) })
}

// refused returns the error for a move that the kernel refused.
func (m move) refused(ctx context.Context, err error) error {
	switch {
	case noDevice(err):
		return m.elsewhere(ctx, moving, inAnother, err)
	case errors.Is(err, unix.EBUSY):
		return cnierr.New(cnierr.RDMAHeld, moving, m.op.Device.Name, "end the programs that use it: rdma resource show qp link "+shell.Word(portName(m.op.Device)), "%w", err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return cnierr.New(cnierr.RDMAMode, moving, m.op.Device.Name,
			"share devices on this node: rdma system set netns shared, which works only while no other network namespace exists",
			"its driver cannot take it away from programs that use it (disassociate_ucontext): %w", err)
	}
	return classify(moving, m.op.Device.Name, err)
}

const inAnother = "look for it in the other pods: ip netns exec NAME rdma dev; one pod can have it at a time"

// elsewhere returns the error for a device that is in neither namespace.
func (m move) elsewhere(ctx context.Context, action, hint string, err error) error {
	if !m.exists(ctx) {
		return err
	}
	return cnierr.New(cnierr.RDMAHeld, action, m.op.Device.Name, hint,
		"it is neither in the namespace of the host nor in that of the pod: %w", err)
}

// seek returns how to find a device in other namespaces and to bring it back. rdma(8)
// looks for every name in /run/netns, and has no name for the host's namespace.
func (m move) seek() string {
	return shell.Command("look for it in the other namespaces: ip netns exec NAME rdma dev; its name may differ; it comes back when that namespace ends, or with "+
		"ip netns exec NAME rdma dev set %s netns ../../proc/1/ns/net", m.op.Device.Name)
}

// check says where the device is if it is not in the pod, and which of its settings
// are different.
func (m move) check(ctx context.Context) error {
	const action = "check RDMA device"
	d, err := m.device(ctx, plan.Pod, m.op.Device)
	if noDevice(err) {
		return m.checkHost(ctx)
	}
	if err != nil {
		return err
	}
	if d.Name != m.op.Device.Name {
		return damaged(action, m.op.Device.Name, []string{m.rdma(plan.Pod, "dev set %s name %s", d.Name, m.op.Device.Name)},
			"it has another name in the pod, %q", d.Name)
	}
	return errors.Join(m.sameFile(), m.checkSettings(action))
}

func (m move) checkHost(ctx context.Context) error {
	const action = "check RDMA device"
	d, err := m.device(ctx, plan.Host, m.op.Device)
	switch {
	case noDevice(err):
		return cnierr.New(cnierr.Damaged, action, m.op.Device.Name, m.seek()+"; then delete the pod",
			"it is neither in the pod nor in the host: %w", err)
	case err != nil:
		return err
	}
	back := m.op
	back.Device.Name = d.Name
	return damaged(action, m.op.Device.Name, plan.OnHost(back).Commands(m.c.Netns), "it is in the host's namespace, not in the pod's")
}

func (m move) checkSettings(action string) error {
	d := m.op.Device
	if want := m.op.TOS; want != nil {
		have, err := m.tos(plan.Pod, d)
		if err != nil {
			return err
		}
		if have != nil && *have != *want {
			fix := plan.Exec(m.c.Netns) + shell.Command(" cma_roce_tos -d %s -p %d -t %d", d.Name, d.Port, *want)
			return damaged(action, d.Name, []string{fix}, "its RoCE ToS is %d, want %d", *have, *want)
		}
	}
	if want := m.op.TrafficClass; want != nil {
		have, err := m.trafficClass(plan.Pod, d)
		if err != nil {
			return err
		}
		if have != nil && *have != *want {
			return damaged(action, d.Name, []string{"delete the pod: it can be set only in the host"},
				"its traffic class is %d, want %d", *have, *want)
		}
	}
	return nil
}

// inHost returns the device in the host's namespace, or one of its name on the same
// hardware, which the driver made after the device was gone. The name alone is not enough:
// since Linux 7.3 it is unique only in a namespace (__alloc_name_id).
func (m move) inHost(ctx context.Context) (nldev.Device, error) {
	d, err := m.device(ctx, plan.Host, m.op.Device)
	if !noDevice(err) {
		return d, err
	}
	sys, listErr := m.System(ctx, plan.Host)
	if listErr != nil {
		return nldev.Device{}, listErr
	}
	i := slices.IndexFunc(sys.Devices, func(d nldev.Device) bool { return d.Name == m.op.Device.Name })
	bus, name := discover.Hardware(m.c.Sys, m.op.Device.Name)
	if i >= 0 && (bus == "pci" && name == m.op.Device.PCI || bus == "auxiliary" && name == m.op.Device.Auxiliary) {
		return sys.Devices[i], nil
	}
	return nldev.Device{}, err
}

// uverbs returns the name of the file that programs open to use a device, such as uverbs1;
// "" if there is none, or if several devices of the node have the name.
func (s *Subsystem) uverbs(device string) string {
	if files := s.deviceFiles(device); len(files) == 1 {
		return files[0].Name
	}
	return ""
}

// deviceFiles returns the files for programs of all devices of the node that have a name.
func (s *Subsystem) deviceFiles(device string) []discover.File {
	return slices.DeleteFunc(discover.Files(s.c.Sys), func(f discover.File) bool { return f.Device != device })
}

const checkingFile = "check device file of"

// sameFile returns a finding if the device has another file than before the move, which a
// device plugin gave to the container. The kernel makes a new one on each move, with the
// lowest free number (ib_uverbs_add_one).
func (m move) sameFile() error {
	was, is := m.op.UVerbs, m.uverbs(m.op.Device.Name)
	if was == "" || is == "" || was == is || m.op.UVerbsMode == conf.Off {
		return nil
	}
	return cnierr.New(cnierr.Damaged, checkingFile, m.op.Device.Name,
		"if a device plugin gives device files to the container, delete the pod: a new one gets /dev/infiniband/"+is+"; if it uses all of /dev/infiniband, set rdma.uverbs to off",
		"the move changed its file from /dev/infiniband/%s to /dev/infiniband/%s", was, is)
}

// renumbered treats such a finding as rdma.uverbs says, when a pod is made.
func (m move) renumbered() error {
	finding := m.sameFile()
	if finding == nil || m.op.UVerbsMode == conf.Require {
		return finding
	}
	m.c.Log.Warn("the move changed the file of an RDMA device", "error", finding.Error(), "hint", hintOf(finding))
	return nil
}

// returnTime is how long the kernel may take to bring a device back after its namespace
// is gone (rdma_dev_exit_net). We measured 0.2 to 0.5 s.
const (
	returnTime     = 3 * time.Second
	returnInterval = 10 * time.Millisecond
)

// undo brings the device back to the host's namespace, under its own name and with
// the host's settings, unless the node does not have it any more.
func (m move) undo(ctx context.Context) error {
	if m.c.Enter == nil {
		if err := m.await(ctx); err != nil {
			return err
		}
	}
	release, err := m.c.Lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	return m.home(ctx)
}

// await waits until the kernel has brought the device back, or returns nil if the node has
// no such device any more. It does not hold the lock meanwhile.
func (m move) await(ctx context.Context) error {
	back, err := poll(ctx, returnTime, returnInterval, func() (bool, error) {
		_, err := m.inHost(ctx)
		if noDevice(err) {
			return false, nil
		}
		return err == nil, err
	})
	switch {
	case err != nil:
		return classify("wait for RDMA device", m.op.Device.Name, err)
	case back || !m.exists(ctx):
		return nil
	}
	return m.kept()
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
	err = m.rename(ctx, plan.Host, d)
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
	pod, err := m.System(ctx, plan.Pod)
	if noDevice(err) {
		return nil // the kernel has no RDMA any more
	}
	d, ok := match(pod, m.op.Device)
	if err != nil || !pod.Exclusive || !ok {
		return err
	}
	err = m.send(ctx, d.Index, plan.Pod, plan.Host)
	if errors.Is(err, unix.EEXIST) {
		if err = m.makeWay(ctx, d); err == nil {
			err = m.send(ctx, d.Index, plan.Pod, plan.Host)
		}
	}
	if noDevice(err) {
		return nil // it is gone meanwhile
	}
	return classify(moving, m.op.Device.Name, err)
}

// makeWay renames the device in the pod, as the kernel does when it moves a device to
// where another one has its name (rdma_dev_pick_netns_name).
func (m move) makeWay(ctx context.Context, d nldev.Device) error {
	c, err := m.conn(plan.Pod)
	if err == nil {
		err = c.Rename(ctx, d.Index, fmt.Sprintf("ibdev%d", d.Index))
	}
	return err
}

// restore sets the host's type of service and traffic class again. name is the name
// of the device now. A move takes the type of service away (cma_add_one), and the traffic
// class is the pod's. Other values stay: another program has set them since.
func (m move) restore(name string) error {
	d := m.op.Device
	d.Name = name
	if want := m.op.HostTOS; want != nil && *want != 0 {
		have, err := m.tos(plan.Host, d)
		if err == nil && have != nil && *have == 0 {
			err = m.setTOS(plan.Host, d, *want)
		}
		if err != nil {
			return err
		}
	}
	pods, want := m.op.TrafficClass, m.op.HostTrafficClass
	if pods == nil || want == nil || *pods == *want {
		return nil
	}
	have, err := m.trafficClass(plan.Host, d)
	if err == nil && have != nil && *have == *pods {
		err = m.setTrafficClass(d, *want)
	}
	return err
}

// exists says whether the node has the device in any namespace, which the files for
// programs tell. One of them may be that of another device of the host with its name.
func (m move) exists(ctx context.Context) bool {
	named := m.named(m.op.Device.Name)
	host, err := m.System(ctx, plan.Host)
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
	holders := m.holders()
	if len(holders) == 0 {
		return cnierr.New(cnierr.RDMAHeld, "move back RDMA device", m.op.Device.Name,
			"find what keeps the namespace: findmnt -t nsfs, and lsns -t net; the device comes back when the namespace is gone",
			"its namespace %s is still there, without a process in it", ns)
	}
	return cnierr.New(cnierr.RDMAHeld, "move back RDMA device", m.op.Device.Name,
		fmt.Sprint("end the process that keeps the pod's namespace: kill ", holders[0].PID), "its namespace %s is kept by %s", ns, processes(holders))
}

// holders returns the processes in the network namespace of the device.
func (m move) holders() []Process {
	folders, _ := fs.Glob(m.c.Proc, "[0-9]*") // the pattern is correct
	var out []Process
	for _, f := range folders {
		if ino, err := netns.Inode(m.c.Proc, f); err == nil && ino == m.op.Netns.Ino {
			pid, _ := strconv.ParseUint(f, 10, 32)
			out = append(out, ProcessOf(m.c.Proc, uint32(pid)))
		}
	}
	return out
}

func processes(ps []Process) string {
	var out []string
	for _, p := range ps {
		out = append(out, p.String())
	}
	return cnierr.Some(out)
}

// damaged returns the finding of a Check: what is different, and the commands that
// restore it.
func damaged(action, subject string, fix []string, format string, args ...any) error {
	return cnierr.New(cnierr.Damaged, action, subject, "restore it: "+strings.Join(fix, " && "), format, args...)
}
