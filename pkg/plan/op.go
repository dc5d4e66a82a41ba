// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package plan turns requests, facts and leases into a list of operations. It is pure:
// no I/O, no clock, no randomness.
//
// It stands between the inputs (conf, ipam, kernel facts) and the execution (apply
// with the executors of kernel, probe and rdma). Read op.go for what an operation is,
// make.go for the operations of an attachment, phases.go for their order on several
// rails, and then one file for each kind of operation.
package plan

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/conf"
)

// Protocol marks routes and rules as ours (rtm_protocol, FRA_PROTOCOL).
const Protocol = 82

// Op is one reversible step of an attachment, as data. The set of kinds is
// closed; each kind is a plain struct that survives JSON.
//
// The law for executors: Do is all-or-nothing and idempotent. Undo of a
// missing thing is success, and Undo removes only what carries our mark: the
// link alias, or the protocol number on routes and rules. Check changes
// nothing. All act in the namespace they were opened at, never in the ambient
// one.
type Op interface {
	// Commands returns what an operator would type in the host's namespace to
	// do the same; netns is the pod's namespace, as its name in /run/netns or
	// as a path. A line that starts with "#" says something that has no
	// command.
	Commands(netns string) []string

	kind() string
}

// Ops is a list of operations in the order in which they are done.
type Ops []Op

// Runs returns the operations cut into runs: each as long as the kind stays the
// same.
func (o Ops) Runs() []Ops {
	var out []Ops
	for i, op := range o {
		if i == 0 || op.kind() != o[i-1].kind() {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], op)
	}
	return out
}

// envelope is one operation in JSON: the kind, and the fields beside it.
type envelope struct {
	Kind string          `json:"op"`
	Args json.RawMessage `json:"args"`
}

// MarshalJSON writes [{"op": kind, "args": {...}}, ...].
func (o Ops) MarshalJSON() ([]byte, error) {
	out := make([]envelope, 0, len(o))
	for _, op := range o {
		args, err := json.Marshal(op)
		if err != nil {
			return nil, err
		}
		out = append(out, envelope{op.kind(), args})
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote. An unknown kind is an error: a
// record of a newer version must not be undone by halves.
func (o *Ops) UnmarshalJSON(b []byte) error {
	var in []envelope
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	ops := make(Ops, 0, len(in))
	for i, e := range in {
		op, err := decode(e)
		if err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
		ops = append(ops, op)
	}
	*o = ops
	return nil
}

func decode(e envelope) (Op, error) {
	switch e.Kind {
	case Macvlan{}.kind():
		return unmarshal[Macvlan](e.Args)
	case Adopt{}.kind():
		return unmarshal[Adopt](e.Args)
	case Sysctl{}.kind():
		return unmarshal[Sysctl](e.Args)
	case Up{}.kind():
		return unmarshal[Up](e.Args)
	case Conflict{}.kind():
		return unmarshal[Conflict](e.Args)
	case Address{}.kind():
		return unmarshal[Address](e.Args)
	case Route{}.kind():
		return unmarshal[Route](e.Args)
	case Rule{}.kind():
		return unmarshal[Rule](e.Args)
	case Orphans{}.kind():
		return unmarshal[Orphans](e.Args)
	case Gateway{}.kind():
		return unmarshal[Gateway](e.Args)
	case Announce{}.kind():
		return unmarshal[Announce](e.Args)
	case Move{}.kind():
		return unmarshal[Move](e.Args)
	case Port{}.kind():
		return unmarshal[Port](e.Args)
	case GID{}.kind():
		return unmarshal[GID](e.Args)
	case DeviceInfo{}.kind():
		return unmarshal[DeviceInfo](e.Args)
	}
	return nil, fmt.Errorf("unknown kind %q", e.Kind)
}

func unmarshal[T Op](b []byte) (Op, error) {
	var op T
	err := json.Unmarshal(b, &op)
	return op, err
}

// Commands returns the commands of all operations, in order.
func (o Ops) Commands(netns string) []string {
	var out []string
	for _, op := range o {
		out = append(out, op.Commands(netns)...)
	}
	return out
}

// IP returns how ip(8) is called to work in a namespace, given by its name in
// /run/netns or as a path.
func IP(netns string) string {
	if strings.Contains(netns, "/") {
		return Exec(netns) + " ip"
	}
	return "ip -n " + netns
}

// Exec returns how a program is run in a namespace, given as for IP.
func Exec(netns string) string {
	if strings.Contains(netns, "/") {
		return "nsenter --net=" + netns
	}
	return "ip netns exec " + netns
}

// Mark returns the alias that says a link is ours, and of which attachment. On
// the links of rails after the first, "/" and the rail's number follow.
func Mark(id conf.ContainerID, ifName conf.LinkName) string {
	return fmt.Sprintf("roce:%s/%s", id, ifName)
}

func railMark(id conf.ContainerID, ifName conf.LinkName, rail int) string {
	if rail == 0 {
		return Mark(id, ifName)
	}
	return fmt.Sprintf("%s/%d", Mark(id, ifName), rail)
}
