// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package calls keeps the last calls of the plugins of a node, in a file of the state
// folder: how long each took, and how it ended.
//
// A plugin appends a line, and the agent and rocectl read them. No daemon is asked in a
// call, and no call needs the file.
package calls

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// The verbs of what rocectl heal does, which the runtime does not call: Heal of a repair, and
// Alarm of what it has seen. The only step of an alarm names it: ForeignGID, or LostUses.
const (
	Heal  = "HEAL"
	Alarm = "ALARM"
)

// The steps of alarms.
const (
	ForeignGID = "foreign-gid" // a pod uses the GID of another pod
	LostUses   = "lost"        // such a use may have been missed
)

// Call is one call of the runtime, or a repair or an alarm of rocectl heal.
type Call struct {
	At      time.Time `json:"at"` // its end
	Verb    string    `json:"verb"`
	Network string    `json:"network,omitempty"`
	conf.Attachment
	Pod  string        `json:"pod,omitempty"` // namespace/name
	UID  string        `json:"uid,omitempty"` // of the pod, for Heal and Alarm
	Took time.Duration `json:"took"`          // in nanoseconds
	// Steps are those of an ADD, in their order. What is missing in their sum is reading and
	// writing of files, and the start of the process is not in Took either. Those of Heal are
	// the operations that it did again.
	Steps []Step `json:"steps,omitempty"`
	// Code and Error are zero after success. An Alarm has an Error without Code.
	Code  cnierr.Code `json:"code,omitempty"`
	Error string      `json:"error,omitempty"` // at most maxError bytes
	// Held are GID indexes of the pod, after a DEL that found queue pairs of its programs.
	Held []Held `json:"held,omitempty"`
	// Trace is traceparent of the call (W3C Trace Context), if the runtime traces.
	Trace string `json:"trace,omitempty"`
}

// Held is a GID index without an address, which a queue pair may hold. The kernel does not tell
// it from a free one.
type Held struct {
	Device string `json:"device"`
	Port   uint32 `json:"port"`
	Index  int    `json:"index"`
	Netns  uint64 `json:"netns"` // the inode of the programs' network namespace
	// BootID and Since, of CLOCK_BOOTTIME, say when: later the kernel may use the inode again.
	BootID string        `json:"bootID"`
	Since  time.Duration `json:"since"` // in nanoseconds
}

// Step is a part of a call.
type Step struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took"` // in nanoseconds
}

// ByHealer says whether rocectl heal wrote the call, and not the plugin.
func (c Call) ByHealer() bool { return c.Verb == Heal || c.Verb == Alarm }

// Made returns which kinds of operations a repair did again.
func (c Call) Made() []string {
	var out []string
	for _, s := range c.Steps {
		if c.Verb == Heal && !slices.Contains(out, s.Name) {
			out = append(out, s.Name)
		}
	}
	return out
}

// File has the last calls: a newer part, and an older one that the newer part replaces
// when it is full.
type File struct {
	// Dir is the state folder, which trusted.Folder has checked.
	Dir string
}

const (
	partSize = 512 << 10 // a part with one more line can still be read by package trusted
	maxError = 500
)

func (f File) newer() string { return filepath.Join(f.Dir, "calls") }
func (f File) older() string { return filepath.Join(f.Dir, "calls.1") }

// Append adds a call. It makes the file, with mode 0600, if it is not there. One write has
// the whole line, so that lines of processes that append at the same time do not mix.
func (f File) Append(c Call) error {
	c.Error = c.Error[:min(len(c.Error), maxError)]
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	fd, err := unix.Open(f.newer(), unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "open", Path: f.newer(), Err: err}
	}
	defer unix.Close(fd)                                   //nolint:errcheck // what was written is on a tmpfs
	line = slices.Concat([]byte("\n"), line, []byte("\n")) // the first one ends a line that was cut short
	if _, err := unix.Write(fd, line); err != nil {
		return &fs.PathError{Op: "write", Path: f.newer(), Err: err}
	}
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil || s.Size < partSize {
		return err
	}
	return f.turn(fd, s)
}

// turn makes the newer part, which is full, the older one. If several processes find it
// full, one of them does it.
func (f File) turn(fd int, full unix.Stat_t) error {
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil
	}
	var is unix.Stat_t
	if unix.Lstat(f.newer(), &is) != nil || is.Ino != full.Ino {
		return nil
	}
	return os.Rename(f.newer(), f.older())
}

// Mark is the line of a call. Its zero value is before all calls.
type Mark string

// After returns the calls behind a mark, the last one last, and the mark of that one. If
// the marked call is not kept any more, After returns all calls. A line that is no call is
// left out. Without a file there are no calls. Errors: those of trusted.ReadInside.
func (f File) After(m Mark) ([]Call, Mark, error) {
	lines, err := f.read()
	if err != nil {
		return nil, m, err
	}
	if at := bytes.LastIndex(lines, []byte(m)); m != "" && at >= 0 {
		lines = lines[at+len(m):]
	}
	var out []Call
	for line := range bytes.Lines(lines) {
		var c Call
		if json.Unmarshal(line, &c) == nil {
			out, m = append(out, c), Mark(line)
		}
	}
	return out, m, nil
}

// Held returns the calls with Held, the last one last. Errors: those of After.
func (f File) Held() (out []Call, err error) {
	lines, err := f.read()
	for line := range bytes.Lines(lines) {
		var c Call
		if bytes.Contains(line, []byte(`"held":`)) && json.Unmarshal(line, &c) == nil && len(c.Held) > 0 {
			out = append(out, c)
		}
	}
	return out, err
}

// read reads both parts, and again if the newer one became the older one meanwhile.
func (f File) read() (lines []byte, err error) {
	for {
		before := f.inode()
		lines = nil
		for _, path := range []string{f.older(), f.newer()} {
			b, err := trusted.ReadInside(path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			lines = append(lines, b...)
		}
		if f.inode() == before {
			return lines, nil
		}
	}
}

// inode is that of the newer part, 0 if there is none.
func (f File) inode() uint64 {
	var s unix.Stat_t
	if unix.Lstat(f.newer(), &s) != nil {
		return 0
	}
	return s.Ino
}
