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
	return nldev.Port{}, cnierr.New(cnierr.NoRDMA, use, portName(want), "", "the device has %d ports", len(d.Ports))
}

// TurnOnRoCE is the hint for a port without a GID table.
const TurnOnRoCE = "look at the NIC with devlink dev param show and devlink dev eswitch show: set enable_roce to true and reload it, or, " +
	"in switchdev mode, use a VF or SF of it, or set the mode to legacy"

const use = "use RDMA port"

// usable refuses a port that cannot carry RoCE traffic now.
func (s *Subsystem) usable(d nldev.Device, p nldev.Port, at Side) error {
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
// without a GID table, which carry only raw packets, in switchdev mode (mlx5_port_rep_immutable)
// and when devlink's enable_roce is false (raw_eth_profile). The kernel then tells no protocol
// for the device. Older kernels tell no protocol for any device.
func (s *Subsystem) otherwise(d nldev.Device, p nldev.Port, at Side) error {
	files, err := s.files(at)
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
	if layer := text(files, dir+"/link_layer"); layer != "Ethernet" {
		m.Device.Protocol = "ib"
		return cnierr.New(cnierr.NoRDMA, use, m.String(), discover.ToRoCE(m, files), "its link layer is %s, and RoCE needs Ethernet", layer)
	}
	return nil
}
