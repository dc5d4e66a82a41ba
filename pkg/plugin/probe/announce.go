// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"context"
	"net/netip"

	"github.com/mdlayher/ndp"

	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// announce sends each address once. The kernel does not do it for us: the link
// was up before it got the address, and arp_notify works only when a link comes
// up (inetdev_event).
func (p *Prober) announce(ctx context.Context, at plan.Place, op plan.Announce) error {
	asks := make([]*ask, 0, len(op.Targets))
	for _, t := range op.Targets {
		a, err := announcement(t)
		if err != nil {
			return err
		}
		asks = append(asks, a)
	}
	if len(asks) == 0 {
		return nil
	}
	w, err := p.open(ctx, at, asks)
	if err != nil {
		return err
	}
	if err := w.send(ctx, asks); err != nil {
		return err
	}
	return unsent(asks)
}

func announcement(t plan.Target) (*ask, error) {
	a := &ask{target: t}
	if t.Addr.Is4() {
		// A request and not a reply: RFC 5227 section 3 says why.
		gratuitous := arp{op: arpRequest, senderMAC: t.MAC, sender: t.Addr, target: t.Addr}
		a.frame = gratuitous.frame(nil)
		return a, nil
	}
	advertisement := neighbour{
		src: t.Addr, dst: netip.IPv6LinkLocalAllNodes(),
		msg: &ndp.NeighborAdvertisement{
			Override:      true,
			TargetAddress: t.Addr,
			Options:       []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: t.MAC[:]}},
		},
	}
	var err error
	a.frame, err = advertisement.frame(t.MAC)
	return a, err
}
