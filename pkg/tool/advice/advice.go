// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package advice finds the settings that programs need to use the rails of a pod: NCCL,
// NVSHMEM, UCX, Mooncake, vLLM, SGLang and perftest.
//
// It reads nothing: rails and GID tables come from the package gids. Some programs choose an
// entry by themselves; this file computes their choices from their sources, which are named.
package advice

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

// Variable is an environment variable.
type Variable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Settings are what programs need to use the rails, and the reasons.
type Settings struct {
	Set       []Variable `json:"set"`
	Why       []string   `json:"why,omitempty"`
	Perftest  []string   `json:"perftest"` // a command for each rail
	undecided []string
}

// Tell returns the settings that NCCL, NVSHMEM, UCX, Mooncake, vLLM, SGLang and perftest
// need in a namespace. NIXL, LMCache and Open MPI use UCX or Mooncake, DeepEP uses NVSHMEM.
// Programs use the interface of its default route for their own connections. docs/rdma.md
// has a table of the variables, with the version and the file that reads each.
//
// Errors: NoGID when no setting of NCCL leads to the GIDs of all rails. The settings
// that Tell returns are correct even then, but not complete.
func Tell(ns gids.Namespace) (Settings, error) {
	var s Settings
	rails := ns.Rails
	for _, r := range rails {
		s.Why = append(s.Why, r.Notes...)
		s.Perftest = append(s.Perftest, shell.Command("ib_write_bw -d %s -i %d -x %d", r.Port.Device.Name, r.Port.Number, r.Index))
	}
	used := s.onePerPort(rails)
	s.nccl(used)
	s.nvshmem(used)
	s.merge(used)
	s.ucx(used)
	s.mooncake(used)
	if ns.Apart != "" { // programs would connect rails of different numbers
		s.why("NCCL_CROSS_NIC=0 and MC_ENABLE_DEST_DEVICE_AFFINITY=1, because the pod has no route from %s: a rail reaches only the same rail of other pods", ns.Apart)
		s.set("NCCL_CROSS_NIC", "0")
		s.set("MC_ENABLE_DEST_DEVICE_AFFINITY", "1") // then Mooncake takes the device of the same name at the peer
	}
	if ns.Out != "" {
		s.set("NCCL_SOCKET_IFNAME", "="+string(ns.Out))
		s.set("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", string(ns.Out))
		s.set("GLOO_SOCKET_IFNAME", string(ns.Out)) // of PyTorch, which needs the exact name
	}
	if ns.OutAddr.IsValid() { // other parts of the program connect to it
		s.set("VLLM_HOST_IP", ns.OutAddr.String())
		s.set("VLLM_NIXL_SIDE_CHANNEL_HOST", ns.OutAddr.String()) // its default is localhost
		s.set("SGLANG_HOST_IP", ns.OutAddr.String())
	}
	if len(s.undecided) == 0 {
		return s, nil
	}
	return s, cnierr.New(cnierr.NoGID, "choose GID index for", joined(used, ", ", func(r gids.Rail) string { return string(r.Link) }),
		"start one process for each rail, each with what rocectl env --ifname NAME prints, or delete the pod: if the network has rdma.gidIndex equal, ADD makes the indexes equal",
		"%s", strings.Join(s.undecided, "; "))
}

func (s *Settings) set(name, value string) { s.Set = append(s.Set, Variable{name, value}) }

func (s *Settings) why(format string, args ...any) {
	s.Why = append(s.Why, fmt.Sprintf(format, args...))
}

// unsaid notes that a variable has no correct value.
func (s *Settings) unsaid(name, why string) {
	s.why("no %s: %s", name, why)
	s.undecided = append(s.undecided, why)
}

// onePerPort returns the first rail of each port. For programs, a port is one rail
// with one GID.
func (s *Settings) onePerPort(rails []gids.Rail) []gids.Rail {
	var out []gids.Rail
	for _, r := range rails {
		i := slices.IndexFunc(out, func(o gids.Rail) bool { return o.Port.String() == r.Port.String() })
		if i < 0 {
			out = append(out, r)
			continue
		}
		s.why("%s is left out: %s has %s already, and a program uses one GID of a port", r.Link, out[i].Link, r.Port)
	}
	return out
}

func devices(rails []gids.Rail) string {
	return joined(rails, ",", func(r gids.Rail) string { return r.Port.String() })
}

// joined returns texts of rails, with a separator between them.
func joined(rails []gids.Rail, separator string, text func(gids.Rail) string) string {
	out := make([]string, len(rails))
	for i, r := range rails {
		out[i] = text(r)
	}
	return strings.Join(out, separator)
}

func commonIndex(rails []gids.Rail) (int, bool) {
	index := rails[0].Index
	return index, !slices.ContainsFunc(rails, func(r gids.Rail) bool { return r.Index != index })
}

func indexes(rails []gids.Rail) string {
	return joined(rails, ", ", func(r gids.Rail) string { return fmt.Sprintf("%s %d", r.Link, r.Index) })
}

