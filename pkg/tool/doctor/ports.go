// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func (n Node) rdmaPorts(ctx context.Context) []report.Finding {
	ports, unknown := n.ports(ctx)
	if unknown != nil {
		return unknown
	}
	if len(ports) == 0 {
		return []report.Finding{cannotTell("there is no port", "rdma-devices")}
	}
	var out []report.Finding
	for _, p := range ports {
		out = append(out, n.portState(p).About(p.String()))
	}
	return out
}

func (n Node) portState(p nic.Port) report.Finding {
	layer, err := n.text("sys/" + p.Dir() + "/link_layer")
	if err != nil {
		return cannotTell("its link layer cannot be read: "+err.Error(), "the sysfs of the namespace that has the device")
	}
	pci := n.pci(p.Device.Name)
	switch {
	case layer == "InfiniBand":
		return problem("its link layer is InfiniBand, on which there is no macvlan and no RoCE",
			shell.Command("mlxconfig -d %s set LINK_TYPE_P%d=2 && mlxfwreset -d %s reset  # 2 is Ethernet; leave it, if the port is meant for InfiniBand", pci, p.Number, pci))
	case p.Device.Protocol == "":
		return problem("it speaks no RoCE: the NIC is in switchdev mode, or RoCE is off",
			shell.Command("devlink dev param set %s name enable_roce value true cmode driverinit && devlink dev reload %s", "pci/"+pci, "pci/"+pci))
	case p.Device.Protocol != roce:
		return problem("it speaks "+p.Device.Protocol+", not RoCE", "# "+discover.ToRoCE(p.Match, n.sys()))
	}
	return n.activity(p, layer)
}

// activity tells a port that is up from one that has to be set up, or plugged in.
func (n Node) activity(p nic.Port, layer string) report.Finding {
	if p.Own == nil && p.State != nldev.Active {
		return cannotTell(p.State.String()+", and its interface is not in this namespace", "the pod that has the interface: rocectl show")
	}
	if p.State != nldev.Active {
		name := p.Own.Name
		if p.Own.Flags&unix.IFF_UP == 0 {
			return problem(p.State.String()+", because "+name+" is down", shell.Command("ip link set %s up", name)+"  # and so in the configuration of the network of the node")
		}
		return problem(p.State.String()+", although "+name+" is up: it has no carrier", shell.Command("ethtool %s", name)+"  # then look at the cable, and at the port of the switch")
	}
	rate, err := n.text("sys/" + p.Dir() + "/rate")
	if err != nil {
		return cannotTell("ACTIVE; its speed cannot be read: "+err.Error(), "the sysfs of the namespace that has the device")
	}
	name := "interface in another namespace"
	if p.Own != nil {
		name = p.Own.Name
	}
	return ok("ACTIVE, %s, %s, %s", layer, name, rate)
}

func (n Node) rdmaMTU(ctx context.Context) []report.Finding {
	return n.eachPort(ctx, func(p nic.Port) report.Finding {
		if p.Own == nil {
			return cannotTell("its interface is not in this namespace", "the pod that has the interface: rocectl show")
		}
		name, mtu := p.Own.Name, p.Own.MTU
		found := fmt.Sprintf("MTU %d of %s, so RoCE uses %d", mtu, name, roceMTU(mtu))
		if roceMTU(mtu) == largestMTU {
			return ok("%s", found)
		}
		return problem(found, shell.Command("ip link set %s mtu 9000  # and so in the configuration of the network of the node, and on the switch: at least %d", name, largestMTU+headers))
	})
}

const (
	largestMTU = 4096
	// headers is what the kernel deducts from the MTU of an interface: GRH, UDP, BTH,
	// the two largest extensions and ICRC (iboe_get_mtu).
	headers = 40 + 8 + 12 + 4 + 28 + 4
)

// roceMTU returns the path MTU of RoCE over an interface; 0 if none fits.
func roceMTU(mtu int) int {
	for m := largestMTU; m >= 256; m /= 2 {
		if mtu-headers >= m {
			return m
		}
	}
	return 0
}

// rdmaBond asks whether the RDMA port of a bonded NIC belongs to the bond. With RoCE
// LAG the driver makes one device for the bond; without it each slave keeps its own.
func (n Node) rdmaBond(ctx context.Context) []report.Finding {
	bonded := false
	out := n.eachPort(ctx, func(p nic.Port) report.Finding {
		switch {
		case p.Own == nil:
			return ok("its interface is in another namespace")
		case !p.Bonded() && p.Own.Kind == "bond":
			return ok("it is the device of the bond %s", p.Own.Name)
		case !p.Bonded():
			return ok("%s is in no bond", p.Own.Name)
		case p.Carries:
			return ok("it is the device of the bond %s, and names the slave %s", p.NIC.Name, p.Own.Name)
		}
		bonded = true
		return problem("it belongs to "+p.Own.Name+", a slave of "+p.NIC.Name+", not to the bond",
			shell.Command("devlink dev eswitch show %s", "pci/"+n.pci(p.Device.Name))+"  # RoCE LAG needs two ports of one NIC, no SR-IOV, legacy mode, and bond mode 802.3ad, active-backup or balance-xor")
	})
	if !bonded && len(out) > 0 && out[0].Verdict == report.OK {
		return []report.Finding{ok("no slave of a bond has an RDMA device of its own")}
	}
	return out
}

