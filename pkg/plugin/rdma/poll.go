// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"time"
)

// poll calls fn at the interval, until fn returns true or an error. When the time has
// passed, poll returns false.
func poll(ctx context.Context, wait, interval time.Duration, fn func() (bool, error)) (bool, error) {
	end := time.NewTimer(wait)
	defer end.Stop()
	again := time.NewTicker(interval)
	defer again.Stop()
	for {
		if done, err := fn(); done || err != nil {
			return done, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-end.C:
			return false, nil
		case <-again.C:
		}
	}
}
