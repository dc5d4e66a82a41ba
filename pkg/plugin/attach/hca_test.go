// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"cmp"
	"context"
	"net/netip"
	"sync/atomic"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
)

// hca is the one RDMA device of a node, on the parent "ens1".
type hca struct {
	exclusive bool
	each      bool // each parent has one; they all share it
	name      string
	now       string       // name to which each was renamed
	remade    uint32       // index that ens1's has since it was made again
	in        netns.ID     // the namespace that has it; zero: the host's
	users     []string     // programs with queue pairs
	usersOf   netns.ID     // the namespace in which they were asked for last
	unseen    error        // why they cannot be listed
	lost      error        // why the devices cannot be read again
	unclear   bool         // it is not known which device is that of a parent
	open      atomic.Int32 // handles that are not closed
	full      bool         // there is no free entry for another GID
	tables    *gidTables   // nil: the indexes are of no interest
	inPod     bool         // the last parent that was asked for was in the pod
}

var device = plan.RDMADevice{Name: "mlx5_0", GUID: "0c42:a103:0016:054c", Port: 1, Link: "ens1", PCI: "0000:0b:00.2"}

// handle is the hca as one process sees it.
type handle struct {
	*hca
	w       *world
	netns   string
	located map[netip.Addr]int
}

func (h handle) Facts(_ context.Context, want conf.RDMA, parent plan.Link, inPod bool) (plan.RDMA, error) {
	if h.inPod = inPod; want.Mode == "" || want.Mode == conf.RDMAOff {
		return plan.RDMA{}, cnierr.New(cnierr.Bug, "use RDMA mode", string(want.Mode), "", "no RDMA is asked for")
	}
	if h.unclear {
		return plan.RDMA{}, cnierr.New(cnierr.NoRDMA, "find RDMA device of", string(parent.Name), "", "there are several")
	}
	if h.each {
		own := device
		own.Link, own.Index = parent.Name, uint32(parent.Name[3]-'0')
		return plan.RDMA{Device: own}, nil
	}
	if parent.Name != "ens1" && parent.Device != device.PCI || h.in != (netns.ID{}) {
		return plan.RDMA{}, cnierr.New(cnierr.NoRDMA, "find RDMA device of", string(parent.Name), "", "%w", rdma.ErrNoDevice)
	}
	return plan.RDMA{Exclusive: h.exclusive, Device: device, Function: device.PCI}, nil
}

func (h handle) Mode(_ context.Context, want conf.RDMAMode) error {
	if h.exclusive != (want == conf.RDMAExclusive) {
		return cnierr.New(cnierr.RDMAMode, "use RDMA mode", string(want), "", "the node has another")
	}
	return nil
}

func (h handle) Do(ctx context.Context, op plan.Op) error {
	h.w.step()
	if err := h.w.about(op, false); err != nil {
		return err
	}
	switch kind := op.Kind.(type) {
	case plan.DeviceInfo: // a file, which needs no fake
		return rdma.New(rdma.Config{}).Do(ctx, op)
	case plan.Move:
		h.in = kind.Netns
	case plan.GID:
		if h.full {
			return cnierr.New(cnierr.NoGID, "wait for GID of", kind.Targets[0].Addr.String(), "", "the table is full")
		}
		for i, t := range kind.Targets {
			h.located[t.Addr] = i + 3
			if h.tables != nil {
				h.located[t.Addr] = h.tables.of(kind.Device).index(t.Addr)
			}
		}
	}
	return nil
}

func (h handle) Undo(ctx context.Context, op plan.Op) error {
	h.w.step()
	if _, ok := op.Kind.(plan.DeviceInfo); ok {
		return rdma.New(rdma.Config{}).Undo(ctx, op)
	}
	m, ok := op.Kind.(plan.Move)
	switch {
	case !ok:
	case h.in == m.Netns:
		h.in, h.name = netns.ID{}, m.Device.Name
	case h.in != (netns.ID{}):
		return cnierr.New(cnierr.RDMAHeld, "move back RDMA device", h.name, "", "it is in %v", h.in)
	}
	return nil
}

func (h handle) Current(_ context.Context, recorded plan.Ops) (plan.Ops, error) {
	if h.lost != nil {
		return nil, h.lost
	}
	return recorded.WithDevices(func(d plan.RDMADevice) plan.RDMADevice {
		d.Name = cmp.Or(h.now, d.Name)
		if d.Link == "ens1" {
			d.Index = cmp.Or(h.remade, d.Index)
		}
		return d
	}), nil
}

func (h handle) Users(_ context.Context, _ plan.Ops, in netns.ID) ([]string, error) {
	h.usersOf = in
	return h.users, h.unseen
}

func (h handle) Check(ctx context.Context, op plan.Op) error {
	for g := range plan.All[plan.GID](plan.Ops{op}) {
		if g.Device.Name != cmp.Or(h.now, g.Device.Name) {
			return cnierr.New(cnierr.Damaged, "check GIDs of", g.Device.Name, "", "no device has the name")
		}
		for _, t := range g.Targets {
			if is := h.tables; h.remade != 0 && is.of(g.Device).index(t.Addr) != *t.Index {
				return cnierr.New(cnierr.Damaged, "check GID of", t.Addr.String(), "", "%w", &rdma.MovedError{Was: *t.Index, Is: is.of(g.Device).index(t.Addr)})
			}
		}
	}
	if _, ok := op.Kind.(plan.DeviceInfo); ok {
		return rdma.New(rdma.Config{}).Check(ctx, op)
	}
	if m, ok := op.Kind.(plan.Move); ok && h.in != m.Netns {
		return cnierr.New(cnierr.Damaged, "check RDMA device", h.name, "", "it is not in the pod")
	}
	return nil
}

func (h handle) Located() map[netip.Addr]int { return h.located }

func (h handle) Close() { h.open.Add(-1) }