func (n Node) gidTable(ctx context.Context) []report.Finding {
	hidden, err := n.has("sys/module/mlx_compat")
	if err != nil {
		return []report.Finding{cannotTell(err.Error(), "the right to read /sys/module")}
	}
	return n.eachPort(ctx, func(p nic.Port) report.Finding { return fill(n.sys(), p, hidden) })
}

// fill judges a table. OFED hides the entries of other namespaces in sysfs, so there
// it can be fuller than it looks.
func fill(sys fs.FS, p nic.Port, hidden bool) report.Finding {
	entries, size, err := gidtable.New(sys, p.Device.Name, p.Number).Entries()
	if errors.Is(err, gidtable.ErrNone) {
		return problem("the port has no GID table: RoCE is off, or the NIC is in switchdev mode", "devlink dev param show  # enable_roce must be true")
	}
	if err != nil {
		return cannotTell("its table cannot be read: "+err.Error(), "the sysfs of the namespace that has the device")
	}
	each, fillers := gidtable.Width(entries), 0
	for _, e := range entries {
		if plan.IsFiller(e.GID, e.Netdev) {
			fillers++
		}
	}
	free := size - len(entries)
	found := fmt.Sprintf("%d of %d entries used", len(entries), size)
	if fillers > 0 {
		found += fmt.Sprintf(", %d of them by fillers of roce", fillers)
	}
	switch {
	case free*10 < size:
		return problem(fmt.Sprintf("%s, room for %s with one IPv4 address", found, report.Count(free/each, "more pod")),
			"rocectl gids  # shows the owners; remove addresses from the NIC that nothing needs, or let fewer pods run on the node; ip netns del roce-gids frees the entries of fillers")
	case hidden:
		return cannotTell(found+" as far as this namespace sees: OFED hides the entries of pods", "rocectl gids, which merges what the host and each pod on record see")
	}
	return ok("%s, room for %s with one IPv4 address", found, report.Count(free/each, "more pod"))
}

// eswitchMode asks whether the NICs of RoCE ports are in legacy mode. In switchdev mode
// the interface of the NIC is the uplink of a switch: it has no RoCE for macvlans.
func (n Node) eswitchMode(ctx context.Context) []report.Finding {
	devices, err := n.Devlink()
	if err != nil {
		return []report.Finding{cannotTell("devlink does not list the devices: "+err.Error(), "root, and a kernel with devlink")}
	}
	return n.eachDevice(ctx, "no RDMA device has an e-switch", func(device string) (report.Finding, bool) { return n.eswitch(devices, device) })
}

func (n Node) eswitch(devices []*netlink.DevlinkDevice, device string) (f report.Finding, has bool) {
	pci := n.pci(device)
	for _, d := range devices {
		if d.BusName != "pci" || d.DeviceName != pci || d.Attrs.Eswitch.Mode == "" {
			continue
		}
		if mode := d.Attrs.Eswitch.Mode; mode != "legacy" {
			return problem("its NIC is in "+mode+" mode", shell.Command("devlink dev eswitch set %s mode legacy", "pci/"+pci)+"  # on a node without pods; leave it if OVS needs it"), true
		}
		return ok("legacy"), true
	}
	return f, false
}

// vfTrust asks whether the VFs that the node itself uses let the frames of macvlan
// children pass. A VF with its interface in a pod needs no trust for that.
func (n Node) vfTrust(ctx context.Context) []report.Finding {
	links, err := n.Links(ctx)
	if err != nil {
		return []report.Finding{noLinks(err)}
	}
	var out []report.Finding
	for _, pf := range links {
		if pf.Kind != "" { // no NIC
			continue
		}
		vfs, err := n.VFs(ctx, pf.Name)
		if err != nil {
			out = append(out, cannotTell("its VFs cannot be listed: "+err.Error(), "root in the network namespace of the node").About(pf.Name))
		}
		for _, vf := range vfs {
			if f, here := n.vf(links, pf.Name, vf); here {
				out = append(out, f)
			}
		}
	}
	if len(out) == 0 {
		return []report.Finding{ok("the node uses no VF itself")}
	}
	return out
}

// vf judges a VF. here is false if its interface is not in the node's namespace.
func (n Node) vf(links []rtnl.Link, pf string, vf rtnl.VF) (f report.Finding, here bool) {
	entries, err := fs.ReadDir(n.Root, fmt.Sprintf("sys/class/net/%s/device/virtfn%d/net", pf, vf.Number))
	if isNotExist(err) || err == nil && len(entries) == 0 {
		return f, false
	}
	if err != nil {
		return cannotTell("its interface cannot be looked up: "+err.Error(), "the right to read /sys/class/net").About(fmt.Sprintf("%s vf %d", pf, vf.Number)), true
	}
	name := entries[0].Name()
	if !slices.ContainsFunc(links, func(l rtnl.Link) bool { return l.Name == name }) {
		return f, false
	}
	var wrong, fix []string
	if vf.Untrusted {
		wrong, fix = append(wrong, "not trusted"), append(fix, "trust on")
	}
	if vf.SpoofCheck {
		wrong, fix = append(wrong, "spoof check on"), append(fix, "spoofchk off")
	}
	if len(wrong) > 0 {
		return problem(fmt.Sprintf("VF %d of %s: %s", vf.Number, pf, strings.Join(wrong, ", ")),
			shell.Command("ip link set %s vf %d ", pf, vf.Number)+strings.Join(fix, " ")).About(name), true
	}
	return ok("VF %d of %s: trusted, no spoof check", vf.Number, pf).About(name), true
}
