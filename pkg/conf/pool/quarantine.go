// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"time"

	"github.com/roce-cni/roce-cni/pkg/conf/strict"
)

// How long an address rests before another pod gets it, unless a pool says
// otherwise, and at most.
const (
	StandardQuarantine = 120 * time.Second
	LongestQuarantine  = 24 * time.Hour
)

// Quarantine reads how long the addresses of a pool rest.
func Quarantine(v strict.Value) time.Duration {
	return v.Duration(StandardQuarantine, 0, LongestQuarantine)
}
