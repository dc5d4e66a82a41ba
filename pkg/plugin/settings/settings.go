// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package settings reads the file of the node: where the node has its state, its log and
// its table of rails, and what network configurations may request. A user who may create
// a NetworkAttachmentDefinition writes input that root executes.
//
// It is a file of root, with a path that is built into the programs. Without the file,
// the defaults apply. The package decides nothing about networks, and knows no kernel.
// This file has the questions to the settings, limits.go what depends on the namespace
// of a pod, read.go the format of the file.
package settings

import (
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Node is the settings of a node.
type Node struct {
	// Path is where the file is, or would be: errors name it.
	Path string
	// StateDir is the folder of records and leases. It is "" only beside an error that
	// leaves the folder unknown.
	StateDir string
	Log      Log
	// TakeInUse says that pods take RDMA devices from the programs of the host that use
	// them (rdma.inUse).
	TakeInUse bool
	// RemoveFillers says that the node's fillers of GID tables go with the last pod that
	// needs them (rdma.fillers).
	RemoveFillers bool
	// CountPods says that rocectl heal counts for the metrics what each pod has on the RDMA
	// devices (rdma.counts).
	CountPods bool
	// TellForeignGID says that rocectl heal tells when a pod uses the GID of another one
	// (rdma.foreignGID).
	TellForeignGID bool
	// Heal is what rocectl heal makes again by itself.
	Heal Heal
	// Table is the file that has the subnets of each node and rail, for networks with
	// ipam.table.
	Table string
	// IPAMPaths are absolute: a path in "ipam" of another IPAM plugin is one of these
	// or below one.
	IPAMPaths []string
	// Namespaces has the limits of the networks of pods, by the pods' namespace.
	// "*" is all others.
	Namespaces map[string]Limits
}

// Log is where the calls of the plugins are logged. File "" means standard error.
type Log struct {
	File  string
	Level string // debug, info, warn or error
}

// Heal is what rocectl heal makes again by itself.
type Heal string

// HealRoutes is what only steers packets (plan.Op.Routing), HealAll everything that rocectl
// repair makes again.
const (
	HealOff    Heal = "off"
	HealRoutes Heal = "routes"
	HealAll    Heal = "all"
)

// DefaultStateDir is where records and leases are if the settings have no stateDir.
const DefaultStateDir = "/run/roce"

// Default returns the settings of a node without file. path is where the file would be.
func Default(path string) Node {
	return Node{
		Path: path, StateDir: DefaultStateDir, Log: Log{Level: "info"}, Heal: HealRoutes, Table: "/etc/roce/rails.json",
		// What host-local, dhcp and whereabouts use if a configuration names no path.
		IPAMPaths: []string{"/var/lib/cni/networks", "/run/cni/dhcp.sock", "/etc/resolv.conf", "/etc/cni/net.d/whereabouts.d"},
	}
}

// Request says everything that a configuration asks for and may not have, each with
// the keys of both. A request without pod, that of STATUS, is allowed if the pods of
// some namespace may have it. The error is BadConfig.
func (n Node) Request(r conf.Request) error {
	f := &strict.Faults{}
	// Where Multus and device plugins keep device information (Device Information
	// Specification, 3.3); no policy changes that.
	const devInfo = "/run/k8s.cni.cncf.io/devinfo"
	if d := r.DeviceInfoFile; d != "" && !strings.HasPrefix(strings.TrimPrefix(d, "/var"), devInfo+"/") {
		f.Add(cnierr.BadConfig, "runtimeConfig.CNIDeviceInfoFile", "leave it to Multus, which writes it for the capability CNIDeviceInfoFile",
			"%q is not below /var%s or %s", d, devInfo, devInfo)
	}
	n.another(r.IPAM.Type, r.IPAM.Raw, f)
	within := func(l Limits) bool {
		faults := &strict.Faults{}
		check{n, "", faults}.limits(r, l)
		return faults.Err(operation, n.Path) == nil
	}
	switch about := r.ContainerID != ""; { // STATUS is about no pod
	case about:
		check{n, r.Pod.Namespace, f}.limits(r, n.Of(r.Pod.Namespace))
	case !n.anywhere(within):
		check{n, "*", f}.limits(r, n.Namespaces["*"])
	}
	return f.Err(operation, n.Path)
}

const operation = "obey policy"
