// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package podenv prints the RDMA settings of a pod for a shell, and says what keeps
// a container from using its RDMA devices.
//
// It finds nothing out about rails, GIDs or settings: the packages gids and advice do. The
// programs rocectl and roce-env use it. Read this file first.
package podenv

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/tool/advice"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

// Write writes the lines for a shell. If there is a reason why the lines are not
// complete or not usable, it adds a line that fails.
func Write(w io.Writer, rails []gids.Rail, s advice.Settings, reason error) error {
	var b strings.Builder
	comment := func(format string, args ...any) {
		b.WriteString("# " + strings.Map(printable, fmt.Sprintf(format, args...)) + "\n")
	}
	for _, r := range rails {
		comment("%s %s: %s port %d, GID index %d", r.Link, r.Addr, r.Port.Device.Name, r.Port.Number, r.Index)
	}
	for _, why := range s.Why {
		comment("why: %s", why)
	}
	for _, v := range s.Set {
		fmt.Fprintf(&b, "export %s=%s\n", v.Name, shell.Value(v.Value))
	}
	for i, command := range s.Perftest {
		comment("%s: %s", rails[i].Link, command)
	}
	if reason != nil {
		b.WriteString("false # see the error\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return cnierr.New(cnierr.IO, "write", "standard output", "", "%w", err)
	}
	return nil
}

// printable replaces a character of a name that would end the comment.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}

// Container is the container in which the program runs.
type Container struct {
	Root    string // the folder with dev, proc and sys: "/"
	Memlock uint64 // its limit for locked memory in bytes (RLIMIT_MEMLOCK)
}

// Own returns the container of the caller. Errors: IO.
func Own() (Container, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return Container{}, cnierr.New(cnierr.IO, "read limit of", "locked memory", "", "%w", err)
	}
	return Container{Root: "/", Memlock: limit.Cur}, nil
}

// enough is a limit for locked memory that an operator chose for RDMA. The defaults
// are 64 KiB or 8 MiB, and programs register gigabytes.
const enough = 1 << 30

// Check says whether programs can use the RDMA devices of the rails: each needs its
// file uverbsN, and the memory that they register is locked. The errors say what the
// manifest of the pod lacks. Errors: NoRDMA, BadEnv.
func (c Container) Check(rails []gids.Rail) error {
	checked := map[string]bool{}
	var all error
	for _, r := range rails {
		if checked[r.Port.Device.Name] {
			continue
		}
		checked[r.Port.Device.Name] = true
		if err := c.open(r.Port.Device.Name); err != nil {
			all = errors.Join(all, cnierr.New(cnierr.NoRDMA, "open RDMA device", r.Port.Device.Name,
				"request the resource of the RDMA device plugin in the container: resources.limits, such as rdma/rails: 1; "+
					"if it does, and the node is in exclusive mode, delete the pod: a move has changed the number of the file", "%w", err))
		}
	}
	return errors.Join(all, c.locks())
}

// open opens the file of a device, as libibverbs does.
func (c Container) open(device string) error {
	for _, f := range discover.Files(os.DirFS(filepath.Join(c.Root, "sys"))) {
		if f.Device != device {
			continue
		}
		file, err := os.OpenFile(filepath.Join(c.Root, "dev/infiniband", f.Name), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		return file.Close()
	}
	return errors.New("no folder of /sys/class/infiniband_verbs is for it: ib_uverbs is not loaded on the node")
}

// capIPCLock is the number of CAP_IPC_LOCK (linux/capability.h).
const capIPCLock = 14

// locks says whether the container may lock as much memory as RDMA programs need.
func (c Container) locks() error {
	if c.Memlock >= enough {
		return nil
	}
	status, err := os.ReadFile(filepath.Join(c.Root, "proc/self/status"))
	if err != nil {
		return cnierr.New(cnierr.IO, "read", "/proc/self/status", "", "%w", err)
	}
	_, line, _ := strings.Cut(string(status), "\nCapEff:")
	line, _, _ = strings.Cut(line, "\n")
	effective, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err == nil && effective&(1<<capIPCLock) != 0 {
		return nil
	}
	return cnierr.New(cnierr.BadEnv, "check limit of", "locked memory",
		"give the container securityContext.capabilities.add: [IPC_LOCK]; a container that is not root needs a higher limit of the runtime: docs/testing-rdma.md",
		"at most %d KiB, and the program has no IPC_LOCK: ibv_reg_mr fails for larger buffers", c.Memlock/1024)
}
