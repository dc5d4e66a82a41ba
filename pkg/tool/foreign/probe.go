// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package foreign

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// The names of the probe and of its own buffer in tracefs.
const (
	event    = "roce_cni/gid"
	instance = "instances/roce-cni"
)

const (
	// perCPU is the buffer of each processor, in KiB: for about 2,000 uses. When it is full,
	// the kernel drops the oldest.
	perCPU = 128
	// most is how much text of uses is read at once: of about 190. The kernel looks up two
	// symbols for each, which takes long.
	most = 32 << 10
	// mostCallers is how many callers the filter has. Linux 7.3 has six.
	mostCallers = 32
)

type use struct {
	thread uint32
	device uint64 // its struct ib_device
	port   uint32
	index  int
	from   uint64 // the address of the caller, and its name
	caller string
}

// probe is a kprobe on rdma_get_gid_attr, with a buffer of its own.
type probe struct {
	tracing string
	thread  int    // its uses are seen whatever the caller is
	pipe    int    // trace_pipe
	rest    []byte // a line that is not read to its end
	ignored []uint64
}

// newProbe sets the probe, after it has removed one that another process has left. It sees this
// thread alone until filter is called. It must be called, as all methods, by the same thread. The
// caller must close the probe.
func newProbe(tracing string) (p *probe, err error) {
	p = &probe{tracing: tracing, thread: unix.Gettid(), pipe: -1}
	defer func() {
		if err != nil {
			p.close()
			err = cnierr.New(cnierr.IO, "watch the use of GIDs by a kprobe in", tracing,
				`see docs/rdma.md for what the kernel must have; without it remove "foreignGID" from the settings of the node`, "%w", err)
		}
	}()
	var on unix.Statfs_t
	if err := unix.Statfs(tracing, &on); err != nil {
		return p, &os.PathError{Op: "statfs", Path: tracing, Err: err}
	}
	if on.Type != unix.TRACEFS_MAGIC {
		if err := unix.Mount("tracefs", tracing, "tracefs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return p, &os.PathError{Op: "mount tracefs", Path: tracing, Err: err}
		}
	}
	if err := p.remove(); err != nil {
		return p, err
	}
	returns := map[string]string{"amd64": "$stack0", "arm64": "%lr"}[runtime.GOARCH]
	if returns == "" {
		return p, errors.ErrUnsupported
	}
	// x64 is for the filter, symbol is for the name.
	if err := p.write("kprobe_events", fmt.Sprintf("p:%s rdma_get_gid_attr dev=$arg1:x64 port=$arg2:u32 index=$arg3:s32 from=%s:x64 caller=%[2]s:symbol", event, returns)); err != nil {
		return p, err
	}
	if err := os.Mkdir(filepath.Join(tracing, instance), 0o700); err != nil {
		return p, err
	}
	if err := p.write(instance+"/buffer_size_kb", strconv.Itoa(perCPU)); err != nil {
		return p, err
	}
	path := filepath.Join(tracing, instance, "trace_pipe")
	if p.pipe, err = unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
		return p, &os.PathError{Op: "open", Path: path, Err: err}
	}
	// The own reads, which name the devices, would be behind what all pods do.
	if err := p.filter(p.own()); err != nil {
		return p, err
	}
	return p, p.write(instance+"/events/"+event+"/enable", "1")
}

