// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// rdmaModules asks whether the modules that make device files are there. The kernel
// loads none of them by itself.
func (n Node) rdmaModules(_ context.Context) []report.Finding {
	var missing []string
	for _, m := range []string{"ib_uverbs", "rdma_ucm", "ib_umad"} {
		loaded, err := n.has("sys/module/" + m)
		if err != nil {
			return []report.Finding{cannotTell(err.Error(), "the right to read /sys/module")}
		}
		if !loaded {
			missing = append(missing, m)
		}
	}
	if len(missing) == 0 {
		return []report.Finding{ok("ib_uverbs, rdma_ucm and ib_umad are loaded")}
	}
	return []report.Finding{n.notLoaded(missing)}
}

// notLoaded tells modules that are built in from those that are absent: sysfs shows
// a module that is built in only if it has parameters or a version.
func (n Node) notLoaded(modules []string) report.Finding {
	release, err := n.text("proc/sys/kernel/osrelease")
	if err != nil {
		return cannotTell(err.Error(), "the right to read /proc/sys/kernel/osrelease")
	}
	list := "lib/modules/" + release + "/modules.builtin"
	builtin, err := n.text(list)
	if err != nil {
		return cannotTell(strings.Join(modules, " and ")+" may be built in: "+err.Error(), "/"+list+", which the package of the kernel has")
	}
	absent := slices.DeleteFunc(modules, func(m string) bool {
		for line := range strings.Lines(builtin) {
			if path.Base(strings.TrimSpace(line)) == m+".ko" {
				return true
			}
		}
		return false
	})
	if len(absent) == 0 {
		return ok("ib_uverbs, rdma_ucm and ib_umad are loaded or built in")
	}
	return problem("not loaded: "+strings.Join(absent, ", "),
		"modprobe -a "+strings.Join(absent, " ")+"\nprintf '%s\\n' "+strings.Join(absent, " ")+" > /etc/modules-load.d/roce.conf")
}

// rdmaDriver asks which driver stack runs. NVIDIA's own (MLNX_OFED, DOCA-OFED) has
// the module mlx_compat, which the kernel's does not have.
func (n Node) rdmaDriver(_ context.Context) []report.Finding {
	release, err := n.text("proc/sys/kernel/osrelease")
	if err != nil {
		return []report.Finding{cannotTell(err.Error(), "the right to read /proc/sys/kernel/osrelease")}
	}
	running, err := n.has("sys/module/mlx_compat")
	if err != nil {
		return []report.Finding{cannotTell(err.Error(), "the right to read /sys/module")}
	}
	mlx5, err := n.has("sys/module/mlx5_core")
	if err != nil {
		return []report.Finding{cannotTell(err.Error(), "the right to read /sys/module")}
	}
	installed, err := n.has("usr/bin/ofed_info")
	if err != nil {
		return []report.Finding{cannotTell(err.Error(), "the right to look for /usr/bin/ofed_info")}
	}
	switch {
	case running:
		return []report.Finding{ok("OFED%s on Linux %s", n.version("mlx5_core"), release)}
	case installed && mlx5:
		return []report.Finding{problem("OFED is installed, but the drivers of Linux "+release+" run",
			"dkms autoinstall -k "+release+" && /etc/init.d/openibd restart  # on a node without pods")}
	}
	return []report.Finding{ok("the drivers of Linux %s", release)}
}

// version returns the version of a module with a space before it, "" if it has
// none: modules of the kernel itself have none of their own any more.
func (n Node) version(module string) string {
	v, err := n.text("sys/module/" + module + "/version")
	if err != nil {
		return ""
	}
	return " " + strings.TrimSpace(v)
}

func (n Node) rdmaDevices(ctx context.Context) []report.Finding {
	s, err := n.RDMA(ctx)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return []report.Finding{problem(noRDMA, "modprobe ib_core && modprobe mlx5_ib  # or the driver of your NIC: lspci -k")}
	case err != nil:
		return []report.Finding{cannotTell("the kernel does not list them: "+err.Error(), "root in the network namespace of the node")}
	case len(s.Devices) == 0:
		return []report.Finding{problem("the kernel has RDMA, and no device", "modprobe mlx5_ib  # or the driver of your NIC: lspci -k")}
	}
	var names []string
	for _, d := range s.Devices {
		names = append(names, d.Name)
	}
	return []report.Finding{ok("%s: %s", report.Count(len(names), "device"), strings.Join(names, ", "))}
}

