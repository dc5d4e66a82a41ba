// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// port executes plan.Port.
type port struct {
	*Subsystem
	side Side // of the device
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
	return nldev.Port{}, cnierr.New(cnierr.NoRDMA, "use RDMA port", portName(want), "", "the device has %d ports", len(d.Ports))
}

// TurnOnRoCE is the hint for a port without a GID table.
const TurnOnRoCE = "look at the NIC with devlink dev param show and devlink dev eswitch show: set enable_roce to true and reload it, or, " +
	"in switchdev mode, use a VF or SF of it, or set the mode to legacy"

// usable refuses a port that cannot carry RoCE traffic now.
func (s *Subsystem) usable(d nldev.Device, p nldev.Port, at Side) error {
	const action = "use RDMA port"
	name := fmt.Sprintf("%s/%d", d.Name, p.Number)
	off, err := s.roceIsOff(d, p, at)
	if err != nil {
		return err
	}
	if off {
		return cnierr.New(cnierr.NoRDMA, action, name, TurnOnRoCE, "RoCE is off: the port has no GID table")
	}
	if layer := s.linkLayer(d, p, at); layer != "Ethernet" {
		return cnierr.New(cnierr.NoRDMA, action, name,
			"switch the port to Ethernet (mlxconfig LINK_TYPE_P1=2), or use another plugin for it", "its link layer is %s, and RoCE needs Ethernet", layer)
	}
	if p.State != nldev.Active {
		return cnierr.New(cnierr.NoRDMA, action, name,
			"bring its network interface up and check the cable and the switch port: "+s.rdma(at, "link show %s", name), "its state is %s, want ACTIVE", p.State)
	}
	return nil
}

// roceIsOff says whether a port has no GID table and so carries only raw packets.
// mlx5 makes such ports in switchdev mode (mlx5_port_rep_immutable) and when
// devlink's enable_roce is false (raw_eth_profile). The kernel then tells no protocol
// for the device. Older kernels tell no protocol for any device.
func (s *Subsystem) roceIsOff(d nldev.Device, p nldev.Port, at Side) (bool, error) {
	if d.Protocol != "" {
		return false, nil
	}
	files, err := s.files(at)
	if err != nil {
		return false, err
	}
	_, err = fs.Stat(files, fmt.Sprintf("class/infiniband/%s/ports/%d/gids/0", d.Name, p.Number))
	return errors.Is(err, fs.ErrNotExist), nil
}

// linkLayer returns the link layer of a port. A device that speaks RoCE has Ethernet.
// If the kernel does not tell the protocol of the device, a file has the link layer.
func (s *Subsystem) linkLayer(d nldev.Device, p nldev.Port, at Side) string {
	switch d.Protocol {
	case "roce":
		return "Ethernet"
	case "":
	default:
		return d.Protocol
	}
	files, err := s.files(at)
	if err != nil {
		return "unknown"
	}
	return text(files, fmt.Sprintf("class/infiniband/%s/ports/%d/link_layer", d.Name, p.Number))
}
