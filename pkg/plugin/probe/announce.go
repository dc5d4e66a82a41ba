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
	asks, err := asksFor(op.Targets, announcement)
	if err != nil || len(asks) == 0 {
		return err
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
	a := &ask{target: t, about: t.Addr}
	if t.Addr.Is4() {
		return a, a.request(t.Addr, nil) // a request and not a reply: RFC 5227 section 3 says why
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
