// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease

import (
	"context"
	"errors"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/delegate"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Check says which addresses of a record are not leased to its attachment any more,
// as the source of the addresses knows it. That an IPAM plugin cannot check is only
// logged.
func (a Allocator) Check(ctx context.Context, req conf.Request, rec record.Record) error {
	if rec.IPAM == "" || rec.IPAM == conf.PoolType {
		return a.CheckRecord(ctx, rec)
	}
	err := a.Plugins.Check(ctx, req)
	if errors.Is(err, delegate.ErrNoCheck) {
		a.Log.Warn("CHECK is only about what roce made", "ipam", req.IPAM.Type, "error", err)
		return nil
	}
	return err
}

// CheckRecord is Check from the record alone. It does not ask other IPAM plugins,
// which want the configuration of the network.
func (a Allocator) CheckRecord(ctx context.Context, rec record.Record) error {
	if rec.IPAM != conf.PoolType {
		return nil
	}
	return a.pools().check(ctx, rec)
}

// CheckRepeated is CheckRecord for an ADD that is repeated. It also fails if prevResult
// now has other addresses.
func (a Allocator) CheckRepeated(ctx context.Context, req conf.Request, rec record.Record) error {
	if !samePrevious(rec, req) {
		return cnierr.New(cnierr.Damaged, "check addresses of", string(rec.IfName), "", "the plugins before roce give others")
	}
	return a.CheckRecord(ctx, rec)
}

// CheckHeld says that an attachment holds no lease of our pools for its network. It
// is CHECK of roce-ipam, which has no record.
func (a Allocator) CheckHeld(ctx context.Context, req conf.Request, netns netns.ID) error {
	held, err := a.pools().holds(ctx, req.Network, req.Attachment, netns)
	if err != nil || held {
		return err
	}
	return cnierr.New(cnierr.Damaged, "check leases of container", string(req.ContainerID),
		"delete the pod: its address may be given to another one; rocectl pool list shows who has it",
		"network %q has none for interface %q", req.Network, req.IfName)
}
