// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package rdma finds the RDMA device of a NIC, moves it between the host and a pod,
// and finds the GIDs of addresses in its table.
//
// It never guesses: no device, or several devices, is an error that names the
// candidates. It never moves or renames a device that it cannot identify for certain.
// Package attach uses it, as it uses kernel. Read this file first, then facts.go for
// which device it is, and one file for each kind of operation; package nldev is the
// way to Linux.
package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// ErrNoDevice says that the namespace does not see the RDMA device. In exclusive mode
// the device may be in a pod.
var ErrNoDevice = nldev.ErrNoDevice

// Config is what a Subsystem works on.
type Config struct {
	Sys fs.FS // root of sysfs, as the host's namespace sees it
	// Enter runs fn in the pod's namespace; nil: the namespace is gone, or there is
	// none.
	Enter func(fn func() error) error
	// Netns is how commands in hints name the pod's namespace, as plan.Op's
	// take it; "": POD.
	Netns string
	// Lock serialises moves on this node; nil: no other process makes any.
	Lock func(context.Context) (release func(), err error)
	// TakeInUse says that a pod may get a device that programs of the host use.
	TakeInUse bool
	Log       *slog.Logger
	// Owners returns which pod or container has each address on this node; nil: that is unknown.
	Owners func() map[netip.Addr]string
	Proc   fs.FS // root of procfs, to name a process that keeps a namespace
	// Dial opens a socket in the namespace of the calling thread; nil: nldev.Dial.
	Dial func() (*nldev.Conn, error)
}

// Subsystem is the RDMA devices of the host and of one pod. One goroutine at a
// time may use it.
type Subsystem struct {
	c     Config
	mount func(fstype string) (tree, error)
	conns [2]*nldev.Conn
	trees [2]*tree // of sysfs; the host's is of no use: c.Sys is
	found map[netip.Addr]int
	// before is what LookBefore noted, by interface of the pod.
	before map[conf.LinkName]gidtable.Before
	// What Facts saw. Facts asks the kernel once, and again only after an operation:
	// the rails of an attachment share the answer.
	surveyed [2]*nldev.System
}

// New returns a Subsystem. It opens nothing before it is used. The caller must
// Close it.
func New(c Config) *Subsystem {
	c.Netns = cmp.Or(c.Netns, "POD")
	if c.Dial == nil {
		c.Dial = nldev.Dial
	}
	if c.Owners == nil {
		c.Owners = func() map[netip.Addr]string { return nil }
	}
	if c.Lock == nil {
		c.Lock = func(context.Context) (func(), error) { return func() {}, nil }
	}
	return &Subsystem{c: c, mount: mount, found: map[netip.Addr]int{}, before: map[conf.LinkName]gidtable.Before{}}
}

// Close closes the sockets and mounts.
func (s *Subsystem) Close() {
	for _, c := range s.conns {
		if c != nil {
			c.Close()
		}
	}
	for _, t := range s.trees {
		if t != nil {
			t.close()
		}
	}
}

// at runs fn in a namespace.
func (s *Subsystem) at(side plan.Place, fn func() error) error {
	if side == plan.Host {
		return fn()
	}
	if s.c.Enter == nil {
		return cnierr.New(cnierr.Bug, "enter network namespace of", "pod", "", "there is none")
	}
	return s.c.Enter(fn)
}

// System returns the RDMA devices that a namespace sees, in two round trips.
// Errors: NoRDMA with ErrNoDevice on a kernel without RDMA.
func (s *Subsystem) System(ctx context.Context, side plan.Place) (nldev.System, error) {
	const action = "list RDMA devices of"
	c, err := s.conn(side)
	if err != nil {
		return nldev.System{}, classify(action, side.String(), err)
	}
	sys, err := c.System(ctx)
	return sys, classify(action, side.String(), err)
}

