// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import "context"

// Abandoned asks whether an owner is gone with all its pods, or was replaced.
func Abandoned(ctx context.Context, c Cluster, owner Spec) (bool, error) {
	fate, err := fateNow(ctx, c.Machine, owner)
	if err != nil || fate != Gone {
		return fate == Replaced, err
	}
	bound, err := c.Bound(ctx, owner.NodeName)
	return err == nil && !bound, err
}
