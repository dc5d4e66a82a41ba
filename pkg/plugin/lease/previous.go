// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease

import (
	"context"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/plugin/result"
)

// previous leases nothing. It is for attachments without address, and for those with
// the addresses of the plugins before roce.
type previous struct{}

// LinkFirst implements source.
func (previous) LinkFirst() bool { return false }

// Acquire implements source.
func (previous) Acquire(_ context.Context, req conf.Request, rails []plan.Rail) ([]plan.Rail, error) {
	if req.Prev == nil {
		return rails, nil
	}
	given, err := result.Previous(*req.Prev)
	return []plan.Rail{{Rail: rails[0].Rail, Facts: rails[0].Facts, Lease: given}}, err
}

// Reject implements source: only the plugin that leased an address has others.
func (previous) Reject(context.Context, conf.Request, []plan.Rail, []plan.Target) (bool, error) {
	return false, nil
}

// Release implements source: only the plugin that leased an address releases it.
func (previous) Release(context.Context, record.Record) error { return nil }

// samePrevious says whether the plugins before roce give an attachment the addresses
// that its record has. It is true for an interface that roce makes.
func samePrevious(rec record.Record, req conf.Request) bool {
	if req.Prev == nil {
		return true
	}
	given, err := result.Previous(*req.Prev)
	return err == nil && slices.Equal(given.Addresses, rec.Plan.Addresses())
}
