// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tracer runs a program under strace(1).
type tracer struct {
	dir   string
	calls string   // which, as strace's -e has it
	lines []string // of the last program, by time
}

// traced are the calls that change something or send a request. Those that only older
// kernels or other machines have may be missing (?).
const traced = "trace=socket,sendto,sendmsg,?open,openat,?mkdir,mkdirat,?symlink,symlinkat,?rename,renameat,renameat2,?unlink,unlinkat,?rmdir,execve"

func (t *tracer) run(cmd *exec.Cmd) error {
	strace, err := exec.LookPath("strace")
	if err != nil {
		return err
	}
	// One file for each thread, so that no call is cut in two by another's. -s is
	// also how many requests of a message are shown.
	args := []string{strace, "-ff", "-ttt", "-X", "raw", "-s", "1024", "-e", t.calls, "-e", "signal=none", "-o", filepath.Join(t.dir, "thread"), cmd.Path}
	cmd.Path, cmd.Args = strace, args
	if err := cmd.Run(); err != nil {
		return err
	}
	t.lines = nil
	files, err := filepath.Glob(filepath.Join(t.dir, "thread.*"))
	if err != nil {
		return err
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		t.lines = append(t.lines, strings.Split(strings.TrimSpace(string(b)), "\n")...)
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	slices.Sort(t.lines) // each starts with the time
	return nil
}

// account is what a program did, in the words of the goldens.
type account struct {
	socket map[string]string // what a file descriptor is
	names  *strings.Replacer // for what differs from run to run
	lines  []string
	asked  int // netlink requests
	trips  int // and the system calls that sent them
}

var (
	call   = regexp.MustCompile(`^\d+\.\d+ (\w+)\((.*)$`)
	result = regexp.MustCompile(` = (-?\d+)[^=]*$`)
	asks   = regexp.MustCompile(`nlmsg_type=(\w+), nlmsg_flags=(\w+)`)
	quoted = regexp.MustCompile(`"([^"]*)"`)
	random = regexp.MustCompile(`\.new-[0-9a-f]{16}$`) // pkg/base/trusted
)

// add takes a line of strace.
func (a *account) add(line string) error {
	m := call.FindStringSubmatch(line)
	if m == nil {
		return nil // how a thread ended
	}
	name, args := m[1], m[2]
	switch name {
	case "socket":
		return a.open(line, args)
	case "sendto", "sendmsg":
		return a.send(args)
	case "execve":
		a.lines = append(a.lines, "run    "+a.names.Replace(quoted.FindStringSubmatch(args)[1]))
		return nil
	}
	return a.file(name, line, args)
}

// open notes what a new socket is. The first of netlink is the host's.
func (a *account) open(line, args string) error {
	m := result.FindStringSubmatch(line)
	number, err := strconv.ParseInt(strings.SplitN(args, ",", 2)[0], 0, 32)
	if m == nil || err != nil {
		return fmt.Errorf("no socket: %s", line)
	}
	switch number {
	case unix.AF_NETLINK:
		a.socket[m[1]] = "pod    "
		if !slices.Contains(a.lines, "socket of netlink") {
			a.socket[m[1]] = "host   "
		}
		a.lines = append(a.lines, "socket of netlink")
	case unix.AF_PACKET:
		a.socket[m[1]] = "frame"
		a.lines = append(a.lines, "socket of packets")
	default:
		delete(a.socket, m[1])
	}
	return nil
}

// send notes netlink requests, and frames without what is in them.
func (a *account) send(args string) error {
	to := a.socket[strings.SplitN(args, ",", 2)[0]]
	switch to {
	case "":
		return nil
	case "frame":
		a.lines = append(a.lines, to)
		return nil
	}
	var sent []string
	for _, m := range asks.FindAllStringSubmatch(args, -1) {
		typ, err := strconv.ParseUint(m[1], 0, 16)
		if err != nil {
			return err
		}
		flags, err := strconv.ParseUint(m[2], 0, 16)
		if err != nil {
			return err
		}
		sent = append(sent, request(uint16(typ), uint16(flags)))
	}
	a.asked += len(sent)
	a.trips++
	a.lines = append(a.lines, to+strings.Join(sent, ", "))
	return nil
}

func request(typ, flags uint16) string {
	names := map[uint16]string{
		unix.RTM_NEWLINK: "NEWLINK", unix.RTM_DELLINK: "DELLINK", unix.RTM_GETLINK: "GETLINK", unix.RTM_SETLINK: "SETLINK",
		unix.RTM_NEWADDR: "NEWADDR", unix.RTM_DELADDR: "DELADDR", unix.RTM_GETADDR: "GETADDR",
		unix.RTM_NEWROUTE: "NEWROUTE", unix.RTM_DELROUTE: "DELROUTE", unix.RTM_GETROUTE: "GETROUTE",
		unix.RTM_NEWRULE: "NEWRULE", unix.RTM_DELRULE: "DELRULE", unix.RTM_GETRULE: "GETRULE",
		unix.RTM_NEWNSID: "NEWNSID", unix.RTM_GETNSID: "GETNSID",
	}
	name := names[typ]
	switch {
	case name == "":
		return fmt.Sprintf("request of type %d", typ)
	case strings.HasPrefix(name, "GET") && flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP:
		return name + " of all"
	}
	return name
}

// file notes a call about a path, but for those of the Go runtime, which
// differ with the kernel and the container that we run in.
func (a *account) file(name, line, args string) error {
	var paths []string
	for _, m := range quoted.FindAllStringSubmatch(args, -1) {
		for _, runtimes := range []string{"/sys/kernel/mm/", "/sys/fs/cgroup/", "/proc/self/"} {
			if strings.HasPrefix(m[1], runtimes) {
				return nil
			}
		}
		path := random.ReplaceAllString(a.names.Replace(m[1]), ".new-RANDOM")
		paths = append(paths, path)
	}
	verb := strings.TrimSuffix(strings.TrimSuffix(name, "2"), "at")
	if verb == "open" {
		flags, err := openFlags(args)
		if err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		if flags == "" {
			return nil
		}
		verb = flags
	}
	if m := result.FindStringSubmatch(line); m != nil && strings.HasPrefix(m[1], "-") {
		paths = append(paths, "in vain")
	}
	a.lines = append(a.lines, fmt.Sprintf("%-6s %s", verb, strings.Join(paths, " ")))
	return nil
}

// openFlags returns what a file is opened for, "" if for nothing. The flags follow the
// path.
func openFlags(args string) (string, error) {
	_, rest, _ := strings.Cut(args, `", `)
	number := regexp.MustCompile(`^\w+`).FindString(rest)
	flags, err := strconv.ParseUint(number, 0, 32)
	switch {
	case err != nil:
		return "", err
	case flags&unix.O_PATH != 0: // a step on the way to a file
		return "", nil
	case flags&unix.O_CREAT != 0:
		return "make", nil
	case flags&unix.O_ACCMODE != unix.O_RDONLY:
		return "write", nil
	}
	return "read", nil
}
