// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package nsscan finds the network namespaces of a node and the addresses in them.
//
// It never changes anything, and never reports a namespace as empty if it could not
// read it. It stands above kernel, which enters the namespaces, and is used to rebuild
// a lease database. Everything is in this file.
package nsscan

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// Namespace is a network namespace.
type Namespace struct {
	Path  string // where it is mounted, or else a process in it
	ID    plan.NetnsID
	Addrs []Addr
}

// Addr is an address that an interface has.
type Addr struct {
	IfName string
	Addr   netip.Addr
	Marked bool // roce made the interface, as its alias says
}

// Result is the network namespaces of a node.
type Result struct {
	Namespaces []Namespace
	// Hidden is the number of processes that this process may not inspect.
	// Their namespaces may be missing. It is 0 for root of the node.
	Hidden int
}

const needsRoot = "run it as root on the node itself, where all processes and namespaces are visible"

// Scan returns every network namespace of the node except that of the calling
// thread: those that are mounted where this process can see them, as runtimes
// do for pods, and those of all processes. proc is the path of procfs. Scan
// does not find a namespace that only a file descriptor or a thread keeps.
//
// It leaves out a namespace that vanishes during the scan. It returns an error
// of code IO for a namespace that it cannot look into.
func Scan(ctx context.Context, proc string, sys fs.FS) (Result, error) {
	paths, hidden, err := netns.Paths(proc)
	if err != nil {
		return Result{}, cnierr.New(cnierr.IO, "look for namespaces in", proc, needsRoot, "%w", err)
	}
	out := Result{Hidden: hidden}
	seen := map[plan.NetnsID]bool{}
	for _, path := range paths {
		n, err := look(ctx, path, sys, seen)
		if err != nil {
			return Result{}, err
		}
		if n != nil {
			out.Namespaces = append(out.Namespaces, *n)
		}
	}
	return out, nil
}

// look returns the namespace at a path. It returns nil if the namespace is
// gone, was seen before, or is the caller's own.
func look(ctx context.Context, path string, sys fs.FS, seen map[plan.NetnsID]bool) (*Namespace, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		return nil, nil
	case err != nil:
		return nil, cnierr.New(cnierr.IO, "look at namespace", path, needsRoot, "%w", err)
	case seen[plan.NetnsID{Dev: st.Dev, Ino: st.Ino}]:
		return nil, nil
	}
	k, err := kernel.Open(path, sys)
	switch {
	case errors.Is(err, kernel.ErrHostNetns):
		seen[plan.NetnsID{Dev: st.Dev, Ino: st.Ino}] = true
		return nil, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, cnierr.New(cnierr.IO, "look into namespace", path, needsRoot, "%w", err)
	case errors.Is(err, kernel.ErrNetnsGone):
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer k.Close()
	n := &Namespace{Path: path, ID: k.ID()}
	if seen[n.ID] { // another namespace took its path in the meantime
		return nil, nil
	}
	seen[n.ID] = true
	err = k.Enter(func() (err error) {
		n.Addrs, err = addresses(ctx)
		return err
	})
	if err != nil {
		return nil, cnierr.New(cnierr.IO, "read addresses of namespace", path, needsRoot, "%w", err)
	}
	return n, ctx.Err()
}

// addresses returns the addresses in the calling thread's namespace.
func addresses(ctx context.Context) ([]Addr, error) {
	c, err := rtnl.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	links, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	of := map[int32]rtnl.Link{}
	for _, l := range links {
		of[l.Index] = l
	}
	addrs, err := c.Addresses(ctx, 0)
	out := make([]Addr, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, Addr{of[a.Index].Name, a.Prefix.Addr(), strings.HasPrefix(of[a.Index].Alias, plan.MarkPrefix)})
	}
	return out, err
}
