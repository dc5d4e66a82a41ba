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
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/policy"
)

// Allowed returns an error for a request that the node's policy does not allow. It
// also returns an error if users other than root can change the state folder. The
// function that it returns says whether a NIC of the host may be the parent. The
// errors are those of policy.Load and policy.Policy.Request, and IO.
func Allowed(policyFile string, req conf.Request) (parent func(plan.Link) error, err error) {
	p, err := policy.Load(policyFile)
	if err != nil {
		return nil, err
	}
	parent, err = AllowedBy(p, req)
	return parent, cmp.Or(err, stateDir(req.StateDir))
}

// AllowedBy is Allowed for a policy that was read. It does not check which users can
// change the state folder.
func AllowedBy(p policy.Policy, req conf.Request) (parent func(plan.Link) error, err error) {
	parent = func(nic plan.Link) error {
		if p.Of(req.Pod.Namespace).Masters == nil {
			return nil
		}
		name := nic.OnNode()
		return p.Master(req.Pod.Namespace, name, vendors(os.DirFS("/sys"), string(name)))
	}
	return parent, p.Request(req)
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

// AllowedGC is Allowed for a GC. It returns the GC without the IPAM plugin of its
// configuration if no namespace may use that plugin: nothing was leased from it.
func AllowedGC(policyFile string, g conf.GC, log *slog.Logger) (conf.GC, error) {
	p, err := policy.Load(policyFile)
	if err == nil {
		err = p.StateDir(g.StateDir)
	}
	if err := cmp.Or(err, stateDir(g.StateDir)); err != nil {
		return g, err
	}
	g.IPAM = ipamPlugin(p, "", g.IPAM, g.Raw, log)
	return g, nil
}

// ipamPlugin returns an ipam.type, or "" if it names another plugin and the policy
// does not allow it.
func ipamPlugin(p policy.Policy, namespace, kind, config string, log *slog.Logger) string {
	if kind == "" || kind == conf.PoolType {
		return kind
	}
	if err := p.IPAMPlugin(namespace, kind, []byte(config)); err != nil {
		log.Warn("the IPAM plugin of the configuration is not called", "error", err)
		return ""
	}
	return kind
}

// AllowedDel says whether a DEL may look for an attachment in its state folder. If no
// ADD is allowed or possible there, there is no attachment, and DEL must succeed: a
// mistake in a configuration must not prevent that a pod is deleted.
//
// If the policy has a fault, it is not known whether ADDs worked in a folder that the
// rest of the policy does not allow. Then the error is that of policy.Load. DEL
// succeeds, and finds the record, when the policy is correct again.
//
// The returned DEL is without the IPAM plugin of its configuration if the policy does
// not allow that plugin, or has a fault. A DEL with a record uses the plugin of the
// record, and a DEL without a record has leased nothing from it.
func AllowedDel(policyFile string, d conf.Del, log *slog.Logger) (allowed conf.Del, hasState bool, err error) {
	p, broken := policy.Load(policyFile)
	err = p.StateDir(d.StateDir)
	if err != nil && broken != nil && d.StateDir != "" {
		return d, false, broken
	}
	if broken != nil {
		log.Warn("the policy of the node is not as it must be", "error", broken)
		p.Namespaces = map[string]policy.Limits{"*": {IPAMTypes: []string{}}}
	}
	d.IPAM = ipamPlugin(p, d.Pod.Namespace, d.IPAM, d.Raw, log)
	if err == nil {
		err = trusted.Folder(d.StateDir)
		if err != nil && !unusable(err) { // DEL is tried again
			return d, true, nil
		}
	}
	if err != nil {
		log.Warn("the state folder is ignored, because no ADD works there. What an ADD left there before an upgrade, "+
			"or before the policy or the folder changed, stays: correct this before you delete more pods", "stateDir", d.StateDir, "error", err)
	}
	return d, err == nil, nil
}

// unusable says whether no ADD can ever work with a state folder. Other errors, such
// as a lack of memory, say nothing about the folder.
func unusable(err error) bool {
	return slices.ContainsFunc([]error{trusted.ErrOthers, unix.ENOTDIR, unix.ENAMETOOLONG, unix.ELOOP, unix.EINVAL},
		func(e error) bool { return errors.Is(err, e) })
}

// stateDir refuses a state folder that users other than root can change. The users of
// the folder report its other errors.
func stateDir(dir string) error {
	if err := trusted.Folder(dir); errors.Is(err, trusted.ErrOthers) {
		return cnierr.New(cnierr.IO, "use state folder", dir, "give the folder, and those above it, to root: chown root, chmod go-w", "%w", err)
	}
	return nil
}
