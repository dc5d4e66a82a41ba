// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import "time"

// cost is what a request costs, measured. All is in nanoseconds in the file.
type cost struct {
	// Work is how long it keeps the machine busy: one by the number that are
	// answered in a second when many are asked for.
	Work time.Duration `json:"work"`
	// Each is how much more for each thing that is in the object or the list.
	Each time.Duration `json:"each,omitempty"`
	// Alone is how long one takes when nothing else is asked for.
	Alone time.Duration `json:"alone"`
}

// busy is how long a request with so many things keeps the machine busy.
func (c cost) busy(things int) time.Duration { return c.Work + time.Duration(things)*c.Each }

// costs are those of an API server, its etcd and its clients on one machine.
type costs struct {
	Machine  string           `json:"machine"`
	Parallel int              `json:"parallel"` // how many were asked for at once
	Lag      time.Duration    `json:"lag"`      // by which a cached list is late
	Requests map[request]cost `json:"requests"`
}
