// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package plan turns requests, facts and leases into a list of operations. It is pure:
// no I/O, no clock, no randomness.
//
// It stands between the inputs (conf, ipam, kernel facts) and the executors in kernel,
// probe and rdma. Read op.go for what an operation is, execute.go for what an executor
// does, kinds.go for the table of kinds, make.go and phases.go for the operations of an
// attachment and their order, and then one file for each kind of operation. result.go has
// the results of CNI: those of other plugins as leases, and what the runtime is told.
package plan

import (
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Protocol marks routes and rules as ours (rtm_protocol, FRA_PROTOCOL).
const Protocol = 82

// Op is one reversible step of an attachment, as data: what is done, and where.
//
// The law for executors:
//
//   - Do is idempotent, and does all or nothing.
//   - Undo of a missing thing is success. Undo removes only what carries our
//     mark: the link alias, or the protocol number on routes and rules. Of
//     macvlans in the pod it also removes those with our MAC or an address of ours.
//   - Check changes nothing.
//   - All act in the namespace they were opened at, never in the ambient one.
type Op struct {
	// Place is the namespace in which the operation acts.
	Place Place
	// Shared says that several attachments may have this operation. The first one does it,
	// and it is undone with the last record that has it.
	Shared bool
	Kind   Kind
}

// Place is a namespace in which operations act.
type Place uint8

// The places.
const (
	Pod  Place = iota // the pod's namespace: what is in it goes with it
	Host              // the host's namespace: what is in it stays when the pod's is gone
)

// Kind is what an operation does: a plain struct that survives JSON and has a row in kinds.go.
type Kind interface {
	// commands returns what Op.Commands does, for an operation of this kind.
	commands(in namespaces) []string
}

// Ops is a list of operations in the order in which they are done.
type Ops []Op

// InPod returns operations that act in the pod's namespace.
func InPod(kinds ...Kind) Ops { return at(Pod, kinds) }

// OnHost returns operations that act in the host's namespace.
func OnHost(kinds ...Kind) Ops { return at(Host, kinds) }

func at[K Kind](p Place, kinds []K) Ops {
	var out Ops
	for _, k := range kinds {
		out = append(out, Op{Place: p, Kind: k})
	}
	return out
}

// All returns the operations of one kind.
func All[K Kind](ops Ops) iter.Seq[K] {
	return func(yield func(K) bool) {
		for _, op := range ops {
			if k, ok := op.Kind.(K); ok && !yield(k) {
				return
			}
		}
	}
}

// Is says whether an operation is of a kind.
func Is[K Kind](op Op) bool { _, ok := op.Kind.(K); return ok }

// At returns the operations that act at a place.
func (o Ops) At(p Place) Ops {
	return o.without(func(op Op) bool { return op.Place != p })
}

func (o Ops) without(is func(Op) bool) Ops { return slices.DeleteFunc(slices.Clone(o), is) }

// Same says whether two operations do the same at the same place.
func (o Op) Same(other Op) bool { return reflect.DeepEqual(o, other) }

// SharedWith says whether two attachments have the same shared thing. A link is the same
// if it has the same name, whatever else was known of it.
func (o Op) SharedWith(other Op) bool {
	if o.Shared && other.Shared && o.row().makesLink && other.row().makesLink {
		return o.Place == other.Place && o.Link() == other.Link()
	}
	return o.Same(other)
}

// Runs returns the operations in runs: a new one begins where kind, place or Shared changes.
func (o Ops) Runs() []Ops {
	var out []Ops
	for i, op := range o {
		if i == 0 || !op.alike(o[i-1]) {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], op)
	}
	return out
}

func (o Op) alike(other Op) bool {
	return o.Place == other.Place && o.Shared == other.Shared && reflect.TypeOf(o.Kind) == reflect.TypeOf(other.Kind)
}

// Commands returns the commands with which an operator would do the same in the host's
// namespace. netns is the pod's namespace, as its name in /run/netns or as a path. A line
// that starts with "#" is for what has no command.
func (o Op) Commands(netns string) []string {
	return o.Kind.commands(namespaces{pod: netns, place: o.Place})
}

// Commands returns the commands of all operations, in order.
func (o Ops) Commands(netns string) []string {
	var out []string
	for _, op := range o {
		out = append(out, op.Commands(netns)...)
	}
	return out
}

// namespaces says how commands name the namespaces of an operation.
type namespaces struct {
	pod   string
	place Place
}

func (n namespaces) ip() string {
	if n.place == Host {
		return "ip"
	}
	return IP(n.pod)
}

func (n namespaces) run(format string, args ...any) string {
	command := shell.Command(format, args...)
	if n.place == Host {
		return command
	}
	return Exec(n.pod) + " " + command
}

// NetnsName returns the name of the namespace at a path, in the form of Commands: its name in
// /run/netns, or the path.
func NetnsName(path string) string {
	for _, folder := range []string{"/run/netns/", "/var/run/netns/"} {
		if name, ok := strings.CutPrefix(path, folder); ok {
			return name
		}
	}
	return path
}

// IP returns how to call ip(8) for a namespace. netns is its name in /run/netns
// or a path.
func IP(netns string) string {
	if strings.Contains(netns, "/") {
		return Exec(netns) + " ip"
	}
	return shell.Command("ip -n %s", netns)
}

// Exec returns how to run a program in a namespace. netns is as for IP.
func Exec(netns string) string {
	if strings.Contains(netns, "/") {
		return shell.Command("nsenter --net=%s", netns)
	}
	return shell.Command("ip netns exec %s", netns)
}

// String returns the place as messages name it.
func (p Place) String() string {
	if p == Host {
		return "the host"
	}
	return "the pod"
}

// Mark returns the alias that marks a link as ours and names its attachment. On
// the links of rails after the first, "/" and the number of the rail follow.
func Mark(at conf.Attachment) string {
	return fmt.Sprintf("%s%s/%s", MarkPrefix, at.ContainerID, at.IfName)
}

func railMark(at conf.Attachment, rail int) string {
	if rail == 0 {
		return Mark(at)
	}
	return fmt.Sprintf("%s/%d", Mark(at), rail)
}
