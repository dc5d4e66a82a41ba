// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plugin

import (
	"cmp"
	"errors"
	"log/slog"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/policy"
	"github.com/roce-cni/roce-cni/pkg/trusted"
)

// Allowed returns an error for a request that the node's policy does not allow, or
// whose state folder others than root can change. The errors are those of
// policy.Load and policy.Policy.Request, and IO.
func Allowed(policyFile string, req conf.Request) error {
	p, err := policy.Load(policyFile)
	if err == nil {
		err = p.Request(req)
	}
	return cmp.Or(err, stateDir(req.StateDir))
}

// AllowedState is Allowed for a GC, of which only the state folder is read.
func AllowedState(policyFile, dir string) error {
	p, err := policy.Load(policyFile)
	if err == nil {
		err = p.StateDir(dir)
	}
	return cmp.Or(err, stateDir(dir))
}

// HasState says whether a DEL may look for an attachment in a state folder. Where
// no ADD is allowed or possible there is none, and a DEL must end well: a mistake in
// a configuration or in the policy keeps no pod from going.
func HasState(policyFile, dir string, log *slog.Logger) bool {
	p, err := policy.Load(policyFile)
	if err != nil {
		log.Warn("the policy of the node is not as it must be", "error", err)
	}
	err = p.StateDir(dir)
	if err == nil {
		err = trusted.Folder(dir)
	}
	if err != nil {
		log.Warn("the state folder is not looked into: nothing can have been added there", "stateDir", dir, "error", err)
	}
	return err == nil
}

// stateDir refuses a state folder that others than root can change. What else is
// wrong with it is told by who uses it.
func stateDir(path string) error {
	if err := trusted.Folder(path); errors.Is(err, trusted.ErrOthers) {
		return cnierr.New(cnierr.IO, "use state folder", path, "give the folder, and those above it, to root: chown root, chmod go-w", "%w", err)
	}
	return nil
}
