// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
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

func (l *look) rdmaPorts() []report.Finding {
	ports := l.ports()
	if len(ports) == 0 {
		l.lacks("there is no port", "rdma-devices")
	}
	return each(l, ports, (*look).portState)
}

func (l *look) portState(p nic.Port) report.Finding {
	layer := l.read("sys/"+p.Dir()+"/link_layer", "its link layer cannot be read: ", sysOfDevice)
	pci := l.pci(p.Device.Name)
	switch {
	case layer == "InfiniBand":
		return problem("its link layer is InfiniBand, on which there is no macvlan and no RoCE",
			shell.Command("mlxconfig -d %s set LINK_TYPE_P%d=2 && mlxfwreset -d %s reset  # 2 is Ethernet; leave it, if the port is meant for InfiniBand", pci, p.Number, pci))
	case p.Device.Protocol == "":
		return problem("it speaks no RoCE: the NIC is in switchdev mode, or RoCE is off",
			shell.Command("devlink dev param set %s name enable_roce value true cmode driverinit && devlink dev reload %s", "pci/"+pci, "pci/"+pci))
	case p.Device.Protocol != roce:
		return problem("it speaks "+p.Device.Protocol+", not RoCE", "# "+discover.ToRoCE(p.Match, l.sys()))
	}
	return l.activity(p, layer)
}

// activity tells a port that is up from one that has to be set up, or plugged in.
func (l *look) activity(p nic.Port, layer string) report.Finding {
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
	rate := l.read("sys/"+p.Dir()+"/rate", "ACTIVE; its speed cannot be read: ", sysOfDevice)
	name := "interface in another namespace"
	if p.Own != nil {
		name = p.Own.Name
	}
	return ok("ACTIVE, %s, %s, %s", layer, name, rate)
}

func (l *look) rdmaMTU() []report.Finding {
	return l.eachPort(func(_ *look, p nic.Port) report.Finding {
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
func (l *look) rdmaBond() []report.Finding {
	bonded := false
	out := l.eachPort(func(_ *look, p nic.Port) report.Finding {
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
			shell.Command("devlink dev eswitch show %s", "pci/"+l.pci(p.Device.Name))+"  # RoCE LAG needs two ports of one NIC, no SR-IOV, legacy mode, and bond mode 802.3ad, active-backup or balance-xor")
	})
	if !bonded {
		return []report.Finding{ok("no slave of a bond has an RDMA device of its own")}
	}
	return out
}

func (l *look) gidTable() []report.Finding {
	hidden := l.ofed()
	return l.eachPort(func(l *look, p nic.Port) report.Finding { return l.fill(p, hidden) })
}

// fill judges a table. OFED hides the entries of other namespaces in sysfs, so there
// it can be fuller than it looks.
func (l *look) fill(p nic.Port, hidden bool) report.Finding {
	entries, size, err := gidtable.New(l.sys(), p.Device.Name, p.Number).Entries()
	if errors.Is(err, gidtable.ErrNone) {
		return problem("the port has no GID table: RoCE is off, or the NIC is in switchdev mode", "devlink dev param show  # enable_roce must be true")
	}
	l.need(err, "its table cannot be read: ", sysOfDevice)
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
func (l *look) eswitchMode() []report.Finding {
	devices, err := l.Devlink()
	if errors.Is(err, unix.ENOENT) {
		l.lacks("the kernel has no devlink", "root, and a kernel with devlink")
	}
	l.need(err, "devlink does not list the devices: ", "root, and a kernel with devlink")
	return orOK(each(l, deviceNames(l.system()), func(_ *look, device string) report.Finding {
		pci := l.pci(device)
		i := slices.IndexFunc(devices, func(d *netlink.DevlinkDevice) bool {
			return d.BusName == "pci" && d.DeviceName == pci && d.Attrs.Eswitch.Mode != ""
		})
		switch {
		case i < 0:
			return report.Finding{}
		case devices[i].Attrs.Eswitch.Mode == "legacy":
			return ok("legacy")
		}
		return problem("its NIC is in "+devices[i].Attrs.Eswitch.Mode+" mode", shell.Command("devlink dev eswitch set %s mode legacy", "pci/"+pci)+"  # on a node without pods; leave it if OVS needs it")
	}), "no RDMA device has an e-switch")
}

// vfTrust asks whether the VFs that the node itself uses let the frames of macvlan
// children pass. A VF with its interface in a pod needs no trust for that.
func (l *look) vfTrust() []report.Finding {
	links := l.links()
	var out []report.Finding
	for _, pf := range links {
		if pf.Kind != "" { // no NIC
			continue
		}
		vfs, err := l.VFs(l.ctx, pf.Name)
		if err != nil {
			out = append(out, cannotTell("its VFs cannot be listed: "+err.Error(), rootOfNode).About(pf.Name))
		}
		for _, vf := range vfs {
			if f := l.vf(links, pf.Name, vf); f.Verdict != "" {
				out = append(out, f)
			}
		}
	}
	return orOK(out, "the node uses no VF itself")
}

// vf judges a VF. It says nothing of one with an interface that is not in the node's namespace.
func (n Node) vf(links []rtnl.Link, pf string, vf rtnl.VF) report.Finding {
	entries, err := fs.ReadDir(n.Root, fmt.Sprintf("sys/class/net/%s/device/virtfn%d/net", pf, vf.Number))
	if isNotExist(err) || err == nil && len(entries) == 0 {
		return report.Finding{}
	}
	if err != nil {
		return cannotTell("its interface cannot be looked up: "+err.Error(), "the right to read /sys/class/net").About(fmt.Sprintf("%s vf %d", pf, vf.Number))
	}
	name := entries[0].Name()
	if !slices.ContainsFunc(links, func(l rtnl.Link) bool { return l.Name == name }) {
		return report.Finding{}
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
			shell.Command("ip link set %s vf %d ", pf, vf.Number)+strings.Join(fix, " ")).About(name)
	}
	return ok("VF %d of %s: trusted, no spoof check", vf.Number, pf).About(name)
}
