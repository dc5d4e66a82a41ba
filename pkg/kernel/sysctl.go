// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// procSys shows the settings of the namespace of the thread that opens a file
// in it.
const procSys = "/proc/sys"

// sysctl executes plan.Sysctl.
type sysctl struct {
	*Kernel
	op plan.Sysctl
}

// do writes all settings. A failure leaves those before it written, which is
// no more than undo leaves.
func (s sysctl) do(ctx context.Context) error {
	return s.each(ctx, func(v plan.Setting) error {
		f, err := os.OpenFile(path.Join(procSys, v.Path), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(v.Value)
			err = errors.Join(err, f.Close())
		}
		return classify("set sysctl", v.Path, err,
			meaning{unix.ENOENT, cnierr.BadConfig, "the kernel has no such setting for the interface, or the interface is gone: correct the key sysctl"},
			meaning{unix.EINVAL, cnierr.BadConfig, fmt.Sprintf("the kernel does not take the value %q: correct the key sysctl", v.Value)},
			meaning{unix.EROFS, cnierr.IO, "mount /proc/sys writable where the plugin runs"})
	})
}

// undo does nothing: the settings are the link's and vanish with it.
func (s sysctl) undo(context.Context) error { return nil }

func (s sysctl) check(ctx context.Context) error {
	return s.each(ctx, func(v plan.Setting) error {
		const action = "check sysctl"
		b, err := os.ReadFile(path.Join(procSys, v.Path))
		if errors.Is(err, unix.ENOENT) {
			return damaged(action, v.Path, s.redo(s.op), "the interface or the setting is gone")
		}
		if err != nil {
			return classify(action, v.Path, err)
		}
		if got := words(string(b)); got != words(v.Value) {
			return damaged(action, v.Path, s.redo(s.op), "want %s, got %s", words(v.Value), got)
		}
		return nil
	})
}

// each calls fn for every setting, in the pod's namespace, until one fails.
func (s sysctl) each(ctx context.Context, fn func(plan.Setting) error) error {
	for _, v := range s.op.Set {
		if !ofLink(s.op.Link, v.Path) {
			return cnierr.New(cnierr.Bug, "set sysctl", v.Path, "", "not a setting of interface %q", s.op.Link)
		}
	}
	return s.Enter(func() error {
		for _, v := range s.op.Set {
			if err := ctx.Err(); err != nil {
				return classify("set sysctl", v.Path, err)
			}
			if err := fn(v); err != nil {
				return err
			}
		}
		return nil
	})
}

// ofLink says whether p is net/FAMILY/TREE/LINK/KEY. "all" and "default" are
// no links: they set what other interfaces of the pod do.
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
