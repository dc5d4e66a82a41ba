// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import "time"

// Within sets another deadline.
func (a *API) Within(d time.Duration) *API {
	a.deadline = d
	return a
}
