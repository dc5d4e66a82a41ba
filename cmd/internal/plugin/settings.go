// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plugin

import (
	"cmp"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
)

// Settings returns the settings of the node. The error is that of settings.Load, or IO
// if users other than root can change the state folder.
func Settings(file string) (settings.Node, error) {
	s, err := settings.Load(file)
	return s, cmp.Or(err, stateDir(s.StateDir))
}

// SettingsForDEL is Settings for a DEL, which must end a pod if it can: it ignores faults
// of the settings that leave the state folder known. The DEL that it returns has no IPAM
// plugin of its configuration if the settings do not allow that plugin, or have a fault. A
// DEL with a record uses the plugin of the record, and a DEL without a record has leased
// nothing from it.
//
// If the state folder is not known, DEL fails until the settings are correct: it would
// find no record, and the runtime would forget a pod that still has addresses.
func SettingsForDEL(file string, d conf.Del, log *slog.Logger) (settings.Node, conf.Del, error) {
	s, fault := settings.Load(file)
	if s.StateDir == "" {
		return s, d, fault
	}
	if fault != nil {
		log.Warn("the settings of the node are not as they must be", "error", fault)
		s.Namespaces = map[string]settings.Limits{"*": {IPAMTypes: []string{}}}
	}
	d.IPAM = ipamPlugin(s, d.Pod.Namespace, d.IPAM, d.Raw, log)
	return s, d, stateDir(s.StateDir)
}

// ForGC returns a GC without the IPAM plugin of its configuration if no namespace may use
// that plugin: nothing was leased from it.
func ForGC(s settings.Node, g conf.GC, log *slog.Logger) conf.GC {
	g.IPAM = ipamPlugin(s, "", g.IPAM, g.Raw, log)
	return g
}

// Allowed returns an error for a request that the settings of the node do not allow. The
// function that it returns says whether a NIC of the host may be the parent. The error is
// that of settings.Node.Request.
func Allowed(s settings.Node, req conf.Request) (parent func(plan.Link) error, err error) {
	parent = func(nic plan.Link) error {
		if s.Of(req.Pod.Namespace).Masters == nil {
			return nil
		}
		name := nic.OnNode()
		return s.Master(req.Pod.Namespace, name, vendors(os.DirFS("/sys"), string(name)))
	}
	return parent, s.Request(req)
}

// vendors returns the vendors of a link's device, or of the devices of the links
// below it, such as the slaves of a bond. "15b3" is Mellanox.
func vendors(sys fs.FS, link string) []string {
	dir := path.Join("class/net", link)
	if id, err := fs.ReadFile(sys, dir+"/device/vendor"); err == nil {
		return []string{strings.TrimPrefix(strings.TrimSpace(string(id)), "0x")}
	}
	lower, _ := fs.Glob(sys, dir+"/lower_*") // the pattern is correct
	var out []string
	for _, l := range lower {
		out = append(out, vendors(sys, strings.TrimPrefix(path.Base(l), "lower_"))...)
	}
	return out
}

// ipamPlugin returns an ipam.type, or "" if it names another plugin and the settings
// do not allow it.
func ipamPlugin(s settings.Node, namespace, kind, config string, log *slog.Logger) string {
	if kind == "" || kind == conf.PoolType {
		return kind
	}
	if err := s.IPAMPlugin(namespace, kind, []byte(config)); err != nil {
		log.Warn("the IPAM plugin of the configuration is not called", "error", err)
		return ""
	}
	return kind
}

// stateDir refuses a state folder that users other than root can change. The users of
// the folder report its other errors.
func stateDir(dir string) error {
	if err := trusted.Folder(dir); errors.Is(err, trusted.ErrOthers) {
		return cnierr.New(cnierr.IO, "use state folder", dir, "give the folder, and those above it, to root: chown root, chmod go-w", "%w", err)
	}
	return nil
}
