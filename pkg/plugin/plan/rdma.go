// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// RDMA has what the plan needs to know of the parent's RDMA device, and of how
// the node shares such devices.
type RDMA struct {
	// Exclusive says that the node is in exclusive mode: each RDMA device is in
	// one namespace (rdma system show: netns exclusive).
	Exclusive bool       `json:"exclusive,omitempty"`
	Device    RDMADevice `json:"device"`
	Function  string     `json:"function,omitempty"` // PCI address of the device, or of the function that it belongs to
	// TOS and TrafficClass are the host's settings for the port. They are nil
	// where the kernel or the driver has no such setting.
	TOS          *uint8 `json:"tos,omitempty"`
	TrafficClass *uint8 `json:"trafficClass,omitempty"`
	// UVerbs is the name of the device's file in /dev/infiniband, in exclusive mode;
	// "" if it is not known.
	UVerbs string `json:"uverbs,omitempty"`
}

// RDMADevice is a port of an RDMA device. The kernel keeps Index and GUID when
// the device is renamed or moves to another namespace.
type RDMADevice struct {
	Name  string `json:"name"`  // "mlx5_0"; unique over all namespaces before Linux 7.3
	Index uint32 `json:"index"` // as rdma dev prints it
	GUID  string `json:"guid"`  // of the node, as rdma dev prints it
	Port  uint32 `json:"port"`  // from 1
	// Link is the interface that the device belongs to: the parent, or the NIC
	// below a VLAN or a bond. It is "" when the interface and the device are in
	// different namespaces.
	Link conf.LinkName `json:"link,omitempty"`
	// PCI is the address of the device's hardware. Auxiliary is its name on the
	// auxiliary bus ("mlx5_core.sf.4"). "" if it is not on that bus.
	PCI       string `json:"pci,omitempty"`
	Auxiliary string `json:"auxiliary,omitempty"`
}

// SamePort says whether two devices of a node are one port now, whatever its name is.
func (d RDMADevice) SamePort(other RDMADevice) bool {
	return d.Index == other.Index && d.Port == other.Port
}

// Move moves an RDMA device into the pod's namespace, in exclusive mode. Undo
// moves it back to the host's namespace under its own name. It finds the device
// in the pod's namespace, or where the kernel puts it when that namespace is
// gone. The place of the operation is the host. A move loses the RoCE ToS and
// the traffic class, so Do and Undo set them again.
type Move struct {
	Device RDMADevice    `json:"device"`
	Parent conf.LinkName `json:"parent"`         // the NIC it was chosen for; "" when that is in the pod
	Link   conf.LinkName `json:"link,omitempty"` // the pod's link that uses it
	Netns  netns.ID      `json:"netns"`          // the pod's
	// Settings for the pod, and for the host after the move back; nil: left
	// alone.
	TOS              *uint8 `json:"tos,omitempty"`
	TrafficClass     *uint8 `json:"trafficClass,omitempty"`
	HostTOS          *uint8 `json:"hostTOS,omitempty"`
	HostTrafficClass *uint8 `json:"hostTrafficClass,omitempty"`
	// UVerbs is the name of the device's file before the move. UVerbsMode says what
	// follows if the move changes it.
	UVerbs     string        `json:"uverbs,omitempty"`
	UVerbsMode conf.Severity `json:"uverbsMode,omitempty"`
}

func (m Move) commands(in namespaces) []string {
	var out []string
	if m.TrafficClass != nil {
		out = append(out, fmt.Sprintf("echo %d > ", *m.TrafficClass)+shell.Word(fmt.Sprintf("/sys/class/infiniband/%s/tc/%d/traffic_class", m.Device.Name, m.Device.Port)))
	}
	out = append(out, shell.Command("rdma dev set %s netns %s", m.Device.Name, rdmaNetns(in.pod)))
	if m.TOS != nil && *m.TOS != 0 { // 0 is the kernel's default
		out = append(out, Exec(in.pod)+shell.Command(" cma_roce_tos -d %s -p %d -t %d", m.Device.Name, m.Device.Port, *m.TOS))
	}
	return out
}

// rdmaNetns returns a namespace as rdma(8) takes it. rdma(8) looks for every
// name in /run/netns, also for one that begins with a slash (dev_set_netns of
// iproute2).
func rdmaNetns(netns string) string {
	name := NetnsName(netns)
	if strings.HasPrefix(name, "/") {
		return "../.." + name
	}
	return name
}

// Port checks that the port can carry RoCE traffic: the device is where the pod
// can use it, the port is active, and its link layer is Ethernet. Its place is
// that of the device. It changes nothing, so it has nothing to undo.
type Port struct {
	Link   conf.LinkName `json:"link,omitempty"` // the pod's link that uses it
	Device RDMADevice    `json:"device"`
}

func (p Port) commands(in namespaces) []string {
	return []string{in.run("rdma link show %s", fmt.Sprintf("%s/%d", p.Device.Name, p.Device.Port))}
}