// Remove removes the probe of a Watcher that was killed, if tracefs is mounted and has it. It
// mounts nothing.
func Remove(tracing string) error {
	var on unix.Statfs_t
	if err := unix.Statfs(tracing, &on); err != nil || on.Type != unix.TRACEFS_MAGIC {
		return nil //nolint:nilerr // nothing can be there
	}
	if _, err := os.Stat(filepath.Join(tracing, instance)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return (&probe{tracing: tracing}).remove()
}

// write appends to a file: without that, kprobe_events would lose the probes of others.
func (p *probe) write(name, text string) error {
	f, err := os.OpenFile(filepath.Join(p.tracing, name), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text + "\n")
	return errors.Join(err, f.Close())
}

func (p *probe) close() {
	if p.pipe >= 0 {
		_ = unix.Close(p.pipe)
	}
	_ = p.remove() // the next one does it
}

func (p *probe) remove() error {
	err := unix.Rmdir(filepath.Join(p.tracing, instance))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &os.PathError{Op: "remove", Path: filepath.Join(p.tracing, instance), Err: err}
	}
	if err := p.write("kprobe_events", "-:"+event); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ignore has the kernel drop the uses by a caller, but for those of this thread.
func (p *probe) ignore(from uint64) error {
	if slices.Contains(p.ignored, from) || len(p.ignored) == mostCallers {
		return nil
	}
	p.ignored = append(p.ignored, from)
	var others []string
	for _, from := range p.ignored {
		others = append(others, fmt.Sprintf("from != %#x", from))
	}
	return p.filter(p.own() + " || (" + strings.Join(others, " && ") + ")")
}

// own is the filter for the uses of this thread.
func (p *probe) own() string { return fmt.Sprintf("common_pid == %d", p.thread) }

// filter says which uses the kernel writes into the buffer; "0": all.
func (p *probe) filter(which string) error {
	return p.write(instance+"/events/"+event+"/filter", which)
}

// hits returns how often the probe was met, whatever the filter is. The kernel lists it without
// the first part of its name.
func (p *probe) hits() (n uint64, err error) {
	b, err := os.ReadFile(filepath.Join(p.tracing, "kprobe_profile"))
	_, name, _ := strings.Cut(event, "/")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			hits, _ := strconv.ParseUint(f[1], 10, 64) // the kernel writes a number
			n += hits
		}
	}
	return n, err
}

// read returns the uses since it was called before, and how many were lost. It waits for
// none, and leaves what is too much for the next time.
func (p *probe) read() (uses []use, lost int, err error) {
	b := make([]byte, 4<<10) // the kernel gives no more at once
	for total := 0; total < most; {
		n, err := unix.Read(p.pipe, b)
		if errors.Is(err, unix.EAGAIN) || err == nil && n == 0 {
			break
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil, 0, fmt.Errorf("read trace_pipe: %w", err)
		}
		total += max(n, 0)
		p.rest = append(p.rest, b[:max(n, 0)]...)
	}
	end := bytes.LastIndexByte(p.rest, '\n') + 1
	uses, lost = parse(p.rest[:end])
	p.rest = slices.Clone(p.rest[end:])
	return uses, lost, nil
}

// The two kinds of lines of trace_pipe. A program chooses its name, which comes first and may
// have a line break. It is too short for what must follow it here without a gap.
var (
	useLine = regexp.MustCompile(`-(\d+) +(?:\(.{7}\) )?\[\d+\] \S+ +\d+\.\d+: gid: \(rdma_get_gid_attr\S*(?: \[\w+\])?\) ` +
		`dev=0x([0-9a-f]+) port=(\d+) index=(-?\d+) from=0x([0-9a-f]+) caller=([\w.]+)`)
	lostLine = regexp.MustCompile(`^CPU:\d+ \[LOST (\d+ )?EVENTS\]$`)
)

func parse(b []byte) (uses []use, lost int) {
	for line := range bytes.Lines(b) {
		if m := lostLine.FindSubmatch(bytes.TrimSpace(line)); m != nil {
			n, _ := strconv.Atoi(strings.TrimSpace(string(m[1])))
			lost += cmp.Or(n, 1)
		}
		m := useLine.FindSubmatch(line)
		if m == nil {
			continue
		}
		number := func(i, base int) uint64 {
			n, _ := strconv.ParseUint(string(m[i]), base, 64) // a negative index is none
			return n
		}
		index, err := strconv.Atoi(string(m[4]))
		if err != nil {
			continue
		}
		name, _, _ := strings.Cut(string(m[6]), ".") // the compiler appends .isra.0
		uses = append(uses, use{uint32(number(1, 10)), number(2, 16), uint32(number(3, 10)), index, number(5, 16), name})
	}
	return uses, lost
}

// setsGID says whether a use is by a queue pair or an address handle that gets a GID. Which of
// the functions calls depends on what the compiler has put into one. Others show the table,
// and some drivers look at it for each packet.
func (u use) setsGID() bool {
	return slices.Contains([]string{
		"rdma_fill_sgid_attr", "rdma_create_ah", "rdma_create_user_ah", "rdma_modify_ah", "_ib_modify_qp", "ib_modify_qp", "ib_modify_qp_with_udata",
	}, u.caller)
}
