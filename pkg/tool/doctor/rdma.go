// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// rdmaModules asks whether the modules that make device files are there. The kernel
// loads none of them by itself.
func (l *look) rdmaModules() []report.Finding {
	missing := slices.DeleteFunc([]string{"ib_uverbs", "rdma_ucm", "ib_umad"}, l.module)
	if len(missing) == 0 {
		return []report.Finding{ok("ib_uverbs, rdma_ucm and ib_umad are loaded")}
	}
	return []report.Finding{l.notLoaded(missing)}
}

// notLoaded tells modules that are built in from those that are absent: sysfs shows
// a module that is built in only if it has parameters or a version.
func (l *look) notLoaded(modules []string) report.Finding {
	list := "lib/modules/" + l.release() + "/modules.builtin"
	builtin := l.read(list, strings.Join(modules, ", ")+" may be built in: ", "/"+list+", which the package of the kernel has")
	absent := slices.DeleteFunc(modules, func(m string) bool {
		return slices.ContainsFunc(strings.Fields(builtin), func(file string) bool { return path.Base(file) == m+".ko" })
	})
	if len(absent) == 0 {
		return ok("ib_uverbs, rdma_ucm and ib_umad are loaded or built in")
	}
	return problem("not loaded: "+strings.Join(absent, ", "),
		"modprobe -a "+strings.Join(absent, " ")+"\nprintf '%s\\n' "+strings.Join(absent, " ")+" > /etc/modules-load.d/roce.conf")
}

func (l *look) release() string {
	return l.read("proc/sys/kernel/osrelease", "", "the right to read /proc/sys/kernel/osrelease")
}

// module says whether a module is loaded, as far as sysfs shows it.
func (l *look) module(name string) bool {
	return l.there("sys/module/"+name, "the right to read /sys/module")
}

// ofed says whether NVIDIA's own drivers run (MLNX_OFED, DOCA-OFED): they have a module
// that the kernel's do not have.
func (l *look) ofed() bool { return l.module("mlx_compat") }

func (l *look) rdmaDriver() []report.Finding {
	release := l.release()
	running, mlx5 := l.ofed(), l.module("mlx5_core")
	installed := l.there("usr/bin/ofed_info", "the right to look for /usr/bin/ofed_info")
	switch {
	case running:
		version, _ := l.text("sys/module/mlx5_core/version") // modules of the kernel itself have none any more
		return []report.Finding{ok("%s on Linux %s", strings.TrimSpace("OFED "+version), release)}
	case installed && mlx5:
		return []report.Finding{problem("OFED is installed, but the drivers of Linux "+release+" run",
			"dkms autoinstall -k "+release+" && /etc/init.d/openibd restart  # on a node without pods")}
	}
	return []report.Finding{ok("the drivers of Linux %s", release)}
}

func (l *look) rdmaDevices() []report.Finding {
	s, err := l.RDMA(l.ctx)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return []report.Finding{problem(noRDMA, "modprobe ib_core && modprobe mlx5_ib  # or the driver of your NIC: lspci -k")}
	case err != nil:
		return []report.Finding{cannotTell("the kernel does not list them: "+err.Error(), rootOfNode)}
	case len(s.Devices) == 0:
		return []report.Finding{problem("the kernel has RDMA, and no device", "modprobe mlx5_ib  # or the driver of your NIC: lspci -k")}
	}
	return []report.Finding{ok("%s: %s", report.Count(len(s.Devices), "device"), strings.Join(deviceNames(s), ", "))}
}

func (l *look) rdmaMode() []report.Finding {
	now := l.system().Exclusive
	next, from, err := l.nextMode()
	l.need(err, mode(now)+" now; ", "the right to read the files of modprobe.d")
	if next == now {
		return []report.Finding{ok("%s, also after the next boot (%s)", mode(now), from)}
	}
	value := map[bool]string{true: "0", false: "1"}[now]
	return []report.Finding{problem(mode(now)+" now, and "+mode(next)+" after the next boot ("+from+")",
		"echo 'options ib_core netns_mode="+value+"' > /etc/modprobe.d/zz-roce.conf  # of several files the last one counts; then update-initramfs -u or dracut -f, if ib_core is in the initramfs")}
}

func mode(exclusive bool) string {
	if exclusive {
		return "exclusive"
	}
	return "shared"
}

// nextMode returns whether the mode of the next boot is exclusive, and what says so.
// Of several options the last counts, and the kernel's command line comes last.
func (n Node) nextMode() (exclusive bool, from string, err error) {
	from = "the kernel's default"
	files := map[string]string{} // by base name
	// A file in an earlier folder hides those of the same name in later ones (modprobe.d(5)).
	for _, dir := range []string{"etc/modprobe.d", "run/modprobe.d", "usr/local/lib/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d"} {
		entries, err := fs.ReadDir(n.Root, dir)
		if err != nil && !isNotExist(err) {
			return false, "", err
		}
		for _, e := range entries {
			if _, hidden := files[e.Name()]; !hidden && path.Ext(e.Name()) == ".conf" {
				files[e.Name()] = path.Join(dir, e.Name())
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content, err := n.text(files[name])
		if err != nil {
			return false, "", err
		}
		if value, found := modeOption(content); found {
			exclusive, from = value, "/"+files[name]
		}
	}
	cmdline, err := n.text("proc/cmdline")
	for _, word := range strings.Fields(cmdline) {
		if value, found := strings.CutPrefix(word, "ib_core.netns_mode="); found {
			exclusive, from = isExclusive(value), "the kernel's command line"
		}
	}
	return exclusive, from, err
}

func modeOption(content string) (exclusive, found bool) {
	option := regexp.MustCompile(`(?m)^[ \t]*options[ \t]+ib[-_]core[ \t](?:.*[ \t])?netns_mode=(\S*)`) // the last of a line
	for _, m := range option.FindAllStringSubmatch(content, -1) {
		exclusive, found = isExclusive(m[1]), true
	}
	return exclusive, found
}

// isExclusive reads a bool of a module (kstrtobool): netns_mode says whether devices
// are shared.
func isExclusive(value string) bool {
	return slices.Contains([]string{"0", "n", "N", "off"}, value)
}

func (l *look) charDevices() []report.Finding {
	names := deviceNames(l.system())
	if len(names) == 0 {
		l.lacks("the node has no RDMA device", "rdma-devices")
	}
	return each(l, names, (*look).filesOf)
}

func (l *look) filesOf(device string) report.Finding {
	const dir = "/dev/infiniband/"
	wanted := l.CharDevices(device)
	var there, missing []string
	for _, kind := range []string{"uverbs", "umad", "rdma_cm"} {
		if !slices.ContainsFunc(wanted, func(p string) bool { return strings.HasPrefix(p, dir+kind) }) {
			missing = append(missing, kind)
		}
	}
	for _, file := range wanted {
		name := strings.TrimPrefix(file, dir)
		if l.there(strings.TrimPrefix(file, "/"), "the right to look at "+dir) {
			there = append(there, name)
		} else {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return problem("without "+strings.Join(missing, ", "),
			"modprobe -a ib_uverbs ib_umad rdma_ucm && udevadm trigger --action=add --subsystem-match=infiniband_verbs --subsystem-match=infiniband_mad --subsystem-match=misc")
	}
	return ok("%s", strings.Join(there, ", "))
}
