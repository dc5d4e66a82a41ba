// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package recording

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/tool/redact"
)

// Tree is a part of a file system: files and symbolic links by their paths.
type Tree struct {
	Files map[string]string `json:"files"`
	Links map[string]string `json:"links"` // their targets
}

// ofClass are the files that are taken of each device of a class.
func ofClass() map[string][]string {
	return map[string][]string{
		"infiniband": {
			"node_guid", "sys_image_guid", "node_type", "hca_type", "fw_ver", "board_id", "hw_rev",
			"ports/*/link_layer", "ports/*/state", "ports/*/phys_state", "ports/*/rate",
			"ports/*/gids/*", "ports/*/gid_attrs/types/*", "ports/*/gid_attrs/ndevs/*", "tc/*/traffic_class", "device", "subsystem",
		},
		"infiniband_verbs": {"ibdev", "dev", "abi_version", "device"},
		"net": {
			"ifindex", "mtu", "type", "speed", "duplex", "carrier", "operstate", "dev_port", "phys_port_name", "device", "subsystem",
			"lower_*", "upper_*", "master",
		},
	}
}

// ofFunction are the files that are taken of each PCI function that can be a NIC or a
// GPU.
func ofFunction() []string {
	return []string{
		"vendor", "device", "class", "subsystem_vendor", "subsystem_device", "numa_node", "sriov_numvfs", "sriov_totalvfs",
		"current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "driver", "subsystem", "physfn", "virtfn*",
	}
}

// modules are those with a version that matters.
const modules = "module/{mlx_compat,ib_core,ib_uverbs,mlx5_core,mlx5_ib,bnxt_en,bnxt_re,ice,irdma,rdma_rxe}"

// Words returns the words that every recording can have: the names and contents of files
// of sysfs, and the kinds of interfaces and devices. The list of contents has what the
// kernel and its drivers call things.
func Words() string {
	var b strings.Builder
	for class, files := range ofClass() {
		fmt.Fprintln(&b, class, files)
	}
	fmt.Fprintln(&b, ofFunction(), modules, netlinkFile, sysFile)
	b.WriteString(`bus class dev devices device drivers driver module net pci virtual virtio auxiliary platform sys files links
		version srcversion initstate protocol type body rows errno infiniband_verbs uverbs roce ib iw opa iwarp usnic rxe rdma core en eth
		down init armed active active_defer up unknown lowerlayerdown notpresent testing dormant full half live coming going
		polling disabled linkup sleep phytest portconfigurationtraining linkerrorrecovery ethernet infiniband
		ca switch router rnic GT/s PCIe Gb/sec SDR DDR QDR FDR10 FDR EDR HDR NDR XDR IB/RoCE RoCE v1 v2 4X 1X 2X 8X 12X
		macvlan macvtap ipvlan ipvtap vlan bond team bridge veth dummy vxlan geneve gre tun ifb vrf macsec xfrm wireguard
		mlx4_core mlx4_en mlx5_core mlx5_ib bnxt_en bnxt_re ice irdma iavf i40e ixgbe igb igbvf e1000e hns3 hns_roce qede qedr
		ionic ena efa erdma mana cxgb4 virtio_net virtio_pci vmxnet3 vmw_pvrdma amdgpu nvidia nouveau`)
	return b.String()
}

// Capture reads the part of sysfs that concerns RDMA.
func Capture(sys fs.FS) Tree {
	c := capture{sys, Tree{map[string]string{}, map[string]string{}}}
	for class, files := range ofClass() {
		for _, name := range c.names("class/" + class) {
			c.device("class/"+class+"/"+name, files)
		}
	}
	for _, name := range c.names("bus/pci/devices") {
		if kind := c.text("bus/pci/devices/" + name + "/class"); takes(kind) {
			c.take(c.follow("bus/pci/devices/"+name), ofFunction()...)
		}
	}
	begin, list, _ := strings.Cut(strings.TrimSuffix(modules, "}"), "{")
	for _, module := range strings.Split(list, ",") {
		c.take(begin+module, "version", "srcversion", "initstate")
	}
	return c.Tree
}

// takes says whether a PCI class is one of networks, displays or accelerators.
func takes(class string) bool {
	return slices.ContainsFunc([]string{"0x02", "0x03", "0x12"}, func(c string) bool { return strings.HasPrefix(class, c) })
}

type capture struct {
	sys fs.FS
	Tree
}

// device takes a device of a class, and where its hardware is. Interfaces without
// hardware and without an interface below them, such as those of other pods, are left
// out.
func (c capture) device(name string, files []string) {
	lower, _ := fs.Glob(c.sys, name+"/lower_*") // the pattern is right
	if _, err := fs.ReadLink(c.sys, name+"/device"); err != nil && strings.HasPrefix(name, "class/net/") && len(lower) == 0 {
		return
	}
	dir := c.follow(name)
	c.take(dir, files...)
	hardware := c.Links[dir+"/device"]
	if hardware == "" {
		return
	}
	at := path.Join(dir, hardware)
	c.take(at, "subsystem", "driver")
	if bus := c.Links[at+"/subsystem"]; bus != "" {
		c.follow("bus/" + path.Base(bus) + "/devices/" + path.Base(at))
	}
}

// follow takes a symbolic link and returns the path to which it leads.
func (c capture) follow(name string) string {
	target, err := fs.ReadLink(c.sys, name)
	if err != nil {
		return name
	}
	c.Links[name] = target
	return path.Join(path.Dir(name), target)
}

// maxFile is the largest file that is taken: one page, as sysfs has it.
const maxFile = 4096

// take takes the files of a folder that match patterns.
func (c capture) take(dir string, patterns ...string) {
	for _, p := range patterns {
		names, _ := fs.Glob(c.sys, dir+"/"+p) // the patterns are right
		for _, name := range names {
			if target, err := fs.ReadLink(c.sys, name); err == nil {
				c.Links[name] = target
			} else if b, err := fs.ReadFile(c.sys, name); err == nil && len(b) <= maxFile {
				c.Files[name] = string(b)
			}
		}
	}
}

func (c capture) names(dir string) []string {
	entries, _ := fs.ReadDir(c.sys, dir) // a kernel without RDMA has no such folder
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func (c capture) text(name string) string {
	b, err := fs.ReadFile(c.sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (t Tree) redact(r *redact.Redactor) Tree {
	out := Tree{map[string]string{}, map[string]string{}}
	// Sorted, so that the same machine gives the same text.
	for _, name := range slices.Sorted(maps.Keys(t.Files)) {
		out.Files[r.Text(name)] = r.Text(t.Files[name])
	}
	for _, name := range slices.Sorted(maps.Keys(t.Links)) {
		out.Links[r.Text(name)] = r.Text(t.Links[name])
	}
	return out
}

// mostEntries is more than the tree of a node with hundreds of VFs has.
const mostEntries = 50_000

// Unpack writes the tree into an empty folder. A path that leads out of the folder is
// an error: the tree may come from a stranger.
func (t Tree) Unpack(dir string) (err error) {
	if n := len(t.Files) + len(t.Links); n > mostEntries {
		return fmt.Errorf("%d files and links, the limit is %d", n, mostEntries)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	write := func(all map[string]string, make func(name, content string) error) error {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
				return err
			}
			if err := make(name, all[name]); err != nil {
				return err
			}
		}
		return nil
	}
	// The links come last, so that no file is written through one.
	if err := write(t.Files, func(name, content string) error { return root.WriteFile(name, []byte(content), 0o600) }); err != nil {
		return err
	}
	return write(t.Links, func(name, target string) error { return root.Symlink(target, name) })
}
