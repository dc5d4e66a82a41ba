// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
)

// ucx adds the settings of UCX. UCX takes one GID index for all rails. Without a
// setting it takes the first RoCE v2 entry of IPv4, or else of IPv6
// (uct_ib_device_select_gid). Since 1.18 it can be told to take only entries in a list of
// subnets (ROCE_SUBNETS of uct_ib_iface_config_table). UCX refuses the list beside an
// index. Its own message calls the list ROCE_SUBNET_LIST, which is no variable.
func (a *Advice) ucx(rails []Rail) {
	a.set("UCX_NET_DEVICES", strings.Join(a.devices(rails), ","))
	index, same := commonIndex(rails)
	if same {
		a.set("UCX_IB_GID_INDEX", fmt.Sprint(index))
		return
	}
	wrong := ucxWrong(rails, all)
	if wrong == "" {
		a.set("UCX_IB_GID_INDEX", "auto")
		return
	}
	differ := fmt.Sprintf("no UCX_IB_GID_INDEX: the indexes differ (%s), UCX takes one for all rails, and by itself it would take %s", indexes(rails), wrong)
	subnets, ok := ownAddresses(rails)
	if !ok {
		a.why("%s", differ)
		return
	}
	a.why("%s. Since UCX 1.18 it finds them from UCX_IB_ROCE_SUBNETS, which older ones ignore", differ)
	a.set("UCX_IB_ROCE_SUBNETS", subnets)
}

// ucxWrong returns "2 on net1" for the first rail of which UCX takes another entry, among
// those that it may take; "" if it takes the right ones.
func ucxWrong(rails []Rail, may func(netip.Addr) bool) string {
	for _, r := range rails {
		if got := ucxChoice(r.Port, may); got != r.Index {
			return fmt.Sprintf("%d on %s", got, r.Link)
		}
	}
	return ""
}

func all(netip.Addr) bool { return true }

func ucxChoice(p Port, may func(netip.Addr) bool) int {
	for _, ipv4 := range []bool{true, false} {
		for _, e := range p.Entries {
			if e.Type == rdma.RoCEv2 && e.GID.Is4() == ipv4 && may(e.GID) {
				return e.Index
			}
		}
	}
	return 0
}

// ownAddresses returns the addresses of the rails as UCX_IB_ROCE_SUBNETS takes them, and
// whether UCX finds the entries of the rails with it. UCX documents the list for IPv4
// only. Another entry of the same address can come first.
func ownAddresses(rails []Rail) (list string, ok bool) {
	var own []netip.Addr
	var out []string
	for _, r := range rails {
		if !r.Addr.Is4() {
			return "", false
		}
		own = append(own, r.Addr)
		out = append(out, netip.PrefixFrom(r.Addr, r.Addr.BitLen()).String())
	}
	wrong := ucxWrong(rails, func(a netip.Addr) bool { return slices.Contains(own, a) })
	return strings.Join(out, ","), wrong == ""
}