// NCCL takes one GID index for all rails (NCCL_IB_GID_INDEX). Without one, NCCL since
// 2.21 chooses an entry itself. Its preference is the same for all rails: a family, a
// RoCE version and a range of addresses. This file computes that choice, from
// src/transport/net_ib of 2.21 to 2.31, because in a table that pods share the chosen
// entry is often that of another pod. NCCL starts at index 0. It never leaves an
// entry of the wanted family and version, even if that entry is outside of the range.

// ncclChoice returns the GID index that NCCL chooses in a table when
// NCCL_IB_GID_INDEX is -1 and NCCL_IB_ROCE_VERSION_NUM is 2 (ncclIbGetGidIndex).
func ncclChoice(p gids.Port, ipv6 bool, within netip.Prefix) int {
	at := map[int]gidtable.Entry{}
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
func ncclPrefers(candidate, current gidtable.Entry, ipv6 bool, within netip.Prefix) bool {
	if !within.Contains(candidate.GID) { // the range is of the wanted family
		return false
	}
	if current.GID.Is4() == ipv6 {
		return true
	}
	if !ncclValid(candidate) {
		return false
	}
	return (current.Type != candidate.Type || !ncclValid(current)) && candidate.Type == gidtable.RoCEv2
}

// ncclValid is validGid of NCCL.
func ncclValid(e gidtable.Entry) bool {
	return e.GID.IsValid() && !(e.GID.Is6() && e.GID.IsLinkLocalUnicast())
}

func (s *Settings) nccl(rails []gids.Rail) {
	s.set("NCCL_IB_HCA", "="+devices(rails))
	if index, same := commonIndex(rails); same {
		s.set("NCCL_IB_GID_INDEX", fmt.Sprint(index))
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
		s.unsaid("NCCL_IB_GID_INDEX", differ+"; with addresses of both families it cannot find them by itself either")
		return
	}
	if len(wrong) > 0 {
		s.unsaid("NCCL_IB_GID_INDEX", fmt.Sprintf("%s; by itself, with NCCL_IB_ADDR_RANGE=%s, it would take %s", differ, within, strings.Join(wrong, ", ")))
		return
	}
	s.why("no NCCL_IB_GID_INDEX: %s. From the range it finds these entries by itself, since NCCL 2.26.2; 2.21 to 2.26.1 can abort at an entry that they cannot read, and older ones need equal indexes", differ)
	family := "AF_INET"
	if ipv6 {
		family = "AF_INET6"
	}
	s.set("NCCL_IB_GID_INDEX", "-1")
	s.set("NCCL_IB_ROCE_VERSION_NUM", "2")
	s.set("NCCL_IB_ADDR_FAMILY", family)
	s.set("NCCL_IB_ADDR_RANGE", within.String())
}

// nvshmem adds the settings of NVSHMEM. It chooses an entry as NCCL does: its code is
// adapted from NCCL, and its variables have the same endings (env_defs_internal.h of
// NVSHMEM 3). NVSHMEM uses the list of devices only with NVSHMEM_ENABLE_NIC_PE_MAPPING=1.
func (s *Settings) nvshmem(rails []gids.Rail) {
	list := []Variable{{"NVSHMEM_HCA_LIST", devices(rails)}}
	for _, v := range s.Set {
		ending, _ := strings.CutPrefix(v.Name, "NCCL_")
		if v.Name != "NCCL_IB_HCA" {
			list = append(list, Variable{"NVSHMEM_" + ending, v.Value})
		}
	}
	s.Set = append(s.Set, list...)
}

// common returns the longest prefix that contains the addresses of all rails. It
// returns the zero value if the addresses are of two families.
func common(rails []gids.Rail) netip.Prefix {
	first := rails[0].Addr
	for bits := first.BitLen(); bits >= 0; bits-- {
		p := netip.PrefixFrom(first, bits).Masked()
		if !slices.ContainsFunc(rails, func(r gids.Rail) bool { return !p.Contains(r.Addr) }) {
			return p
		}
	}
	return netip.Prefix{}
}

// merge adds the settings without which NCCL joins rails to one NIC (ncclIbMatchVfPath,
// ncclTopoMakeVNics). For NCCL, all functions of one PCI bus are VFs of one NIC, unless
// NCCL_IB_MERGE_VFS is 0. Functions of one PCI device are ports of one NIC in any case,
// and it joins ports unless NCCL_IB_MERGE_NICS is 0. The ports of a physical NIC are left
// to NCCL: it has two of them when there are two cables.
func (s *Settings) merge(rails []gids.Rail) {
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
		s.why("NCCL_IB_MERGE_VFS=0, because NCCL takes functions of one PCI bus for VFs of one NIC: %s", strings.Join(buses, ", "))
		s.set("NCCL_IB_MERGE_VFS", "0")
	}
	if len(devices) > 0 {
		s.why("NCCL_IB_MERGE_NICS=0, because NCCL joins functions of one PCI device, also with NCCL_IB_MERGE_VFS=0: %s", strings.Join(devices, ", "))
		s.set("NCCL_IB_MERGE_NICS", "0")
	}
}

