// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// gateway asks for the targets' gateways. Our addresses must be on their links
// by then, because they are the senders. Only an answer to us counts, as in
// claim.answers: a gateway that asks or announces something may still not hear us.
func (p *Prober) gateway(ctx context.Context, at plan.Place, op plan.Gateway) error {
	targets := slices.DeleteFunc(slices.Clone(op.Targets), func(t plan.Target) bool { return !t.Gateway.IsValid() })
	asks, err := asksFor(targets, gatewayAsk)
	if err != nil {
		return err
	}
	err = p.query(ctx, at, asks, rounds{n: op.Attempts, interval: op.Timeout, wait: op.Timeout})
	if err != nil {
		return err
	}
	return silent(asks, op.Attempts)
}

func gatewayAsk(t plan.Target) (*ask, error) {
	a := &ask{target: t, about: t.Gateway}
	return a, a.request(t.Addr, nil)
}

func silent(asks []*ask, attempts int) error {
	var gateways, causes, commands []string
	for _, a := range asks {
		if a.answer != nil {
			continue
		}
		t := a.target
		what, command := "ARP requests", fmt.Sprintf("arping -I %s -s %s %s", t.Link, t.Addr, t.Gateway)
		if t.Addr.Is6() {
			what, command = "neighbour solicitations", fmt.Sprintf("ndisc6 -s %s %s %s", t.Addr, t.Gateway, t.Link)
		}
		gateways = append(gateways, t.Gateway.String())
		cause := fmt.Sprintf("%s answered none of %d %s from %s on %s", t.Gateway, attempts, what, t.Addr, t.Link)
		if a.other != nil {
			cause += fmt.Sprintf(", but %s sent another frame for it (%s), which is no answer", a.other.by, a.other.what)
		}
		causes = append(causes, cause)
		commands = append(commands, command)
	}
	if causes == nil {
		return nil
	}
	return &cnierr.Error{
		Code: cnierr.GatewaySilent, Op: "ask gateway", Subject: strings.Join(gateways, ", "),
		Hint: fmt.Sprintf("check the gateway's address in ipam.subnets[], the VLAN and the switch port of the master; run %q in the pod's namespace to ask again; probe.gateway \"warn\" starts pods without an answer",
			strings.Join(commands, "; ")),
		Err: errors.New(strings.Join(causes, "; ")),
	}
}
