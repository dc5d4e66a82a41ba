// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"cmp"
	"crypto/sha256"
	"net/netip"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Owner is the plugin that asks for an address for an attachment, with the attachment's
// pod. The pod's fields are empty outside of Kubernetes. The leases of a Netns without
// path are never reaped.
type Owner struct {
	ContainerID, IfName           string
	Network                       string // the network configuration's name
	Program                       string // the type of the plugin in the network's list
	PodNamespace, PodName, PodUID string
	Netns                         netns.Ref
}

// Key is what an owner is known by. One attachment can have several owners, because
// each plugin of the network's list leases for itself.
type Key struct{ ContainerID, IfName, Network, Program string }

// Key returns the key under which the owner holds its leases.
func (o Owner) Key() Key { return Key{o.ContainerID, o.IfName, o.Network, o.Program} }

// Attachment returns the attachment that the owner leases for.
func (o Owner) Attachment() conf.Attachment {
	return conf.Attachment{ContainerID: conf.ContainerID(o.ContainerID), IfName: conf.LinkName(o.IfName)}
}

// String names the owner in messages: its pod, or else its container. For an address
// that is set aside, only the namespace is known.
func (o Owner) String() string {
	switch {
	case o.PodName != "":
		return "pod " + strings.TrimPrefix(o.PodNamespace+"/"+o.PodName, "/")
	case o.ContainerID != "":
		return "container " + o.ContainerID
	case o.Netns.Path != "":
		return "namespace " + o.Netns.Path
	}
	return "several namespaces"
}

// Identity stays the same when a pod is created again under its name. Outside
// of Kubernetes it is the attachment. The plugins of a list share it: a pod gets its
// addresses back, whichever of them asks first.
func (o Owner) Identity() [sha256.Size]byte {
	if o.PodName == "" {
		return sha256.Sum256(appendStrings([]byte("container"), o.ContainerID, o.IfName))
	}
	return sha256.Sum256(appendStrings([]byte("pod"), o.PodNamespace, o.PodName, o.IfName))
}

// State is the state of a used address.
type State byte

// The states. Databases contain the numbers.
const (
	Leased     State = 1
	Released   State = 2
	Conflicted State = 3 // in quarantine because another host on the network answered for it
	SetAside   State = 4 // its pool is not known; see Aside
)

// String returns the word that rocectl pool list prints.
func (s State) String() string {
	names := map[State]string{Leased: "leased", Released: "quarantined", Conflicted: "conflict", SetAside: "set-aside"}
	return cmp.Or(names[s], "unknown")
}

// Spot is an address of a pool.
type Spot struct {
	Pool string
	Addr netip.Addr
}

// Place is a leased address.
type Place struct {
	Spot
	Since time.Duration
	Early bool // leased before its quarantine was over
}

// Holding is what an owner has leased, in all pools. It is never empty.
type Holding struct {
	Owner  Owner
	Places []Place
}

// Quarantined is an address in quarantine.
type Quarantined struct {
	Spot
	State State // Released or Conflicted
	Freed time.Duration
	Owner Owner // the last one
}