// conn returns the socket in a namespace.
func (s *Subsystem) conn(side plan.Place) (*nldev.Conn, error) {
	if s.conns[side] != nil {
		return s.conns[side], nil
	}
	err := s.at(side, func() (err error) {
		s.conns[side], err = s.c.Dial()
		return err
	})
	return s.conns[side], err
}

// Files returns sysfs as a namespace sees it: /sys/class/infiniband has the
// devices of the namespace that mounted it.
func (s *Subsystem) Files(side plan.Place) (fs.FS, error) {
	if side == plan.Host {
		return s.c.Sys, nil
	}
	if s.trees[side] != nil {
		return s.trees[side].files(), nil
	}
	var t tree
	err := s.at(side, func() (err error) {
		t, err = s.mount("sysfs")
		return err
	})
	if err != nil {
		return nil, classify("mount sysfs of", side.String(), err)
	}
	s.trees[side] = &t
	return t.files(), nil
}

// device returns the device of a plan as a namespace has it now. Errors:
// NoRDMA with ErrNoDevice.
func (s *Subsystem) device(ctx context.Context, side plan.Place, want plan.RDMADevice) (nldev.Device, error) {
	sys, err := s.System(ctx, side)
	if err != nil {
		return nldev.Device{}, err
	}
	if d, ok := match(sys, want); ok {
		return d, nil
	}
	return nldev.Device{}, cnierr.New(cnierr.NoRDMA, "find RDMA device", want.Name,
		"look for it with rdma dev in the host and in the pods' namespaces", "%w of index %d and GUID %s in the namespace of %s",
		ErrNoDevice, want.Index, want.GUID, side)
}

// noGUID is the GUID of a virtual function to which none was given.
const noGUID = "0000:0000:0000:0000"

// match returns the device of a plan among those that a namespace sees. It may have
// another name now, or another index, if a driver has made it again (ib_register_device).
func match(sys nldev.System, want plan.RDMADevice) (nldev.Device, bool) {
	for _, same := range []func(nldev.Device) bool{
		func(d nldev.Device) bool { return d.Index == want.Index && d.GUID == want.GUID },
		func(d nldev.Device) bool { return d.Name == want.Name && d.GUID == want.GUID && d.GUID != noGUID },
	} {
		if i := slices.IndexFunc(sys.Devices, same); i >= 0 {
			return sys.Devices[i], true
		}
	}
	return nldev.Device{}, false
}

// Current returns recorded operations with the name and the index that each device in the
// host's namespace has now: udev may have renamed it, or a driver made it again. A device
// that is gone stays as it is. Errors are those of System, but for a kernel without RDMA.
func (s *Subsystem) Current(ctx context.Context, recorded plan.Ops) (plan.Ops, error) {
	sys, err := s.System(ctx, plan.Host)
	if err != nil && !noDevice(err) {
		return nil, err
	}
	return recorded.WithDevices(func(d plan.RDMADevice) plan.RDMADevice {
		if is, ok := match(sys, d); ok {
			d.Name, d.Index = is.Name, is.Index
		}
		return d
	}), nil
}

// Located returns the GID indexes of the GIDs that Do found.
func (s *Subsystem) Located() map[netip.Addr]int { return s.found }

// Do does op: plan.Move, plan.Port or plan.GID; see plan.Op.
func (s *Subsystem) Do(ctx context.Context, op plan.Op) error {
	s.surveyed = [2]*nldev.System{}
	x, err := s.executor(op)
	if err != nil {
		return err
	}
	return x.do(ctx)
}

// Undo undoes op. Only a move has something to undo.
func (s *Subsystem) Undo(ctx context.Context, op plan.Op) error {
	s.surveyed = [2]*nldev.System{}
	x, err := s.executor(op)
	if err != nil {
		return err
	}
	return x.undo(ctx)
}

// Check returns an error of code Damaged that says what of op is missing or
// different, with the commands that restore it as its hint.
func (s *Subsystem) Check(ctx context.Context, op plan.Op) error {
	x, err := s.executor(op)
	if err != nil {
		return err
	}
	return x.check(ctx)
}

