// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/delegate"
	"github.com/roce-cni/roce-cni/pkg/record"
)

// Release takes back all that a recorded attachment has leased; none is success.
// Only the source that leased an address releases it: of an interface that roce
// adopted, the addresses belong to the plugin that made it.
func (a Allocator) Release(ctx context.Context, rec record.Record) error {
	return a.source(rec.IPAM).Release(ctx, rec)
}

// ReleaseByDEL is Release with what only the runtime's DEL can know.
func (a Allocator) ReleaseByDEL(ctx context.Context, rec record.Record, d conf.Del) error {
	return a.Release(ctx, asCalled(rec, d))
}

// ReleaseUnfinished is Release for an attachment whose ADD did not finish: it may
// have no lease. An IPAM plugin that is not installed is no error: ADD cannot have
// leased from it.
func (a Allocator) ReleaseUnfinished(ctx context.Context, rec record.Record) error {
	if err := a.Release(ctx, rec); !errors.Is(err, delegate.ErrNotInstalled) {
		return err
	}
	return nil
}

// ReleaseUnrecorded is ReleaseUnfinished for the DEL of an attachment whose record is
// lost. It also takes back what ADD asked of the agent.
func (a Allocator) ReleaseUnrecorded(ctx context.Context, rec record.Record, d conf.Del) error {
	return errors.Join(a.ReleaseUnfinished(ctx, rec), a.forget(d))
}

// Held returns the attachments that hold leases of our pools for a network. It
// returns none if the network does not lease from them.
func (a Allocator) Held(ctx context.Context, gc conf.GC) ([]conf.Attachment, error) {
	if gc.IPAM != conf.PoolType {
		return nil, nil
	}
	return pools{Book: a.Book}.held(ctx, gc.Network)
}

// ReleaseHeld releases what an attachment without record holds, if the network of a
// GC leases from our pools.
func (a Allocator) ReleaseHeld(ctx context.Context, gc conf.GC, at conf.Attachment) error {
	if gc.IPAM != conf.PoolType {
		return nil
	}
	return pools{Book: a.Book}.Release(ctx, record.Record{ContainerID: at.ContainerID, IfName: at.IfName})
}

// GC forwards a GC to the IPAM plugin of the network, if it has one.
func (a Allocator) GC(ctx context.Context, gc conf.GC) error {
	if !delegate.Is(gc.IPAM) {
		return nil
	}
	return a.Plugins.GC(ctx, gc)
}

// asCalled returns a record as an IPAM plugin sees it: with ADD's
// configuration, and of DEL's input what the runtime alone can know.
func asCalled(rec record.Record, d conf.Del) record.Record {
	if !delegate.Is(rec.IPAM) {
		return rec
	}
	rec.Netns = d.Netns
	var config, call map[string]json.RawMessage
	if json.Unmarshal(rec.Config, &config) != nil || json.Unmarshal([]byte(d.Raw), &call) != nil {
		return rec
	}
	if prev, ok := call["prevResult"]; ok && config != nil {
		config["prevResult"] = prev
		if b, err := json.Marshal(config); err == nil {
			rec.Config = b
		}
	}
	return rec
}
