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

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/policy"
	"github.com/roce-cni/roce-cni/pkg/trusted"
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
		return p.Master(req.Pod.Namespace, nic.Name, vendors(os.DirFS("/sys"), string(nic.Name)))
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

// AllowedState is Allowed for a GC. It checks only the state folder.
func AllowedState(policyFile, dir string) error {
	p, err := policy.Load(policyFile)
	if err == nil {
		err = p.StateDir(dir)
	}
	return cmp.Or(err, stateDir(dir))
}

// HasState says whether a DEL may look for an attachment in a state folder. If no ADD
// is allowed or possible there, there is no attachment, and DEL must succeed: a
// mistake in a configuration or in the policy must not prevent that a pod is deleted.
func HasState(policyFile, dir string, log *slog.Logger) bool {
	p, err := policy.Load(policyFile)
	if err != nil {
		log.Warn("the policy of the node is not as it must be", "error", err)
	}
	err = p.StateDir(dir)
	if err == nil {
		err = trusted.Folder(dir)
		if err != nil && !unusable(err) { // DEL is tried again
			return true
		}
	}
	if err != nil {
		log.Warn("the state folder is not looked into, because no ADD works there. What one left there before an upgrade, "+
			"or before the policy or the folder changed, stays: correct that before you delete more pods", "stateDir", dir, "error", err)
	}
	return err == nil
}

// AllowedDel returns a DEL without the IPAM plugin of its configuration if the policy
// does not allow that plugin: no ADD of the pod can have leased from it. The IPAM
// plugin of a record is used in any case.
func AllowedDel(policyFile string, d conf.Del) conf.Del {
	if d.IPAM == "" || d.IPAM == conf.PoolType {
		return d
	}
	p, _ := policy.Load(policyFile) // HasState has reported the error
	if !p.Of(d.Pod.Namespace).IPAM(d.IPAM) {
		d.IPAM = ""
	}
	return d
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