func (n Node) rdmaMode(ctx context.Context) []report.Finding {
	s, err := n.RDMA(ctx)
	if err != nil {
		return unlisted(err)
	}
	next, from, err := n.nextMode()
	if err != nil {
		return []report.Finding{cannotTell(mode(s.Exclusive)+" now; "+err.Error(), "the right to read the files of modprobe.d")}
	}
	if next == s.Exclusive {
		return []report.Finding{ok("%s, also after the next boot (%s)", mode(s.Exclusive), from)}
	}
	value := map[bool]string{true: "0", false: "1"}[s.Exclusive]
	return []report.Finding{problem(mode(s.Exclusive)+" now, and "+mode(next)+" after the next boot ("+from+")",
		"echo 'options ib_core netns_mode="+value+"' > /etc/modprobe.d/zz-roce.conf  # of several files the last one counts; then update-initramfs -u or dracut -f, if ib_core is in the initramfs")}
}

func mode(exclusive bool) string {
	if exclusive {
		return "exclusive"
	}
	return "shared"
}

// modprobeDirs are where modprobe looks (modprobe.d(5)). A file in an earlier one
// hides those of the same name in later ones.
func modprobeDirs() []string {
	return []string{"etc/modprobe.d", "run/modprobe.d", "usr/local/lib/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d"}
}

// nextMode returns whether the mode of the next boot is exclusive, and what says so.
// Of several options the last counts, and the kernel's command line comes last.
func (n Node) nextMode() (exclusive bool, from string, err error) {
	from = "the kernel's default"
	files := map[string]string{} // by base name
	for _, dir := range modprobeDirs() {
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
	var order []string
	for name := range files {
		order = append(order, name)
	}
	slices.Sort(order)
	for _, name := range order {
		content, err := n.text(files[name])
		if err != nil {
			return false, "", err
		}
		if value, found := modeOption(content); found {
			exclusive, from = value, "/"+files[name]
		}
	}
	cmdline, err := n.text("proc/cmdline")
	if err != nil {
		return false, "", err
	}
	for _, word := range strings.Fields(cmdline) {
		if value, found := strings.CutPrefix(word, "ib_core.netns_mode="); found {
			exclusive, from = isExclusive(value), "the kernel's command line"
		}
	}
	return exclusive, from, nil
}

// modeOption reads the option of a file of modprobe.d.
func modeOption(content string) (exclusive, found bool) {
	for line := range strings.Lines(content) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "options" || strings.ReplaceAll(words[1], "-", "_") != "ib_core" {
			continue
		}
		for _, w := range words[2:] {
			if value, is := strings.CutPrefix(w, "netns_mode="); is {
				exclusive, found = isExclusive(value), true
			}
		}
	}
	return exclusive, found
}

// isExclusive reads a bool of a module (kstrtobool): netns_mode says whether devices
// are shared.
func isExclusive(value string) bool {
	return slices.Contains([]string{"0", "n", "N", "off"}, value)
}

func (n Node) charDevices(ctx context.Context) []report.Finding {
	s, err := n.RDMA(ctx)
	if err != nil {
		return unlisted(err)
	}
	if len(s.Devices) == 0 {
		return []report.Finding{cannotTell("the node has no RDMA device", "rdma-devices")}
	}
	var out []report.Finding
	for _, d := range s.Devices {
		out = append(out, n.filesOf(d.Name).About(d.Name))
	}
	return out
}

func (n Node) filesOf(device string) report.Finding {
	const dir = "/dev/infiniband/"
	wanted := n.CharDevices(device)
	var there, missing []string
	for _, kind := range []string{"uverbs", "umad", "rdma_cm"} {
		if !slices.ContainsFunc(wanted, func(p string) bool { return strings.HasPrefix(p, dir+kind) }) {
			missing = append(missing, kind)
		}
	}
	for _, file := range wanted {
		found, err := n.has(strings.TrimPrefix(file, "/"))
		if err != nil {
			return cannotTell(err.Error(), "the right to look at "+dir)
		}
		name := strings.TrimPrefix(file, dir)
		if found {
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