// executor is one operation together with the subsystem to do it.
type executor interface {
	do(ctx context.Context) error
	undo(ctx context.Context) error
	check(ctx context.Context) error
}

func (s *Subsystem) executor(op plan.Op) (executor, error) {
	switch kind := op.Kind.(type) {
	case plan.Move:
		return move{s, kind}, nil
	case plan.Port:
		return port{s, op.Place, kind}, nil
	case plan.GID:
		return gid{s, op.Place, kind}, nil
	case plan.DeviceInfo:
		return deviceInfo{kind}, nil
	}
	return nil, cnierr.New(cnierr.Bug, "execute operation", fmt.Sprintf("%T", op.Kind), "", "RDMA has no executor for it")
}

// rdma returns an rdma(8) command in a namespace.
func (s *Subsystem) rdma(side plan.Place, format string, args ...any) string {
	command := "rdma " + shell.Command(format, args...)
	if side == plan.Pod {
		return plan.Exec(s.c.Netns) + " " + command
	}
	return command
}

// hintOf returns the hint of an error, "" if it has none.
func hintOf(err error) string {
	var e *cnierr.Error
	if errors.As(err, &e) {
		return e.Hint
	}
	return ""
}

// tree is a mounted file system, at a path that only this process has.
type tree struct {
	path  string
	close func()
}

func (t tree) files() fs.FS { return os.DirFS(t.path) }

// mount mounts sysfs or configfs as the namespace of the calling thread sees it, for this
// process alone.
func mount(fstype string) (tree, error) {
	context, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return tree{}, fmt.Errorf("fsopen %s: %w", fstype, err)
	}
	defer unix.Close(context) //nolint:errcheck // nothing was written to it
	if err := unix.FsconfigCreate(context); err != nil {
		return tree{}, fmt.Errorf("fsconfig %s: %w", fstype, err)
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return tree{}, fmt.Errorf("fsmount %s: %w", fstype, err)
	}
	return tree{path: fmt.Sprintf("/proc/self/fd/%d", fd), close: func() { _ = unix.Close(fd) }}, nil
}

// poll calls fn at the interval, until fn returns true or an error. When the time has
// passed, poll returns false.
func poll(ctx context.Context, wait, interval time.Duration, fn func() (bool, error)) (bool, error) {
	end := time.NewTimer(wait)
	defer end.Stop()
	again := time.NewTicker(interval)
	defer again.Stop()
	for {
		if done, err := fn(); done || err != nil {
			return done, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-end.C:
			return false, nil
		case <-again.C:
		}
	}
}

const needsRoot = "run the plugin as root, with CAP_NET_ADMIN and CAP_SYS_ADMIN in the host's user namespace"

// noSocketError is the error of a kernel without the netlink socket of RDMA, in words.
type noSocketError struct{ err error }

func (noSocketError) Error() string {
	return "the kernel has no RDMA: no module of an RDMA NIC is loaded"
}

func (e noSocketError) Unwrap() []error { return []error{ErrNoDevice, e.err} }

// classify gives an error of the kernel its code and hint. Nil stays nil, and an
// error with a code keeps its code.
func classify(action, subject string, err error) error {
	const again = cnierr.Again + "; if the error stays, check the load of the node"
	var known *cnierr.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return cnierr.New(cnierr.NoRDMA, action, subject, discover.LoadDriver, "%w", noSocketError{err})
	}
	for _, e := range []error{context.Canceled, context.DeadlineExceeded, nlsock.ErrInterrupted, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN} {
		if errors.Is(err, e) {
			return &cnierr.Error{Code: cnierr.TryAgain, Op: action, Subject: subject, Hint: again, Err: err}
		}
	}
	hint := ""
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		hint = needsRoot
	}
	return &cnierr.Error{Code: cnierr.IO, Op: action, Subject: subject, Hint: hint, Err: err}
}

// noDevice says whether an error means that there is no device. Other errors mean
// that the question failed.
func noDevice(err error) bool { return errors.Is(err, ErrNoDevice) }
