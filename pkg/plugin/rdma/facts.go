// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// Facts returns the RDMA device behind a parent, and how the node shares devices. The
// parent is in the pod's namespace if inPod is true. Facts changes nothing. It fails
// if ADD would fail later, when an address is already leased.
//
// Facts needs two netlink round trips for all parents of a namespace, whatever the devices
// and their GID tables are, and reads two links of sysfs for each parent. In exclusive mode
// it also reads the two settings that a move loses, and the users of the device.
//
// Errors: RDMAMode when the request contradicts the mode of the node. NoRDMA when
// there is no device (with ErrNoDevice), when there are several, when the device does
// not speak RoCE, or when its port is not active. RDMAHeld when it would move to the pod,
// and programs of the host use it.
func (s *Subsystem) Facts(ctx context.Context, want conf.RDMA, parent plan.Link, inPod bool) (plan.RDMA, error) {
	at := plan.Host
	if inPod {
		at = plan.Pod
	}
	sys, err := s.survey(ctx, at)
	if err != nil {
		return plan.RDMA{}, err
	}
	if err := fits(want.Mode, sys.Exclusive); err != nil {
		return plan.RDMA{}, err
	}
	m, err := s.find(sys, at, at, parent)
	if noDevice(err) && inPod && sys.Exclusive {
		at = plan.Host // where a device is that no pod has yet
		if sys, err = s.survey(ctx, at); err != nil {
			return plan.RDMA{}, err
		}
		m, err = s.find(sys, plan.Pod, at, parent)
	}
	if err != nil {
		return plan.RDMA{}, err
	}
	return s.describe(ctx, m, at, sys.Exclusive)
}

// survey returns the RDMA devices that a namespace sees, as they were when Facts
// first looked.
func (s *Subsystem) survey(ctx context.Context, at plan.Place) (nldev.System, error) {
	if s.surveyed[at] == nil {
		sys, err := s.System(ctx, at)
		if err != nil {
			return nldev.System{}, err
		}
		s.surveyed[at] = &sys
	}
	return *s.surveyed[at], nil
}

// Mode fails when a request contradicts how the system shares devices: RDMAMode,
// NoRDMA on a kernel without RDMA.
func (s *Subsystem) Mode(ctx context.Context, want conf.RDMAMode) error {
	sys, err := s.survey(ctx, plan.Host)
	if err != nil {
		return err
	}
	return fits(want, sys.Exclusive)
}

// find returns the port of a parent, among the devices that the namespace at sees.
// The parent is in the namespace links. If the parent names hardware that has
// devices, find looks only at these devices.
func (s *Subsystem) find(sys nldev.System, links, at plan.Place, parent plan.Link) (discover.Match, error) {
	var failed error
	fallback := func() []discover.Match {
		var trees [2]fs.FS
		for i, side := range []plan.Place{links, at} {
			if trees[i], failed = s.Files(side); failed != nil {
				return nil
			}
		}
		return discover.Related(sys.Devices, parent.Name, trees[0], trees[1])
	}
	if links != at {
		parent.Layers = nil // indexes of another namespace
	}
	devices := sys.Devices
	if parent.Device != "" {
		files, err := s.Files(at)
		if err != nil {
			return discover.Match{}, err
		}
		if on := discover.On(devices, parent.Device, files); len(on) > 0 {
			devices = on
			fallback = func() []discover.Match { return discover.Ports(on) }
		}
	}
	m, err := discover.Port(devices, parent, fallback)
	if failed != nil {
		return discover.Match{}, failed
	}
	return m, err
}

// describe returns the facts of a port.
func (s *Subsystem) describe(ctx context.Context, m discover.Match, at plan.Place, exclusive bool) (plan.RDMA, error) {
	files, err := s.Files(at)
	if err != nil {
		return plan.RDMA{}, err
	}
	if err := s.usable(m.Device, m.Port, at); err != nil {
		return plan.RDMA{}, err
	}
	out := plan.RDMA{Exclusive: exclusive, Device: plan.RDMADevice{
		Name: m.Device.Name, Index: m.Device.Index, GUID: m.Device.GUID, Port: m.Port.Number, Link: m.Link,
	}}
	switch bus, name := discover.Hardware(files, m.Device.Name); bus {
	case "pci":
		out.Device.PCI, out.Function = name, name
	case "auxiliary":
		out.Device.Auxiliary = name
	}
	if out.Function == "" {
		out.Function = discover.Function(files, m.Device.Name, m.Link)
	}
	if !exclusive {
		return out, nil
	}
	if at == plan.Host {
		if err := s.unused(ctx, m.Device); err != nil {
			return plan.RDMA{}, err
		}
	}
	out.UVerbs = s.uverbs(m.Device.Name)
	if out.TOS, err = s.tos(at, out.Device); err != nil {
		return plan.RDMA{}, err
	}
	out.TrafficClass, err = s.trafficClass(at, out.Device)
	return out, err
}

