// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
)

// leftOut says which addresses are no rail although they should be, and why, and which
// have their entry in another device than when the pod was made. In a pod
// there are no records, and a port does not tell its interface. So it can only name the
// ports that may be the reason.
func (h Hints) leftOut(ports []Port, addrs []Addr) []string {
	var out []string
	for _, a := range slices.SortedFunc(maps.Keys(h.Recorded), Addr.compare) {
		r := h.Recorded[a]
		switch {
		case !has(ports, a.Addr):
			out = append(out, fmt.Sprintf("%s %s is left out: %s", a.Link, a.Addr, r.lost(ports)))
		case !slices.ContainsFunc(ports, func(p Port) bool { return p.Device.Name == r.Device }):
			out = append(out, fmt.Sprintf("%s %s: ADD found its entry in %s, and no device has that name now: rocectl check", a.Link, a.Addr, r.Device))
		}
	}
	off := slices.DeleteFunc(slices.Clone(ports), func(p Port) bool { return !p.off() })
	if len(off) == 0 || h.Recorded != nil {
		return out
	}
	rail := map[conf.LinkName]bool{h.Out: true}
	for _, a := range addrs {
		rail[a.Link] = rail[a.Link] || has(ports, a.Addr)
	}
	for _, a := range addrs {
		if rail[a.Link] || a.Addr.IsLoopback() || a.Addr.IsLinkLocalUnicast() {
			continue
		}
		out = append(out, fmt.Sprintf("%s %s is left out: it has no entry. On %s RoCE is off, because the port has no GID table: is %s on it? rocectl env on the node tells",
			a.Link, a.Addr, strings.Join(texts(off), ", "), a.Link))
		rail[a.Link] = true // once for each interface
	}
	return out
}

// has says whether a port has a RoCE v2 entry of an address.
func has(ports []Port, a netip.Addr) bool {
	return slices.ContainsFunc(ports, func(p Port) bool { return len(p.places(a, rdma.RoCEv2)) > 0 })
}

// lost says why an address has no entry in the device in which ADD found one.
func (r Recorded) lost(ports []Port) string {
	of := slices.DeleteFunc(slices.Clone(ports), func(p Port) bool { return p.Device.Name != r.Device })
	off := slices.DeleteFunc(slices.Clone(of), func(p Port) bool { return !p.off() })
	switch {
	case len(of) == 0:
		return fmt.Sprintf("it had an entry in %s when the pod was made, and that device is not there now: rdma dev on the node", r.Device)
	case len(off) > 0:
		return fmt.Sprintf("RoCE is off on %s: the port has no GID table. %s", strings.Join(texts(off), ", "), "on the node, "+rdma.TurnOnRoCE)
	}
	return fmt.Sprintf("it had an entry in %s when the pod was made, and has none now; rocectl check shows more", r.Device)
}

// off returns the ports without a GID table that are those of addresses: by the records,
// or, without records, all.
func (h Hints) off(ports []Port, addrs []Addr) []Port {
	mine := func(p Port) bool {
		return slices.ContainsFunc(addrs, func(a Addr) bool { return h.recorded(a).Device == p.Device.Name })
	}
	return slices.DeleteFunc(slices.Clone(ports), func(p Port) bool { return !p.off() || len(h.Recorded) > 0 && !mine(p) })
}
