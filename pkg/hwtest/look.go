// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// ports returns the ports of the node, roce those that speak RoCE and have an interface in
// the host.
func (v view) ports() []nic.Port { return v.nics().Ports() }

func (v view) roce() []nic.Port {
	return slices.DeleteFunc(v.ports(), func(p nic.Port) bool { return p.Device.Protocol != "roce" || p.Link == "" || p.Own == nil })
}

const aKnownFault = "# a fault of the driver or of roce-cni: send the file to the project"

// driverStack asks which software is below roce-cni.
func driverStack() Step {
	return Step{
		Name: "driver-stack", Asks: "which kernel, driver and firmware does each NIC have?",
		Expect: "the driver tells its name and version (ETHTOOL_GDRVINFO)",
		look: func(_ context.Context, v view) []report.Finding {
			var out []report.Finding
			for _, p := range v.ports() {
				if p.Own == nil {
					continue
				}
				d, err := v.Driver(p.Own.Name)
				if err != nil {
					out = append(out, cannotTell(p.String(), "the driver of "+p.Own.Name+" does not answer: "+err.Error(), "a driver with ethtool -i"))
					continue
				}
				out = append(out, ok(p.String(), "%s %s, firmware %s, Linux %s, %s", d.Name, d.Version,
					cmp.Or(strings.TrimSpace(d.Firmware), "unknown"), v.Stack.Kernel, cmp.Or(v.Stack.OFED, "the kernel's own driver")))
			}
			if len(out) == 0 {
				out = append(out, cannotTell("", "no port tells its interface", "a port with an interface in the host: rdma link"))
			}
			return out
		},
	}
}

// devices asks whether netlink and sysfs tell the same of each device.
func devices() Step {
	return Step{
		Name: "devices", Asks: "do netlink and sysfs agree about each device, and is it identified?",
		Expect: "a device has the same name, GUID and ports in netlink and in sysfs, a GUID of its own, and one device file",
		look: func(_ context.Context, v view) []report.Finding {
			var out []report.Finding
			files := discover.Files(v.Sys)
			for _, d := range v.system.Devices {
				out = append(out, judge(d.Name, fmt.Sprintf("GUID %s, ports: %d, protocol %q", d.GUID, len(d.Ports), d.Protocol), v.identity(d, files))...)
			}
			return out
		},
	}
}

func (v view) identity(d nldev.Device, files []discover.File) []fault {
	dir := "class/infiniband/" + d.Name
	var out []fault
	guid := v.text(dir + "/node_guid")
	same := slices.DeleteFunc(slices.Clone(v.system.Devices), func(o nldev.Device) bool { return o.GUID != d.GUID })
	switch {
	case guid != d.GUID:
		out = append(out, fault{fmt.Sprintf("its GUID is %s in netlink, and %q in sysfs", d.GUID, guid), aKnownFault})
	case strings.Trim(guid, "0:") == "":
		out = append(out, fault{"it has no GUID: connections of rdma_cm fail", "ip link set PF vf N mac MAC  # a VF has a GUID when it has an administrative MAC"})
	case len(same) > 1:
		out = append(out, fault{fmt.Sprintf("%d devices have its GUID %s", len(same), guid), aKnownFault})
	}
	numbers, err := fs.ReadDir(v.Sys, dir+"/ports")
	if err != nil || len(numbers) != len(d.Ports) {
		out = append(out, fault{fmt.Sprintf("it has %d ports in netlink, and %d in sysfs", len(d.Ports), len(numbers)), aKnownFault})
	}
	own := slices.DeleteFunc(slices.Clone(files), func(f discover.File) bool { return f.Device != d.Name })
	if len(own) != 1 {
		out = append(out, fault{fmt.Sprintf("it has %d device files", len(own)), "modprobe ib_uverbs; ls /sys/class/infiniband_verbs"})
	}
	return out
}

// ports asks whether each port can carry RoCE, and whether netlink and sysfs agree.
func ports() Step {
	return Step{
		Name: "ports", Asks: "is each port active, on Ethernet, with RoCE and a GID table?",
		Expect: "a port has the same state in netlink and in sysfs, is active, has Ethernet below it, and has a GID table",
		look: func(_ context.Context, v view) []report.Finding {
			var out []report.Finding
			for _, p := range v.ports() {
				found := fmt.Sprintf("%s, %s, %s, on %s", p.State, v.text(p.Dir()+"/link_layer"), v.text(p.Dir()+"/rate"), cmp.Or(string(p.Link), "no interface"))
				out = append(out, judge(p.String(), found, v.carries(p))...)
			}
			return out
		},
	}
}

func (v view) carries(p nic.Port) []fault {
	var out []fault
	layer, state := v.text(p.Dir()+"/link_layer"), v.text(p.Dir()+"/state")
	if _, name, _ := strings.Cut(state, ": "); name != p.State.String() {
		out = append(out, fault{fmt.Sprintf("its state is %s in netlink, and %q in sysfs", p.State, state), aKnownFault})
	}
	if layer != "Ethernet" && p.Device.Protocol == "roce" {
		out = append(out, fault{fmt.Sprintf("it speaks RoCE, and its link layer is %q", layer), aKnownFault})
	}
	if _, err := fs.Stat(v.Sys, p.Dir()+"/gids/0"); err != nil {
		return append(out, fault{"it has no GID table: RoCE is off, or the NIC is in switchdev mode", "devlink dev param show; devlink dev eswitch show"})
	}
	switch {
	case p.Device.Protocol != "roce":
		out = append(out, fault{fmt.Sprintf("it speaks %q, not RoCE", p.Device.Protocol), "# leave it, if the port is meant for that"})
	case p.State != nldev.Active:
		out = append(out, fault{"its state is " + p.State.String(), "rdma link; ip link  # then the cable and the switch port"})
	case p.Link == "":
		out = append(out, fault{"no interface of the host belongs to it", "rdma link; ip link  # a pod may have the interface"})
	}
	return out
}

// hardware asks whether device and interface are on one PCI function.
func hardware() Step {
	return Step{
		Name: "hardware", Asks: "are the RDMA device and the interface on the same PCI function?",
		Expect: "port 1 of a device and its interface are on one PCI function; the device is on the PCI or the auxiliary bus",
		look: func(_ context.Context, v view) []report.Finding {
			var out []report.Finding
			for _, p := range v.roce() {
				out = append(out, v.function(p))
			}
			return out
		},
	}
}

func (v view) function(p nic.Port) report.Finding {
	bus, name := discover.Hardware(v.Sys, p.Device.Name)
	own, below := discover.Function(v.Sys, p.Device.Name, ""), discover.Function(v.Sys, "", conf.LinkName(p.Own.Name))
	l := p.Own
	kind := "a physical function"
	if _, err := fs.ReadLink(v.Sys, path.Join("bus/pci/devices", below, "physfn")); err == nil {
		kind = "a virtual function"
	}
	if l.PhysPort != "" {
		kind += ", port " + l.PhysPort
	}
	switch {
	case bus == "":
		return cannotTell(p.String(), "the device has no hardware of its own, as with Soft-RoCE", "a NIC with RDMA")
	case own == below:
		return ok(p.String(), "%s on the %s bus, function %s, %s", name, bus, below, kind)
	case p.Number > 1 || len(p.Device.Ports) > 1 || l.SlaveKind != "" || l.Kind != "":
		return ok(p.String(), "the device is on function %s, and the interface of this port on %s (%s)", own, below, kind)
	}
	return problem(p.String(), fmt.Sprintf("the device is on function %q, and its interface %s on %q", own, p.Own.Name, below), aKnownFault)
}
