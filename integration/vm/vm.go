// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package vm runs a command on a kernel with RDMA: it boots one of Debian's kernels in
// QEMU, with Soft-RoCE on its NICs and Debian's programs.
//
// It needs no RDMA NIC. It uses KVM where a guest boots with it, and emulates the processor
// elsewhere, so it must not be used to measure speed. The guest has a root of its own, copied from this machine's
// packages. It sees the folders that it is to see, read-only, and writes to its own memory.
// Only the cache of kernels is written. Read README.md first for manual use, then this
// file; init.sh and start.sh are the guest's side.
package vm

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Machine is a virtual machine to be.
type Machine struct {
	// Node tells machines on the same wires apart: it is in the MAC addresses,
	// 52:54:00:00:NODE:RAIL, in the host name, and in the environment of the
	// command, as VM_NODE.
	Node int
	// Rails are the wires of the NICs. Rail 0 is netdev r0, up, without an
	// address, with MTU 9000 and the Soft-RoCE device rxe0.
	Rails []*Wire
	// Type says what the machine imitates; the zero value: nothing.
	Type Type
	// Reach is an address that this machine can connect to, and the guest is to
	// reach by TCP: it has the NIC "host" then, and QEMU connects in its place,
	// in the network namespace that Run is called in. The zero value: none.
	Reach netip.Addr
	// Serve is where this machine listens for the guest, with Reach: QEMU passes the
	// connections on to the same port of the guest. The zero value: nowhere.
	Serve netip.AddrPort
	// Memory is in MiB, 0 means 1024. What the guest writes to files takes of
	// it, too.
	Memory int
	// CPUs; 0 means 2, and 1 for SRIOV.
	CPUs int
	// Files are folders of this machine that the guest has too, under the same paths, which
	// are absolute and have no space in them. All else that the guest sees is its own.
	Files []string
	// Dir is the working directory of the command, absolute.
	Dir string
	// Together, if set, keeps the machine until the commands of all machines that
	// share it have ended: the others may need its last frames again. The caller adds
	// one for each machine.
	Together *sync.WaitGroup
	// Output gets what the command writes to stdout and stderr.
	Output io.Writer
}

// Type is what a machine imitates by modules of ours, which 6.1 alone has.
type Type string

// OFEDView has Soft-RoCE devices with GID files that hide the entries of other
// network namespaces from the reader, as NVIDIA's own driver does.
const OFEDView Type = "ofed-view"

// MLX5Like has, in place of Soft-RoCE devices, such as a NIC's driver makes: see
// module/fake_roce.c, and start.sh for which they are. It needs five rails.
const MLX5Like Type = "mlx5-like"

// SRIOV has NICs with virtual functions (igb, by a newer QEMU that is fetched for it),
// and on both the RDMA devices of MLX5Like: see start.sh for which they are.
const SRIOV Type = "sriov"

// PCIe has two NUMA nodes, and a GPU that is PIX, PXB, PHB, NODE and SYS away from the
// first five rails, in this order: see pcieBridges. Each has Soft-RoCE.
const PCIe Type = "pcie"

// modules returns the modules of a type that init.sh loads.
func (t Type) modules() ([]string, error) {
	switch t {
	case "", PCIe, MLX5Like: // its module needs the names of the netdevs
		return nil, nil
	case OFEDView:
		return []string{"ofed_view"}, nil
	case SRIOV:
		return []string{"igb"}, nil
	}
	return nil, fmt.Errorf("there is no machine type %q; there are %s, %s, %s and %s", t, OFEDView, MLX5Like, SRIOV, PCIe)
}

