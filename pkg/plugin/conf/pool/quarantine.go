// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// The default and the longest quarantine of a pool: the time before another pod
// gets a released address.
const (
	StandardQuarantine = 120 * time.Second
	LongestQuarantine  = 24 * time.Hour
)

// Quarantine reads the quarantine of a pool.
func Quarantine(v strict.Value) time.Duration {
	return v.Duration(StandardQuarantine, 0, LongestQuarantine)
}
