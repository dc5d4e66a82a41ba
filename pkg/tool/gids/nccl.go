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

// NCCL takes one GID index for all rails (NCCL_IB_GID_INDEX). Without one, NCCL since
// 2.21 chooses an entry itself. Its preference is the same for all rails: a family, a
// RoCE version and a range of addresses. This file computes that choice, from
// src/transport/net_ib of 2.21 to 2.31, because in a table that pods share the chosen
// entry is often that of another pod. NCCL starts at index 0. It never leaves an
// entry of the wanted family and version, even if that entry is outside of the range.

// ncclChoice returns the GID index that NCCL chooses in a table when
// NCCL_IB_GID_INDEX is -1 and NCCL_IB_ROCE_VERSION_NUM is 2 (ncclIbGetGidIndex).
func ncclChoice(p Port, ipv6 bool, within netip.Prefix) int {
	at := map[int]rdma.Entry{}
	for _, e := range p.Entries {
		at[e.Index] = e
	}
	chosen := 0
	for i := 1; i < p.Size; i++ {
		if ncclPrefers(at[i], at[chosen], ipv6, within) {
			chosen = i
		}
	}
	return chosen
}

// ncclPrefers says whether NCCL prefers the candidate to its current entry
// (ncclUpdateGidIndex). An unused index is the zero Entry. For NCCL that is an IPv6
// entry.
func ncclPrefers(candidate, current rdma.Entry, ipv6 bool, within netip.Prefix) bool {
	if candidate.GID.Is4() == ipv6 || !within.Contains(candidate.GID) {
		return false
	}
	if current.GID.Is4() == ipv6 {
		return true
	}
	if !ncclValid(candidate) {
		return false
	}
	return (current.Type != candidate.Type || !ncclValid(current)) && candidate.Type == rdma.RoCEv2
}

// ncclValid is validGid of NCCL.
func ncclValid(e rdma.Entry) bool {
	return e.GID.IsValid() && !(e.GID.Is6() && e.GID.IsLinkLocalUnicast())
}

// nccl adds the settings of NCCL.
func (a *Advice) nccl(rails []Rail) {
	a.set("NCCL_IB_HCA", "="+strings.Join(a.devices(rails), ","))
	if index, same := commonIndex(rails); same {
		a.set("NCCL_IB_GID_INDEX", fmt.Sprint(index))
		return
	}
	within := common(rails)
	ipv6 := rails[0].Addr.Is6()
	var wrong []string
	for _, r := range rails {
		if got := ncclChoice(r.Port, ipv6, within); got != r.Index {
			wrong = append(wrong, fmt.Sprintf("%d instead of %d on %s", got, r.Index, r.Link))
		}
	}
	differ := "the indexes differ (" + indexes(rails) + "), and NCCL takes one for all rails"
	if !within.IsValid() {
		a.unsaid("NCCL_IB_GID_INDEX", differ+"; with addresses of both families it cannot find them by itself either")
		return
	}
	if len(wrong) > 0 {
		a.unsaid("NCCL_IB_GID_INDEX", fmt.Sprintf("%s; by itself, with NCCL_IB_ADDR_RANGE=%s, it would take %s", differ, within, strings.Join(wrong, ", ")))
		return
	}
	a.why("no NCCL_IB_GID_INDEX: %s. From the range it finds these entries by itself, since NCCL 2.26.2; 2.21 to 2.26.1 can abort at an entry that they cannot read, and older ones need equal indexes", differ)
	family := "AF_INET"
	if ipv6 {
		family = "AF_INET6"
	}
	a.set("NCCL_IB_GID_INDEX", "-1")
	a.set("NCCL_IB_ROCE_VERSION_NUM", "2")
	a.set("NCCL_IB_ADDR_FAMILY", family)
	a.set("NCCL_IB_ADDR_RANGE", within.String())
}

// nvshmem adds the settings of NVSHMEM. It chooses an entry as NCCL does: its code is
// adapted from NCCL, and its variables have the same endings (env_defs_internal.h of
// NVSHMEM 3). NVSHMEM uses the list of devices only with NVSHMEM_ENABLE_NIC_PE_MAPPING=1.
func (a *Advice) nvshmem(rails []Rail) {
	list := []Variable{{"NVSHMEM_HCA_LIST", strings.Join(a.devices(rails), ",")}}
	for _, v := range a.Set {
		ending, _ := strings.CutPrefix(v.Name, "NCCL_")
		if v.Name != "NCCL_IB_HCA" {
			list = append(list, Variable{"NVSHMEM_" + ending, v.Value})
		}
	}
	a.Set = append(a.Set, list...)
}

// common returns the longest prefix that contains the addresses of all rails. It
// returns the zero value if the addresses are of two families.
func common(rails []Rail) netip.Prefix {
	first := rails[0].Addr
	for bits := first.BitLen(); bits >= 0; bits-- {
		p := netip.PrefixFrom(first, bits).Masked()
		if !slices.ContainsFunc(rails, func(r Rail) bool { return !p.Contains(r.Addr) }) {
			return p
		}
	}
	return netip.Prefix{}
}

// apart adds the settings without which NCCL joins rails to one NIC (ncclIbMatchVfPath,
// ncclTopoMakeVNics). For NCCL, all functions of one PCI bus are VFs of one NIC, unless
// NCCL_IB_MERGE_VFS is 0. Functions of one PCI device are ports of one NIC in any case,
// and it joins ports unless NCCL_IB_MERGE_NICS is 0. The ports of a physical NIC are left
// to NCCL: it has two of them when there are two cables.
func (a *Advice) apart(rails []Rail) {
	var buses, devices []string
	for i, r := range rails {
		for _, o := range rails[:i] {
			pair := fmt.Sprintf("%s on %s and %s on %s", o.Link, o.Port.Function, r.Link, r.Port.Function)
			bus, device := sameFunction(o.Port, r.Port)
			switch {
			case device && o.Port.Virtual && r.Port.Virtual:
				devices = append(devices, pair)
			case bus && !device:
				buses = append(buses, pair)
			}
		}
	}
	if len(buses) > 0 {
		a.why("NCCL_IB_MERGE_VFS=0, because NCCL takes functions of one PCI bus for VFs of one NIC: %s", strings.Join(buses, ", "))
		a.set("NCCL_IB_MERGE_VFS", "0")
	}
	if len(devices) > 0 {
		a.why("NCCL_IB_MERGE_NICS=0, because NCCL joins functions of one PCI device, also with NCCL_IB_MERGE_VFS=0: %s", strings.Join(devices, ", "))
		a.set("NCCL_IB_MERGE_NICS", "0")
	}
}

// sameFunction says whether the PCI addresses of two devices have the same bus, and the
// same device number. The last two parts of 0000:0b:00.2 are device number and function.
func sameFunction(a, b Port) (bus, device bool) {
	const function, slot = len(".2"), len("00.2")
	short := min(len(a.Function), len(b.Function)) < slot
	if short || a.Device.Name == b.Device.Name {
		return false, false // Soft-RoCE, or two ports of one device
	}
	cut := func(p Port, n int) string { return p.Function[:len(p.Function)-n] }
	return cut(a, slot) == cut(b, slot), cut(a, function) == cut(b, function)
}
