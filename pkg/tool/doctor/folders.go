// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// folders are where the runtime of the node looks for CNI configuration and for plugins. The
// names begin without "/", as those of Node.Root.
type folders struct {
	conf string
	bins []string
	from string // what says so
}

// containerdConfigs are where the configuration of containerd is, as its distributions start it:
// k3s, RKE2, MicroK8s, k0s, and the packages that kubeadm uses.
func containerdConfigs() []string {
	return []string{
		"var/lib/rancher/k3s/agent/etc/containerd/config.toml", "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
		"var/snap/microk8s/current/args/containerd.toml", "etc/k0s/containerd.toml", "etc/containerd/config.toml",
	}
}

// cniFolders returns the folders that the user names, otherwise those in the configuration of
// containerd, otherwise the ones that all runtimes use by default.
func (n Node) cniFolders() (folders, error) {
	f := folders{"etc/cni/net.d", []string{"opt/cni/bin"}, "the default of runtimes"}
	for _, config := range containerdConfigs() {
		there, err := n.has(config)
		if err != nil {
			return f, err
		}
		if !there {
			continue
		}
		f.from = "/" + config
		if err := n.readContainerd(config, &f); err != nil {
			return f, err
		}
		break
	}
	if n.ConfDir != "" {
		f.conf, f.from = rootless(n.ConfDir), "--cni-conf-dir"
	}
	if n.BinDir != "" {
		f.bins = []string{rootless(n.BinDir)}
	}
	return f, nil
}

// rootless returns a path of the node as Node.Root takes it.
func rootless(dir string) string { return strings.TrimPrefix(path.Clean("/"+dir), "/") }

// containerd is what is read of its configuration.
type containerd struct {
	Imports []string
	Plugins map[string]struct { // the name of the plugin differs by version
		CNI struct {
			ConfDir string   `toml:"conf_dir"`
			BinDir  string   `toml:"bin_dir"`
			BinDirs []string `toml:"bin_dirs"` // since containerd 2.1
		} `toml:"cni"`
	}
}

// readContainerd reads a configuration of containerd, and the files that it imports, of which
// the last one counts.
func (n Node) readContainerd(config string, f *folders) error {
	files := []string{config}
	for i := 0; i < len(files); i++ {
		text, err := fs.ReadFile(n.Root, files[i])
		if err != nil {
			return err
		}
		var c containerd
		if err := toml.Unmarshal(text, &c); err != nil {
			return &fs.PathError{Op: "parse", Path: "/" + files[i], Err: err}
		}
		for _, p := range c.Plugins {
			if p.CNI.ConfDir != "" {
				f.conf = rootless(p.CNI.ConfDir)
			}
			if p.CNI.BinDir != "" {
				p.CNI.BinDirs = append(p.CNI.BinDirs, p.CNI.BinDir)
			}
			for j, dir := range p.CNI.BinDirs {
				f.bins = append(f.bins[:j:j], rootless(dir))
			}
		}
		for _, pattern := range c.Imports {
			if !path.IsAbs(pattern) {
				pattern = path.Join("/", path.Dir(files[i]), pattern)
			}
			for _, file := range n.files(rootless(pattern)) {
				if !slices.Contains(files, file) {
					files = append(files, file)
				}
			}
		}
	}
	return nil
}
