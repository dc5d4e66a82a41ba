// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package fleet

import "time"

// Healed is what rocectl heal did or saw, for people: an Event of a pod, or of the node if Pod is "".
type Healed struct {
	At             time.Time
	Namespace, Pod string
	UID            string // of the pod
	Failed         bool
	Alarm          bool // it saw a foreign GID
	Message        string
}