// sameFunction says whether the PCI addresses of two devices have the same bus, and the
// same device number. The last two parts of 0000:0b:00.2 are device number and function.
func sameFunction(a, b gids.Port) (bus, device bool) {
	const function, slot = len(".2"), len("00.2")
	short := min(len(a.Function), len(b.Function)) < slot
	if short || a.Device.Name == b.Device.Name {
		return false, false // Soft-RoCE, or two ports of one device
	}
	cut := func(p gids.Port, n int) string { return p.Function[:len(p.Function)-n] }
	return cut(a, slot) == cut(b, slot), cut(a, function) == cut(b, function)
}

// ucx adds the settings of UCX. UCX takes one GID index for all rails. Without a
// setting it takes the first RoCE v2 entry of IPv4, or else of IPv6
// (uct_ib_device_select_gid). Since 1.18 it can be told to take only entries in a list of
// subnets (ROCE_SUBNETS of uct_ib_iface_config_table). UCX refuses the list beside an
// index. Its own message calls the list ROCE_SUBNET_LIST, which is no variable.
//
// UCX connects by UD, and compares the GID in each UD packet with its own. Before its pull
// request 10209 it took the RoCE version from a field that only NVIDIA's drivers fill. NVIDIA's
// models have names like MT4129.
func (s *Settings) ucx(rails []gids.Rail) {
	s.set("UCX_NET_DEVICES", devices(rails))
	if slices.ContainsFunc(rails, func(r gids.Rail) bool { return !strings.HasPrefix(r.Port.Model, "MT") }) {
		s.why("UCX_UD_VERBS_ETH_DGID_CHECK=n, because UCX of 2024 and older drops all UD packets from NICs that are not NVIDIA's, and ends with Endpoint timeout")
		s.set("UCX_UD_VERBS_ETH_DGID_CHECK", "n")
	}
	index, same := commonIndex(rails)
	if same {
		s.set("UCX_IB_GID_INDEX", fmt.Sprint(index))
		return
	}
	wrong := ucxWrong(rails, netip.Addr.IsValid) // any entry
	if wrong == "" {
		s.set("UCX_IB_GID_INDEX", "auto")
		return
	}
	differ := fmt.Sprintf("no UCX_IB_GID_INDEX: the indexes differ (%s), UCX takes one for all rails, and by itself it would take %s", indexes(rails), wrong)
	subnets, ok := ownAddresses(rails)
	if !ok {
		s.why("%s", differ)
		return
	}
	s.why("%s. Since UCX 1.18 it finds them from UCX_IB_ROCE_SUBNETS. Older ones warn of an unused variable and take the wrong entry: use --ifname", differ)
	s.set("UCX_IB_ROCE_SUBNETS", subnets)
}

// mooncake adds the settings of Mooncake's Transfer Engine and Store. It takes one GID
// index for all rails: without one, that of NCCL, and without a valid one, the first RoCE v2
// entry in an order that differs between its versions (rdma_context.cpp). Its lists have
// names of devices: it uses port 1.
func (s *Settings) mooncake(rails []gids.Rail) {
	if index, same := commonIndex(rails); same {
		s.set("MC_GID_INDEX", fmt.Sprint(index))
	} else {
		s.why("no MC_GID_INDEX: the indexes differ (%s), and Mooncake takes one for all rails: use --ifname", indexes(rails))
	}
	var names []string
	for _, r := range rails {
		if !slices.Contains(names, r.Port.Device.Name) {
			names = append(names, r.Port.Device.Name)
		}
	}
	for _, list := range []string{"MC_TE_FILTERS", "MC_MS_FILTERS", "MOONCAKE_DEVICE"} { // of the engine, of the Store, of SGLang
		s.set(list, strings.Join(names, ","))
	}
}

// ucxWrong returns "2 on net1" for the first rail of which UCX takes another entry, among
// those that it may take; "" if it takes the right ones.
func ucxWrong(rails []gids.Rail, may func(netip.Addr) bool) string {
	for _, r := range rails {
		if got := ucxChoice(r.Port, may); got != r.Index {
			return fmt.Sprintf("%d on %s", got, r.Link)
		}
	}
	return ""
}

func ucxChoice(p gids.Port, may func(netip.Addr) bool) int {
	for _, ipv4 := range []bool{true, false} {
		for _, e := range p.Entries {
			if e.Type == gidtable.RoCEv2 && e.GID.Is4() == ipv4 && may(e.GID) {
				return e.Index
			}
		}
	}
	return 0
}

// ownAddresses returns the addresses of the rails as UCX_IB_ROCE_SUBNETS takes them, and
// whether UCX finds the entries of the rails with it. UCX documents the list for IPv4
// only. Another entry of the same address can come first.
func ownAddresses(rails []gids.Rail) (list string, ok bool) {
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
