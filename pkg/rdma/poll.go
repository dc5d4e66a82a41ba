// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"time"
)

// poll calls fn again and again, at the interval, until it returns true or an
// error, or until the time has passed; then it returns false.
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
