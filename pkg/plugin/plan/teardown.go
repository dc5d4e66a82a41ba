// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Teardown returns the operations that must be undone one by one. The kernel
// removes a link's settings, addresses and routes together with the link. So
// only the link and the rules remain of an attachment with a link that we made. The
// rules come first, so that they are undone last: a pod can add any number of rules
// that agree with ours, and the link must not wait until they are deleted.
func (o Ops) Teardown() Ops {
	type link struct {
		place Place
		name  conf.LinkName
	}
	made := map[link]bool{}
	var out Ops
	for _, op := range o {
		r, on := op.row(), link{op.Place, op.Link()}
		if r.makesLink {
			made[on] = true
			if r.podEnd != nil {
				made[link{Pod, r.podEnd(op.Kind)}] = true
			}
		}
		if r.goesWithLink && made[on] {
			continue
		}
		out = append(out, op)
	}
	late := func(op Op) bool { return op.row().afterLinks }
	early := slices.DeleteFunc(slices.Clone(out), late)
	return append(slices.DeleteFunc(out, func(op Op) bool { return !late(op) }), early...)
}

// Links returns the operations that make links; OnLinks returns all others.
// Undo OnLinks first, then Links: so a link stays until everything else is
// gone.
func (o Ops) Links() Ops { return o.where(true) }

// OnLinks returns the operations that Links does not return.
func (o Ops) OnLinks() Ops { return o.where(false) }

func (o Ops) where(makesLink bool) Ops {
	var out Ops
	for _, op := range o {
		if op.row().makesLink == makesLink {
			out = append(out, op)
		}
	}
	return out
}

// Unrecorded returns what can be undone of an attachment that has lost its
// record: the links that carry its mark, and the rules for the addresses of the
// link in the pod.
func Unrecorded(at conf.Attachment) Ops {
	mark := Mark(at)
	return append(OnHost(Veth{Name: hostLinkName(at), Mark: mark}), InPod(Child{Name: at.IfName, Mark: mark}, Orphans{Link: at.IfName, Mark: mark})...)
}

// Orphans are what is left of an attachment after its record was lost: the
// links of its other rails, and the rules that have our protocol number and an
// address of the link with Mark. No plan has them. DEL undoes them before the
// link itself; they are never done.
type Orphans struct {
	Link conf.LinkName `json:"link"`
	Mark string        `json:"mark"`
}

// commands implements Kind.
func (o Orphans) commands(in namespaces) []string {
	return []string{shell.Command("# rules of protocol %d from the addresses of %s in %s (", Protocol, o.Link, in.pod) + in.ip() + fmt.Sprintf(" rule show protocol %d)", Protocol)}
}

// Carriers are the macvlans and ipvlans of the pod that have one of the addresses, although the
// attachment's own links are gone: a link of ours with another alias and MAC, or a copy
// that the pod has made. No plan has them. DEL undoes them before it releases the
// addresses; they are never done. Their aliases do not matter, because the pod can set
// any alias, also one with the form of a mark.
type Carriers struct {
	Addresses []netip.Addr `json:"addresses"`
}

// commands implements Kind.
func (c Carriers) commands(in namespaces) []string {
	var addrs []string
	for _, a := range c.Addresses {
		addrs = append(addrs, a.String())
	}
	return []string{fmt.Sprintf("# macvlans and ipvlans in %s with %s (%s -d addr show)", shell.Word(in.pod), strings.Join(addrs, ", "), in.ip())}
}

// MarkPrefix begins the alias of each link of ours.
const MarkPrefix = "roce:"
