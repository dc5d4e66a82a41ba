// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package kerneltest has an in-memory kernel that prints itself as ip(8) would, test
// machines made of real network namespaces, and the suite of behaviours that both
// kernels must show.
//
// It is for tests only. The fake has no expectations but its own laws: it refuses what
// Linux would refuse, and fails the test for a request that it does not model. Read
// this file first, suite.go for the behaviours, netns.go for the machines.
package kerneltest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// Kernel is the method set of *kernel.Kernel. The fake has the same methods.
type Kernel interface {
	ID() netns.ID
	Facts(ctx context.Context, req conf.Request) ([]plan.RailFacts, error)
	Enter(fn func() error) error
	EnterHost(fn func() error) error
	Do(ctx context.Context, run ...plan.Op) error
	Undo(ctx context.Context, run ...plan.Op) error
	Check(ctx context.Context, run ...plan.Op) error
	Close()
}

var (
	_ Kernel = (*kernel.Kernel)(nil)
	_ Kernel = (*FakeKernel)(nil)
)

// HostPath is the path of the host's own namespace.
const HostPath = "/proc/1/ns/net"

// Fake is a machine in memory: a host with NICs, and pods. It is safe for
// concurrent use.
type Fake struct {
	t    testing.TB
	mu   sync.Mutex
	host *Space
	pods map[string]*Space
	last uint64 // inode number given out

	calls  int
	faults []fault
}

type fault struct {
	from, to int // calls
	err      error
}

// NewFake returns a machine without NICs and pods.
func NewFake(t testing.TB) *Fake {
	f := &Fake{t: t, pods: map[string]*Space{}}
	f.host = f.space("host")
	return f
}

func (f *Fake) space(name string) *Space {
	f.last++
	s := &Space{f: f, name: name, id: netns.ID{Dev: 4, Ino: 4026531840 + f.last}}
	s.links = []*iface{{name: "lo", kind: "loopback", mtu: 65536, up: true}}
	return s
}

// spaces returns all namespaces.
func (f *Fake) spaces() []*Space { return append(slices.Collect(maps.Values(f.pods)), f.host) }

// Host returns the host's namespace.
func (f *Fake) Host() *Space { return f.host }

// NIC plugs a physical NIC into the host, up, with the usual MTU.
func (f *Fake) NIC(name conf.LinkName, mac conf.MAC) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.host.links = append(f.host.links, &iface{name: name, kind: "ether", mac: mac, mtu: 1500, up: true})
}

// Pod makes an empty namespace at a path.
func (f *Fake) Pod(path string) *Space {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pods[path] = f.space(path)
	return f.pods[path]
}

// RemovePod removes the namespace at a path with all that is in it.
func (f *Fake) RemovePod(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.pods[path]; s != nil {
		for _, l := range s.links {
			if l != nil && l.peer != nil {
				s.removeLink(l)
			}
		}
	}
	delete(f.pods, path)
}

// Open does what kernel.Open does.
func (f *Fake) Open(netnsPath string) (*FakeKernel, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	const action = "open network namespace"
	if err := f.call(); err != nil {
		return nil, err
	}
	if netnsPath == HostPath {
		return nil, cnierr.New(cnierr.BadNetns, action, netnsPath, "", "is %w", kernel.ErrHostNetns)
	}
	s := f.pods[netnsPath]
	if s == nil {
		return nil, cnierr.New(cnierr.BadNetns, action, netnsPath, "", "%w", kernel.ErrNetnsGone)
	}
	return &FakeKernel{f: f, pod: s}, nil
}

// OpenHost does what kernel.OpenHost does.
func (f *Fake) OpenHost() (*FakeKernel, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call(); err != nil {
		return nil, err
	}
	return &FakeKernel{f: f}, nil
}

// Calls returns how many calls of Open, OpenHost, Facts, Do, Undo and Check there were.
func (f *Fake) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// FailAt makes the n-th call from now on fail with err and do nothing. n counts
// from 1, like Calls.
func (f *Fake) FailAt(n int, err error) { f.fail(n, n, err) }

// FailFrom makes the n-th call from now on and all later calls fail, until
// Heal, as after the death of a process.
func (f *Fake) FailFrom(n int, err error) { f.fail(n, int(^uint(0)>>2), err) }

func (f *Fake) fail(from, to int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, fault{f.calls + from, f.calls + to, err})
}

// Heal ends the faults of FailAt and FailFrom.
func (f *Fake) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// call counts one call and returns the error that it must fail with.
func (f *Fake) call() error {
	f.calls++
	for _, x := range f.faults {
		if x.from <= f.calls && f.calls <= x.to {
			return x.err
		}
	}
	return nil
}

// unexpected fails the test for a request that the fake does not model.
func (f *Fake) unexpected(format string, args ...any) error {
	f.t.Helper()
	err := cnierr.New(cnierr.Bug, "kerneltest", "", "", format, args...)
	f.t.Error(err)
	return err
}

// String returns the content of all pods, "" if they are empty.
func (f *Fake) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(f.pods)) {
		if text := f.pods[path].text(); text != "" {
			fmt.Fprintf(&b, "%s:\n\t%s\n", path, strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n\t"))
		}
	}
	return b.String()
}
