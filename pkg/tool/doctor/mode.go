// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// rdmaMode asks whether the mode of RDMA in namespaces is the one that the next
// boot sets.
func rdmaMode() Check {
	return Check{
		Name: "rdma-netns-mode",
		Asks: "is the namespace mode, shared or exclusive, the same after the next boot?",
		Why:  "networks that want the other mode fail with error 104 after the next boot, and no mode can be set while there are pods",
		look: func(ctx context.Context, n Node) []report.Finding {
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
				"echo 'options ib_core netns_mode="+value+"' > /etc/modprobe.d/zz-roce.conf  # then update-initramfs -u or dracut -f, if ib_core is in the initramfs")}
		},
	}
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
