// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package policy reads what network configurations may request on a node. A user who
// may create a NetworkAttachmentDefinition writes input that root executes.
//
// The policy is a file of root, with a path that is built into the programs. Without
// the file, the built-in limits of folders apply, and nothing else is limited. The
// package decides nothing about networks, and knows no kernel. This file has the
// questions to a policy, limits.go what depends on the namespace of a pod, read.go
// the format of the file.
package policy

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Policy is what configurations may ask for on a node.
type Policy struct {
	// Path is where the policy is, or would be: errors name it.
	Path string
	// StateDirs, LogDirs and TableDirs are absolute: stateDir is one of the first
	// or below one, log.file and ipam.table are below one of the others.
	StateDirs, LogDirs, TableDirs []string
	// IPAMPaths are absolute: a path in "ipam" of another IPAM plugin is one of these
	// or below one.
	IPAMPaths []string
	// Namespaces has the limits of the networks of pods, by the pods' namespace.
	// "*" is all others.
	Namespaces map[string]Limits
}

// builtIn returns the policy of a node without file.
func builtIn(path string) Policy {
	return Policy{Path: path, StateDirs: []string{conf.DefaultStateDir}, LogDirs: []string{"/var/log/roce"}, TableDirs: []string{"/etc/roce"}, IPAMPaths: usualIPAMPaths()}
}

// deviceInfoDirs are where Multus and device plugins keep device information
// (Device Information Specification, 3.3); no policy changes them.
func deviceInfoDirs() []string {
	return []string{"/var/run/k8s.cni.cncf.io/devinfo", "/run/k8s.cni.cncf.io/devinfo"}
}

// StateDir says whether a configuration may have its state in a folder. The folder
// may be there or not. The error is BadConfig.
func (p Policy) StateDir(path string) error {
	f := &strict.Faults{}
	p.stateDir(path, f)
	return f.Err(operation, p.Path)
}

// Request says everything that a configuration asks for and may not have, each with
// the keys of both. A request without pod, that of STATUS, is allowed if the pods of
// some namespace may have it. The error is BadConfig.
func (p Policy) Request(r conf.Request) error {
	f := &strict.Faults{}
	p.stateDir(r.StateDir, f)
	p.below(f, "log.file", r.Log.File, "logDirs", p.LogDirs)
	p.below(f, "ipam.table", r.IPAM.Table, "tableDirs", p.TableDirs)
	if d := r.DeviceInfoFile; d != "" && !belowOne(d, deviceInfoDirs()) {
		f.Add(cnierr.BadConfig, "runtimeConfig.CNIDeviceInfoFile", "leave it to Multus, which writes it for the capability CNIDeviceInfoFile",
			"%q is not below %s", d, strings.Join(deviceInfoDirs(), " or "))
	}
	if leasesElsewhere(r) {
		p.another(r.IPAM.Type, r.IPAM.Raw, f)
	}
	within := func(l Limits) bool {
		faults := &strict.Faults{}
		check{p, "", faults}.limits(r, l)
		return faults.Err(operation, p.Path) == nil
	}
	switch about := r.ContainerID != ""; { // STATUS is about no pod
	case about:
		check{p, r.Pod.Namespace, f}.limits(r, p.Of(r.Pod.Namespace))
	case !p.anywhere(within):
		check{p, "*", f}.limits(r, p.Namespaces["*"])
	}
	return f.Err(operation, p.Path)
}

const operation = "obey policy"

// stateDir reports a state folder that is none of the policy's and not below one.
// Nor may it be, or be in, what the state folder of others holds.
func (p Policy) stateDir(path string, f *strict.Faults) {
	in := func(dir string) bool {
		rest, ok := strings.CutPrefix(path, dir+"/")
		return path == dir || ok && !slices.ContainsFunc(strings.Split(rest, "/"), reserved)
	}
	if !slices.ContainsFunc(p.StateDirs, in) {
		p.fault(f, "stateDir", path, "stateDirs", p.StateDirs)
	}
}

// reserved says whether a state folder may hold something of that name: a folder in
// the place of the lease database would stop all ADDs.
func reserved(name string) bool {
	return name == "attachments" || name == "pools" || name == "common" || strings.HasPrefix(name, "leases.") || strings.HasSuffix(name, ".lock")
}

// below reports a file that is not below one of the folders; "" is none.
func (p Policy) below(f *strict.Faults, key, path, limit string, dirs []string) {
	if path != "" && !belowOne(path, dirs) {
		p.fault(f, key, path, limit, dirs)
	}
}

func (p Policy) fault(f *strict.Faults, key, path, limit string, dirs []string) {
	f.Add(cnierr.BadConfig, key, "use a path that "+limit+" of "+filepath.Base(p.Path)+" allows, or ask the node's administrator to add the folder there",
		"%q is not in %s: %s", path, limit, strings.Join(dirs, ", "))
}

func belowOne(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(path, dir+"/") })
}
