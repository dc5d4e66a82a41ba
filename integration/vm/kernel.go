// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package vm

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

//go:embed fetch.sh root.sh packages init.sh start.sh module
var files embed.FS

// Kernel is a kernel in the cache.
type Kernel struct {
	// Release is what uname -r says, and the name of Dir.
	Release string
	// Dir has the kernel as vmlinux and the modules in lib/modules/Release.
	Dir string
	// Root is the folder with the root of machines: root.sh says what is in it.
	Root string
	// KVM says whether machines use it. Without, QEMU emulates the processor.
	KVM bool
}

// Fetch returns a kernel of a series, "6.1" or "7". What is in the cache is
// taken as it is, without the network, unless our modules have changed since;
// else Debian's newest is fetched into it, which takes root, apt, 200 MB and 15 s.
// Programs may fetch at the same time. The progress goes to log. Once, Fetch tries whether
// a guest boots with KVM.
func Fetch(ctx context.Context, cache, series string, log io.Writer) (Kernel, error) {
	cache, err := filepath.Abs(cache)
	if err != nil {
		return Kernel{}, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Kernel{}, err
	}
	var k Kernel
	err = locked(cache, func() (err error) {
		var ok bool
		if k, ok = cached(cache, series); !ok {
			if err := script(ctx, log, log, "fetch.sh", series, cache, "module"); err != nil {
				return fmt.Errorf("fetch kernel %s: %w", series, err)
			}
			if k, ok = cached(cache, series); !ok {
				return fmt.Errorf("fetch kernel %s: it is not in %q", series, cache)
			}
		}
		if k.Root, err = root(ctx, cache, log); err != nil {
			return err
		}
		k.KVM, err = k.withKVM(ctx, cache, log)
		return err
	})
	return k, err
}

// locked calls fn while no other program fetches into the cache.
func locked(cache string, fn func() error) error {
	lock, err := os.Create(filepath.Join(cache, "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %q: %w", lock.Name(), err)
	}
	return fn()
}

// cached finds a kernel in the cache. fetch.sh makes its folder by renaming, so
// that it is whole.
func cached(cache, series string) (Kernel, bool) {
	found, err := filepath.Glob(filepath.Join(cache, series+".*", "vmlinux"))
	if err != nil || len(found) == 0 {
		return Kernel{}, false
	}
	dir := filepath.Dir(slices.Max(found))
	k := Kernel{Release: filepath.Base(dir), Dir: dir}
	return k, series != moduleSeries || k.hasOurModules()
}

// moduleSeries is the series that our modules are built for.
const moduleSeries = "6.1"

// hasOurModules says whether the modules of ours are those of the sources that
// we have now: fetch.sh keeps the sources beside what it builds.
func (k Kernel) hasOurModules() bool {
	sources, err := fs.Glob(files, "module/*")
	if err != nil {
		return false // the pattern is right
	}
	for _, s := range sources {
		want, err := file(s)
		if err != nil {
			return false
		}
		have, err := os.ReadFile(filepath.Join(k.Dir, "lib/modules", k.Release, "extra", filepath.Base(s)))
		if err != nil || !bytes.Equal(want, have) {
			return false
		}
	}
	return true
}

// root returns the folder with the root of machines, and copies it if it is not in the cache.
func root(ctx context.Context, cache string, log io.Writer) (string, error) {
	list, err := file("packages")
	if err != nil {
		return "", err
	}
	args := []string{cache}
	for line := range strings.Lines(string(list)) {
		if fields := strings.Split(strings.TrimSpace(line), "|"); len(fields) == 3 {
			args = append(args, fields[2])
		}
	}
	var out bytes.Buffer
	if err := script(ctx, &out, log, "root.sh", args...); err != nil {
		return "", fmt.Errorf("copy the root of virtual machines: %w", err)
	}
	return strings.TrimSpace(out.String()), nil
}

// script runs one of our scripts in a copy of our files, because a program may run anywhere.
func script(ctx context.Context, out, log io.Writer, name string, args ...string) error {
	dir, err := os.MkdirTemp("", "roce-cni-vm")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a few KB in the folder of temporary files
	if err := os.CopyFS(dir, files); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "bash", append([]string{name}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, log
	return cmd.Run()
}

// file returns one of our files.
func file(name string) ([]byte, error) { return fs.ReadFile(files, name) }
