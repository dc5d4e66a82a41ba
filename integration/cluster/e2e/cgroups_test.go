// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// cgroup is the prefix of the names of our cgroups, one in each hierarchy, which
// kubelet takes for its root. The process that removes them is in the name.
const cgroup = "roce-cni-e2e-"

// hierarchies returns where cgroups are made: one place with version 2.
func hierarchies() ([]string, error) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup"}, nil
	}
	return filepath.Glob("/sys/fs/cgroup/*")
}

// makeCgroups makes our cgroups, or those of another kubelet below them, and returns their
// name. One of cpuset has no processors until it is told which.
func makeCgroups(below string) (string, error) {
	name := filepath.Join(cgroup+os.Getenv(outside), below)
	all, err := hierarchies()
	if err != nil {
		return "", err
	}
	for _, h := range all {
		if err := os.Mkdir(filepath.Join(h, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile(filepath.Join(h, filepath.Dir(name), file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(h, name, file), text, 0)
			}
			if err != nil {
				return "", err
			}
		}
	}
	return "/" + name, nil
}

// removeCgroups removes ours, and those of processes that have been killed.
func removeCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var faults []error
	for _, h := range all {
		left, err := filepath.Glob(filepath.Join(h, cgroup+"*"))
		if err != nil {
			return err
		}
		for _, root := range left {
			pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(root), cgroup))
			if err == nil && (pid == os.Getpid() || syscall.Kill(pid, 0) != nil) {
				faults = append(faults, removeCgroup(root))
			}
		}
	}
	return errors.Join(faults...)
}

// removeCgroup removes a cgroup and all below it. Nothing runs in them any more.
func removeCgroup(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, dir := range slices.Backward(dirs) {
		if err := syscall.Rmdir(dir); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return err
}