// fits refuses a request that contradicts how the system shares devices.
func fits(want conf.RDMAMode, exclusive bool) error {
	have := conf.RDMAShared
	if exclusive {
		have = conf.RDMAExclusive
	}
	if want == conf.RDMAAuto || want == "" || want == have {
		return nil
	}
	return cnierr.New(cnierr.RDMAMode, "use RDMA mode", string(want), setMode(want), "the node's is %q", have)
}

// setMode returns how to change the mode of a node.
func setMode(to conf.RDMAMode) string {
	n := "1"
	if to == conf.RDMAExclusive {
		n = "0"
	}
	return "set the node's mode: rdma system set netns " + string(to) +
		", which works only while no other network namespace exists; options ib_core netns_mode=" + n +
		" in /etc/modprobe.d/zz-roce.conf makes it last; or set rdma.mode to auto"
}

// port executes plan.Port.
type port struct {
	*Subsystem
	side plan.Place // of the device
	op   plan.Port
}

func (p port) do(ctx context.Context) error {
	d, err := p.device(ctx, p.side, p.op.Device)
	if err != nil {
		return err
	}
	n, err := portOf(d, p.op.Device)
	if err != nil {
		return err
	}
	return p.usable(d, n, p.side)
}

// undo has nothing to undo.
func (port) undo(context.Context) error { return nil }

func (p port) check(ctx context.Context) error {
	err := p.do(ctx)
	var found *cnierr.Error
	if !errors.As(err, &found) || found.Code != cnierr.NoRDMA {
		return err
	}
	return &cnierr.Error{
		Code: cnierr.Damaged, Op: "check RDMA port", Subject: portName(p.op.Device), Hint: found.Hint, Err: found.Err,
	}
}

func portName(d plan.RDMADevice) string { return fmt.Sprintf("%s/%d", d.Name, d.Port) }

func portOf(d nldev.Device, want plan.RDMADevice) (nldev.Port, error) {
	for _, p := range d.Ports {
		if p.Number == want.Port {
			return p, nil
		}
	}
	return nldev.Port{}, cnierr.New(cnierr.NoRDMA, use, portName(want), "", "the device has %d ports", len(d.Ports))
}

// TurnOnRoCE is the hint for a port without a GID table.
const TurnOnRoCE = "look at the NIC with devlink dev param show and devlink dev eswitch show: set enable_roce to true and reload it, or, " +
	"in switchdev mode, use a VF or SF of it, or set the mode to legacy"

const use = "use RDMA port"

// usable refuses a port that cannot carry RoCE traffic now.
func (s *Subsystem) usable(d nldev.Device, p nldev.Port, at plan.Place) error {
	name := fmt.Sprintf("%s/%d", d.Name, p.Number)
	if d.Protocol != "roce" {
		if err := s.otherwise(d, p, at); err != nil {
			return err
		}
	}
	if p.State != nldev.Active {
		return cnierr.New(cnierr.NoRDMA, use, name,
			"bring its network interface up and check the cable and the switch port: "+s.rdma(at, "link show %s", name), "its state is %s, want ACTIVE", p.State)
	}
	return nil
}

// otherwise refuses a port of a device that is not known to speak RoCE. mlx5 makes ports
// without a GID table in switchdev mode (mlx5_port_rep_immutable) and when devlink's
// enable_roce is false (raw_eth_profile). The kernel then tells no protocol, as older kernels
// do for all devices.
func (s *Subsystem) otherwise(d nldev.Device, p nldev.Port, at plan.Place) error {
	files, err := s.Files(at)
	if err != nil {
		return err
	}
	m := discover.Match{Device: d, Port: p, Link: conf.LinkName(p.Netdev)}
	if discover.Other(d) {
		return cnierr.New(cnierr.NoRDMA, use, m.String(), discover.ToRoCE(m, files), "it speaks %q, not RoCE", d.Protocol)
	}
	dir := fmt.Sprintf("class/infiniband/%s/ports/%d", d.Name, p.Number)
	if _, err := fs.Stat(files, dir+"/gids/0"); errors.Is(err, fs.ErrNotExist) {
		return cnierr.New(cnierr.NoRDMA, use, m.String(), TurnOnRoCE, "RoCE is off: the port has no GID table")
	}
	if layer := discover.Text(files, dir+"/link_layer"); layer != "Ethernet" {
		m.Device.Protocol = "ib"
		return cnierr.New(cnierr.NoRDMA, use, m.String(), discover.ToRoCE(m, files), "its link layer is %s, and RoCE needs Ethernet", layer)
	}
	return nil
}
