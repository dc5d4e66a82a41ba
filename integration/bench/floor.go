// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// floor is what an attachment costs the kernel: the operations of our plan, without a
// process, a lease, a record or a question to the wire; and the removal of the link,
// alone. No program can do the same faster.
type floor struct {
	conf      []byte // of roce
	addresses []plan.LeasedAddress
	kernel    *kernel.Kernel // of the present pod
}

func (f *floor) add(ctx context.Context, pod string) (time.Duration, error) {
	req, err := conf.Parse(conf.Input{Command: "ADD", ContainerID: "sandbox-" + pod, Netns: netnsPath(pod), IfName: ifName, Stdin: f.conf})
	if err != nil {
		return 0, err
	}
	if f.kernel, err = kernel.Open(req.Netns, os.DirFS("/sys")); err != nil {
		return 0, err
	}
	facts, err := plan.Only(f.kernel.Facts(ctx, req))
	if err != nil {
		return 0, err
	}
	p, err := plan.Make(req, []plan.Rail{{Rail: req.Rails[0], Facts: facts, Lease: plan.Lease{Addresses: f.addresses}}})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for _, op := range p.Ops {
		if op.By() == plan.ByWire {
			continue
		}
		if err := f.kernel.Do(ctx, op); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

func (f *floor) del(ctx context.Context, pod string) (time.Duration, error) {
	defer f.kernel.Close()
	var c *rtnl.Conn
	err := f.kernel.Enter(func() (err error) {
		c, err = rtnl.Dial()
		return err
	})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	l, err := c.LinkByName(ctx, ifName)
	if err != nil {
		return 0, fmt.Errorf("link of %s: %w", pod, err)
	}
	start := time.Now()
	err = c.Do(ctx, rtnl.DeleteLink(l.Index))
	return time.Since(start), err
}

// spare returns addresses that no pool gives.
func spare(dual bool) []plan.LeasedAddress {
	out := []plan.LeasedAddress{{Prefix: netip.MustParsePrefix("10.64.250.1/16"), Gateway: netip.MustParseAddr(gateway4(0))}}
	if dual {
		out = append(out, plan.LeasedAddress{Prefix: netip.MustParsePrefix("fd00:64::ffff:1/64"), Gateway: netip.MustParseAddr(gateway6(0))})
	}
	return out
}
