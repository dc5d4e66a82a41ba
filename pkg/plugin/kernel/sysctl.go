// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// procSys shows the settings of the namespace of the thread that opens a file
// in it.
const procSys = "/proc/sys"

// sysctl executes plan.Sysctl.
type sysctl struct {
	namespace
	op plan.Sysctl
}

// sysctls is a run.
type sysctls []sysctl

// do writes all settings. After a failure, the settings before it stay written.
// That does no harm: undo leaves them, too.
func (r sysctls) do(ctx context.Context) error {
	return r.enter(ctx, func() error {
		for _, s := range r {
			for _, v := range s.op.Set {
				if err := s.write(v); err != nil {
					return err
				}
			}
			if !s.op.Up {
				continue
			}
			for _, v := range s.op.Set {
				if err := s.kept(v); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// undo does nothing: the settings belong to the link and vanish with it.
func (r sysctls) undo(context.Context) error { return nil }

func (r sysctls) check(ctx context.Context) error {
	return r.enter(ctx, func() error {
		var errs []error
		for _, s := range r {
			for _, v := range s.op.Set {
				if !v.Again {
					errs = append(errs, s.compare(v))
				}
			}
		}
		return errors.Join(errs...)
	})
}

// enter calls fn in the namespace of the run, if every setting belongs to its
// operation's link.
func (r sysctls) enter(ctx context.Context, fn func() error) error {
	for _, s := range r {
		for _, v := range s.op.Set {
			if !ofLink(s.op.Link, v.Path) {
				return cnierr.New(cnierr.Bug, "set sysctl", v.Path, "", "not a setting of interface %q", s.op.Link)
			}
			if err := ctx.Err(); err != nil {
				return classify("set sysctl", v.Path, err)
			}
		}
	}
	return r[0].namespace.enter(fn)
}

func (s sysctl) write(v plan.Setting) error {
	return classify("set sysctl", v.Path, writeFile(path.Join(procSys, v.Path), v.Value),
		meaning{unix.ENOENT, cnierr.BadConfig, "the kernel has no such setting for the interface, or the interface is gone: correct the key sysctl"},
		meaning{unix.EINVAL, cnierr.BadConfig, fmt.Sprintf("the kernel does not take the value %q: correct the key sysctl", v.Value)},
		meaning{unix.EROFS, cnierr.IO, "mount /proc/sys writable where the plugin runs"})
}

// kept refuses a value that the kernel has not kept. It rounds some values
// (neigh_proc_dointvec_ms_jiffies), and some settings set others
// (addrconf_sysctl_stable_secret).
func (s sysctl) kept(v plan.Setting) error {
	b, err := os.ReadFile(path.Join(procSys, v.Path))
	if err != nil {
		return classify("read sysctl", v.Path, err)
	}
	if got := words(string(b)); !sameValue(v.Value, got) {
		return cnierr.New(cnierr.BadConfig, "set sysctl", v.Path, fmt.Sprintf("write %q, or another value that the kernel keeps, into the key sysctl", got),
			"the kernel makes %q of the value %q", got, words(v.Value))
	}
	return nil
}

// writeFile writes a setting. It does not use package os, which would prepare
// to wait for the file, because settings can be polled (proc_sys_poll): that
// costs five system calls more for each. The kernel takes all bytes or none
// (proc_sys_call_handler).
func writeFile(name, value string) error {
	fd, err := -1, error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		_, err = unix.Write(fd, []byte(value))
	}
	return errors.Join(err, unix.Close(fd))
}

func (s sysctl) compare(v plan.Setting) error {
	const action = "check sysctl"
	b, err := os.ReadFile(path.Join(procSys, v.Path))
	if errors.Is(err, unix.ENOENT) {
		return damaged(action, v.Path, s.redo(s.op), "the interface or the setting is gone")
	}
	if err != nil {
		return classify(action, v.Path, err)
	}
	if got := words(string(b)); !sameValue(v.Value, got) {
		return damaged(action, v.Path, s.redo(plan.Sysctl{Link: s.op.Link, Set: []plan.Setting{v}}), "%w", &ChangedError{Property: v.Path, Want: words(v.Value), Got: got})
	}
	return nil
}

// ofLink says whether p is net/FAMILY/TREE/LINK/KEY. "all" and "default" are
// not links: their settings affect other interfaces of the pod.
func ofLink(link conf.LinkName, p string) bool {
	parts := strings.Split(p, "/")
	if len(parts) != 5 || path.Clean(p) != p || link == "all" || link == "default" {
		return false
	}
	return parts[0] == "net" &&
		(parts[1] == "ipv4" || parts[1] == "ipv6") &&
		(parts[2] == "conf" || parts[2] == "neigh") &&
		parts[3] == string(link)
}

// words returns s with single blanks: the kernel prints tabs between numbers.
func words(s string) string { return strings.Join(strings.Fields(s), " ") }

// sameValue says whether two texts are the same value of a setting. The kernel reads
// numbers of any base (proc_get_long), and prints addresses in full.
func sameValue(a, b string) bool {
	return slices.EqualFunc(strings.Fields(a), strings.Fields(b), func(x, y string) bool {
		if x == y {
			return true
		}
		m, errM := strconv.ParseInt(x, 0, 64)
		n, errN := strconv.ParseInt(y, 0, 64)
		if errM == nil && errN == nil {
			return m == n
		}
		p, errP := netip.ParseAddr(x)
		q, errQ := netip.ParseAddr(y)
		return errP == nil && errQ == nil && p == q
	})
}

// MACInUseError is returned by Do of plan.Up when another child of the same parent is up
// with the MAC of the link. A pod that has gone may have left it, in a namespace that
// something keeps.
type MACInUseError struct{ Link conf.LinkName }

// Error says who has the MAC.
func (e *MACInUseError) Error() string { return "another child of the same master has its MAC" }

// AddressInUseError is returned by Do of plan.Address when another ipvlan of the same NIC
// has the address.
type AddressInUseError struct {
	Link conf.LinkName
	Addr netip.Addr
}

// Error says who has the address.
func (e *AddressInUseError) Error() string { return "another ipvlan of the same master has it" }

// up executes plan.Up.
type up struct {
	namespace
	op plan.Up
}

// ups is a run.
type ups []up

func (r ups) do(ctx context.Context) error {
	var changes []rtnl.Change
	for _, u := range r {
		changes = append(changes, rtnl.SetUp(string(u.op.Link), u.op.MTU))
	}
	for i, err := range r[0].conn.Each(ctx, changes...) {
		if errors.Is(err, unix.EADDRINUSE) { // macvlan_open
			return cnierr.New(cnierr.TryAgain, "bring up", string(r[i].op.Link),
				"wait if the pod of that child is being deleted, otherwise give the pods different MACs", "%w", &MACInUseError{r[i].op.Link})
		}
		if err != nil {
			return classify("bring up", string(r[i].op.Link), err)
		}
	}
	return nil
}

// undo does nothing: a link that we made vanishes, and a link that another
// plugin made is for that plugin to bring down.
func (r ups) undo(context.Context) error { return nil }

func (r ups) check(ctx context.Context) error { return checkEach(ctx, r) }

func (u up) check(ctx context.Context) error {
	const action = "check state of"
	l, err := u.conn.LinkByName(ctx, string(u.op.Link))
	switch {
	case errors.Is(err, unix.ENODEV):
		return damaged(action, string(u.op.Link), u.redo(u.op), "%s has no such interface", u.place)
	case err != nil:
		return classify(action, string(u.op.Link), err)
	case l.Flags&unix.IFF_UP == 0:
		return damaged(action, string(u.op.Link), u.redo(u.op), "want it up, got down")
	}
	return nil
}
