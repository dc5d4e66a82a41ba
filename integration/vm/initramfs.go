// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package vm

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// What init.sh needs, and what the rails need, which is much faster from here
// than by modprobe. rxe_disassociate is ours, as
// those of a Type are.
const (
	bootModules = "virtio_pci virtio_console 9pnet_virtio 9p overlay"
	railModules = "virtio_net ib_uverbs rdma_ucm rdma_rxe rxe_disassociate"
)

// busybox must be the static one: there is no library in the initramfs.
const busybox = "/bin/busybox"

// writeInitramfs writes what the guest's kernel starts with. It has the command
// too, so that no quoting of the kernel's command line comes between.
func (k Kernel) writeInitramfs(to string, m Machine, command []string) error {
	var c cpio
	for _, dir := range []string{"bin", "modules", "vm"} {
		c.add(dir, 0o040755, nil)
	}
	if err := c.addFile("bin/busybox", busybox); err != nil {
		return err
	}
	names := strings.Fields(bootModules)
	reach := ""
	if m.Reach.IsValid() {
		reach = m.Reach.String()
	}
	if len(m.Rails) > 0 || reach != "" {
		names = append(names, strings.Fields(railModules)...)
	}
	special, err := m.Type.modules()
	if err != nil {
		return err
	}
	modules, err := k.modules(append(names, special...))
	if err != nil {
		return err
	}
	for _, name := range special {
		if !slices.ContainsFunc(modules, func(file string) bool { return path.Base(file) == name+".ko" }) {
			return fmt.Errorf("kernel %s does not have the module %s, which machines of the type %s need", k.Release, name, m.Type)
		}
	}
	for i, module := range modules {
		if err := c.addFile(fmt.Sprintf("modules/%02d-%s", i, path.Base(module)), module); err != nil {
			return err
		}
	}
	for name, from := range map[string]string{"init": "init.sh", "vm/start.sh": "start.sh"} {
		content, err := file(from)
		if err != nil {
			return err
		}
		c.add(name, 0o100755, content)
	}
	c.add("vm/machine", 0o100644, fmt.Appendf(nil, "RELEASE=%s\nKVM=%t\nNODE=%d\nRAILS=%d\nTYPE=%s\nREACH=%s\nDIR=%s\n",
		quote(k.Release), k.KVM, m.Node, len(m.Rails), m.Type, reach, quote(m.Dir)))
	var shared strings.Builder
	for i, folder := range m.Files {
		fmt.Fprintf(&shared, "%s %s\n", tag(i), folder)
	}
	c.add("vm/files", 0o100644, []byte(shared.String()))
	words := make([]string, len(command))
	for i, word := range command {
		words[i] = quote(word)
	}
	c.add("vm/command", 0o100644, []byte("exec "+strings.Join(words, " ")+"\n"))
	return os.WriteFile(to, c.end(), 0o600)
}

// modules returns the files of modules and of what they depend on, in the order
// to load them. What is no module of this kernel has none.
func (k Kernel) modules(names []string) ([]string, error) {
	dir := filepath.Join(k.Dir, "lib/modules", k.Release)
	list, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	var order []string
	for _, name := range names {
		for line := range strings.Lines(string(list)) {
			file, needs, _ := strings.Cut(line, ":")
			if path.Base(file) != name+".ko" {
				continue
			}
			// depmod lists first what is to be loaded last.
			chain := append([]string{file}, strings.Fields(needs)...)
			slices.Reverse(chain)
			for _, f := range chain {
				if f = filepath.Join(dir, f); !slices.Contains(order, f) {
					order = append(order, f)
				}
			}
		}
	}
	return order, nil
}

// quote makes a word of the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// cpio is an archive in the format newc of
// Documentation/driver-api/early-userspace/buffer-format.rst.
type cpio struct {
	archive bytes.Buffer
	entries int
}

func (c *cpio) add(name string, mode uint32, content []byte) {
	c.entries++
	fields := []int{c.entries, int(mode), 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0}
	c.archive.WriteString("070701")
	for _, f := range fields {
		fmt.Fprintf(&c.archive, "%08x", f)
	}
	c.archive.WriteString(name + "\x00")
	c.pad()
	c.archive.Write(content)
	c.pad()
}

func (c *cpio) pad() {
	for c.archive.Len()%4 != 0 {
		c.archive.WriteByte(0)
	}
}

func (c *cpio) addFile(name, from string) error {
	content, err := os.ReadFile(from)
	if err == nil {
		c.add(name, 0o100755, content)
	}
	return err
}

func (c *cpio) end() []byte {
	c.add("TRAILER!!!", 0, nil)
	return c.archive.Bytes()
}
