// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	// maxMemory is how many bytes of memory roce may have at once.
	maxMemory = 25_000_000
	// weighings is how often each program is looked at.
	weighings = 5
)

// scales keep the largest resident set that each program had, in bytes.
type scales struct {
	program string // peak
	peak    map[string]int64
	with    string // what is attached, if not one NIC: " with eight rails"
}

// weigh runs a command by way of peak.
func (s *scales) weigh(cmd *exec.Cmd) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	path := cmd.Path
	cmd.Path, cmd.Args, cmd.ExtraFiles = s.program, []string{s.program, path}, []*os.File{w}
	err = errors.Join(cmd.Run(), w.Close())
	if err != nil {
		return err
	}
	said, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	kib, err := strconv.ParseInt(string(said), 10, 64)
	if err != nil {
		return fmt.Errorf("read what peak says of %s: %w", path, err)
	}
	name := filepath.Base(path) + s.with
	s.peak[name] = max(s.peak[name], kib<<10)
	return nil
}

// memory weighs the plugins of both in a dual stack attachment, and ours with
// all rails, too, prints the peaks, and returns how many of ours were too high.
func (w *world) memory(ctx context.Context, out io.Writer) (missed int, err error) {
	if w.options.peak == "" {
		return 0, nil
	}
	s := &scales{program: w.options.peak, peak: map[string]int64{}}
	w.launcher.run = s.weigh
	ours, err := w.roce("weight", true, nil)
	if err != nil {
		return 0, err
	}
	all, err := w.roceRails("railsweight", true, nil)
	if err != nil {
		return 0, err
	}
	theirs, err := w.chained("theirweight", true, 0)
	if err != nil {
		return 0, err
	}
	for range weighings {
		pods, err := w.pods(3)
		if err != nil {
			return 0, err
		}
		for i, c := range []struct {
			*chain
			with string
		}{{ours, ""}, {theirs, ""}, {all, " with eight rails"}} {
			s.with = c.with
			if _, _, err := (player{add: c.add, del: c.del}).play(ctx, pods[i]); err != nil {
				return 0, err
			}
		}
	}
	return s.compare(out), nil
}

func (s *scales) compare(out io.Writer) (missed int) {
	fmt.Fprintf(out, "\n%-42s  %6s  %6s  %6s\n", "resident memory at its peak, in MB", "", "", "target")
	for _, name := range slices.Sorted(maps.Keys(s.peak)) {
		peak, verdict := s.peak[name], ""
		switch {
		case !strings.HasPrefix(name, "roce"):
		case peak <= maxMemory:
			verdict = fmt.Sprintf("%14.1f  ok", maxMemory/1e6)
		default:
			missed++
			verdict = fmt.Sprintf("%14.1f  MISSED", maxMemory/1e6)
		}
		fmt.Fprintf(out, "%-42s  %6.1f%s\n", name, float64(peak)/1e6, verdict)
	}
	return missed
}