// GID waits until the table of an RDMA device has a RoCE v2 entry for each address. The
// kernel makes the entry in a work queue, soon after the address is set
// (ib_cache_gid_add). The place of the operation is that of the device, but it reads
// the table in the pod. It changes nothing: the entries go with the addresses.
type GID struct {
	Mode    conf.Severity `json:"mode"`
	Device  RDMADevice    `json:"device"`
	Wait    time.Duration `json:"wait"` // at most, for all together
	Targets []GIDTarget   `json:"targets"`
}

// GIDTarget is one address for which GID waits.
type GIDTarget struct {
	Link conf.LinkName `json:"link"`
	Addr netip.Addr    `json:"addr"`
	// Index is the GID index, once it is known. Programs get it, so it must not
	// change while the pod lives.
	Index *int `json:"gidIndex,omitempty"`
}

// Indexes returns the GID indexes that are known, in the order of the targets.
func (g GID) Indexes() (out []int) {
	for _, t := range g.Targets {
		if t.Index != nil {
			out = append(out, *t.Index)
		}
	}
	return out
}

func (g GID) commands(in namespaces) []string {
	in.place = Pod // NVIDIA's driver shows its entries only in the pod
	var out []string
	for _, t := range g.Targets {
		out = append(out, in.run("grep -i %s /sys/class/infiniband/%s/ports/%d/gids/*", GIDText(t.Addr), g.Device.Name, g.Device.Port))
	}
	return out
}

// GIDText returns the GID of an address as sysfs prints it: an IPv4 address is
// mapped into IPv6 (rdma_ip2gid).
func GIDText(a netip.Addr) string {
	b := a.As16()
	out := fmt.Sprintf("%x", b[:])
	for i := 28; i > 0; i -= 4 {
		out = out[:i] + ":" + out[i:]
	}
	return out
}

// WithDevices returns the operations for devices in the host's namespace that have
// another name or index now.
func (o Ops) WithDevices(now func(RDMADevice) RDMADevice) Ops {
	out := slices.Clone(o)
	for i, op := range out {
		switch k := op.Kind.(type) {
		case Port:
			k.Device = now(k.Device)
			op.Kind = k
		case GID:
			k.Device = now(k.Device)
			op.Kind = k
		}
		if op.Place == Host {
			out[i] = op
		}
	}
	return out
}

// Located returns the operations with the GID indexes that are known.
func (o Ops) Located(index map[netip.Addr]int) Ops {
	out := slices.Clone(o)
	for i, op := range out {
		g, ok := op.Kind.(GID)
		if !ok {
			continue
		}
		g.Targets = slices.Clone(g.Targets)
		for j, t := range g.Targets {
			if at, known := index[t.Addr]; known {
				g.Targets[j].Index = &at
			}
		}
		out[i].Kind = g
	}
	return out
}

// Registration returns the beginning and the end of the operations that fill the GID
// tables of shared devices. The first one is the first that sets an address, if any does.
// several says that other attachments must not fill these tables meanwhile: there are two
// devices or more, or their indexes are promised.
func (o Ops) Registration() (from, to int, several bool) {
	devices, promised := 0, false
	from = len(o)
	for i, op := range o {
		_, waits := op.Kind.(GID)
		_, aligns := op.Kind.(Align)
		waits, promised = waits && op.Place == Host, promised || aligns
		if waits {
			devices++
		}
		if waits || aligns {
			to = i + 1
		}
		if waits || op.row().makesGIDs {
			from = min(from, i)
		}
	}
	return from, max(from, to), devices > 1 || promised
}

// DeviceInfo writes the file in which Multus looks for the attachment's device. Multus
// shows it in the pod's network status (Device Information Specification 1.1.0 of the
// Network Plumbing Working Group). Do leaves an existing file alone: it is from the
// device plugin, and Multus copied it. Undo removes the file only if it has the content
// that Do writes.
type DeviceInfo struct {
	File   string `json:"file"`
	PCI    string `json:"pci"`    // of the function that the device is, or that it belongs to
	Device string `json:"device"` // of RDMA
}

func (d DeviceInfo) commands(namespaces) []string {
	return []string{"mkdir -p " + shell.Quote(path.Dir(d.File)) + "; echo " + shell.Quote(d.Text()) + " > " + shell.Quote(d.File)}
}

// Text returns what the file holds.
func (d DeviceInfo) Text() string {
	type pci struct {
		Address string `json:"pci-address"`
		Device  string `json:"rdma-device"`
	}
	b, err := json.Marshal(struct {
		Type    string `json:"type"`
		Version string `json:"version"`
		PCI     pci    `json:"pci"`
	}{"pci", "1.1.0", pci{d.PCI, d.Device}})
	if err != nil {
		panic("plan: device information has only texts: " + err.Error())
	}
	return string(b)
}

// deviceInfo returns the operation if the runtime names a file and the device is on the PCI
// bus. Multus shows the one device of the file for each interface of the attachment, so there
// is none with several rails.
func (m maker) deviceInfo() Ops {
	r := m.facts.RDMA
	if m.req.DeviceInfoFile == "" || len(m.req.Rails) > 1 || r == nil || r.Function == "" {
		return nil
	}
	return OnHost(DeviceInfo{File: m.req.DeviceInfoFile, PCI: r.Function, Device: r.Device.Name})
}