// Run boots the machine, runs the command as root in it, and returns the exit
// status. The machine is gone when Run returns, or when the process that
// called it is. An error means that there is no status: ctx ended, or the guest
// did; its text ends with the guest's last kernel messages.
func (k Kernel) Run(ctx context.Context, m Machine, command ...string) (status int, err error) {
	// Pdeathsig is sent when the thread that started the process ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ended := func() {}
	if m.Together != nil {
		ended = sync.OnceFunc(m.Together.Done)
	}
	defer ended()
	dir, err := os.MkdirTemp("", "roce-cni-vm")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a few MB in the folder of temporary files
	if err := k.writeInitramfs(filepath.Join(dir, "initramfs"), m, command); err != nil {
		return 0, err
	}
	told, err := k.qemu(ctx, m, dir, ended)
	if err != nil {
		console, _ := os.ReadFile(filepath.Join(dir, "console"))
		return 0, fmt.Errorf("guest with kernel %s: %w\n%s", k.Release, err, tail(console))
	}
	status, err = strconv.Atoi(told)
	if err != nil { // start.sh told what went wrong instead
		return 0, fmt.Errorf("guest with kernel %s: %s", k.Release, told)
	}
	return status, nil
}

// qemu runs the machine until it tells a status, and returns that. It calls
// ended when the command has.
func (k Kernel) qemu(ctx context.Context, m Machine, dir string, ended func()) (told string, err error) {
	cmd, err := k.emulator(ctx, m)
	if err != nil {
		return "", err
	}
	cmd.Args = append(cmd.Args, k.arguments(m, dir)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	cmd.WaitDelay = time.Second
	output, status, err := connect(cmd, m.Rails)
	if err == nil {
		err = cmd.Start()
	}
	if err := errors.Join(err, closeAll(cmd.ExtraFiles)); err != nil {
		return "", errors.Join(err, closeAll([]*os.File{output, status}))
	}

	copied, line := make(chan error, 1), make(chan string, 1)
	go func() {
		_, err := io.Copy(m.Output, output)
		copied <- errors.Join(err, output.Close())
	}()
	go func() {
		s, _ := bufio.NewReader(status).ReadString('\n')
		ended()
		if m.Together != nil {
			m.Together.Wait()
		}
		_ = cmd.Process.Kill() // has told all, or is gone
		_ = status.Close()
		line <- strings.TrimSpace(s)
	}()
	exit := cmd.Wait()
	told = <-line
	switch err := <-copied; {
	case err != nil:
		return "", fmt.Errorf("its output: %w", err)
	case told != "":
		return told, nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case exit == nil:
		exit = errors.New("powered off")
	}
	return "", fmt.Errorf("it told no status: qemu: %w %s", exit, bytes.TrimSpace(complaints.Bytes()))
}

// emulator returns the command of QEMU without its arguments: the one of this machine,
// or the one that has NICs with virtual functions, which it fetches if it is not there.
func (k Kernel) emulator(ctx context.Context, m Machine) (*exec.Cmd, error) {
	const program = "qemu-system-x86_64"
	if m.Type != SRIOV {
		return exec.CommandContext(ctx, program), nil
	}
	dir := filepath.Join(filepath.Dir(k.Dir), "qemu")
	err := locked(filepath.Dir(k.Dir), func() error {
		if _, err := os.Stat(dir); err == nil {
			return nil
		}
		return script(ctx, m.Output, m.Output, "fetch.sh", "qemu", filepath.Dir(k.Dir))
	})
	if err != nil {
		return nil, fmt.Errorf("fetch QEMU: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "usr/bin", program), "-L", filepath.Join(dir, "usr/share/qemu"), "-L", filepath.Join(dir, "usr/share/seabios"))
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Join(dir, "usr/lib/x86_64-linux-gnu"), "QEMU_MODULE_DIR=" + filepath.Join(dir, "usr/lib/x86_64-linux-gnu/qemu")}
	return cmd, nil
}

// connect makes cmd.ExtraFiles, which the caller closes: pipes for the output and the
// status, and cables. It returns the other ends of the pipes.
func connect(cmd *exec.Cmd, rails []*Wire) (output, status *os.File, err error) {
	ends := make([]*os.File, 2)
	for i := range ends {
		r, w, err := os.Pipe()
		if err != nil {
			return ends[0], ends[1], err
		}
		ends[i] = r
		cmd.ExtraFiles = append(cmd.ExtraFiles, w)
	}
	for _, wire := range rails {
		cable, err := wire.join()
		if err != nil {
			return ends[0], ends[1], err
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, cable)
	}
	return ends[0], ends[1], nil
}

// arguments are qemu's. The descriptors from 3 on are cmd.ExtraFiles.
//
// thread=single: both processors run on one thread of QEMU. On a thread each (multi), about
// one boot of kernel 7 in 75 ended with "Oops: int3", where the kernel changed a static
// branch: with QEMU 7.2 and 10.0, of Debian 12 and its backports.
func (k Kernel) arguments(m Machine, dir string) []string {
	accel := "tcg,thread=single"
	if k.KVM {
		accel = "kvm"
	}
	cpus := 2
	if m.Type == SRIOV {
		// The drivers of a PF and its VF answer each other through a mailbox. With two processors
		// that take turns on one thread, an answer is late or read too early, "PF still resetting",
		// and the VF has no carrier. On one processor the interrupt of the PF is served at once.
		cpus = 1
	}
	args := []string{
		"-machine", "q35", "-accel", accel,
		"-cpu", "max,la57=off", // a fifth level of page tables to walk is only slower
		"-m", strconv.Itoa(cmp.Or(m.Memory, 1024)), "-smp", strconv.Itoa(cmp.Or(m.CPUs, cpus)),
		"-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", filepath.Join(k.Dir, "vmlinux"),
		"-initrd", filepath.Join(dir, "initramfs"),
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check cryptomgr.notests random.trust_cpu=on audit=0 apparmor=0 i8042.nokbd i8042.noaux",
		"-serial", "file:" + filepath.Join(dir, "console"),
		"-device", "virtio-serial-pci",
		"-chardev", "file,id=output,path=/dev/fd/3", "-device", "virtconsole,chardev=output",
		"-chardev", "file,id=status,path=/dev/fd/4", "-device", "virtserialport,chardev=status,nr=1",
	}
	args = append(args, share("root", k.Root)...)
	args = append(args, share("modules", filepath.Join(k.Dir, "lib/modules", k.Release))...)
	for i, folder := range m.Files {
		args = append(args, share(tag(i), folder)...)
	}
	if m.Type == PCIe {
		args = append(args, pcieBridges(cmp.Or(m.Memory, 1024))...)
	}
	for i := range m.Rails {
		mac := fmt.Sprintf("52:54:00:00:%02x:%02x", m.Node, i)
		args = append(args, "-netdev", fmt.Sprintf("socket,id=r%d,fd=%d", i, 5+i))
		if m.Type == SRIOV { // a root port has room for the virtual functions
			args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=port%d,slot=%d", i, i+1),
				"-device", fmt.Sprintf("igb,bus=port%d,netdev=r%d,mac=%s", i, i, mac))
			continue
		}
		nic := fmt.Sprintf("virtio-net-pci,netdev=r%d,mac=%s,host_mtu=9000,romfile=", i, mac)
		if m.Type == PCIe {
			nic += ",bus=" + pcieBus(i)
		}
		args = append(args, "-device", nic)
	}
	if m.Reach.IsValid() {
		forward := ""
		if m.Serve.IsValid() {
			forward = fmt.Sprintf(",hostfwd=tcp:%s-:%d", m.Serve, m.Serve.Port())
		}
		args = append(args, "-netdev", "user,id=host,ipv6=off"+forward, "-device", "virtio-net-pci,bus=pcie.0,netdev=host,romfile=")
	}
	return args
}

// share returns the arguments for a folder that the guest can mount, but never write to.
func share(tag, folder string) []string {
	return []string{"-virtfs", fmt.Sprintf("local,path=%s,mount_tag=%s,security_model=none,readonly=on,multidevs=remap", folder, tag)}
}

// tag is the name of one of Machine.Files for the guest.
func tag(i int) string { return "files" + strconv.Itoa(i) }

// closeAll closes files; a nil one is none.
func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// tail returns the last lines of a console.
func tail(console []byte) string {
	const most = 5000 // a panic with its call trace
	text := strings.ReplaceAll(string(console), "\r", "")
	return strings.TrimSpace(text[max(0, len(text)-most):])
}
