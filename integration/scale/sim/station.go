// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sim

import "time"

// Station does work for processes, one piece after the other: who comes first is
// served first.
type Station struct {
	free time.Duration // when the work is done of all who are in line
}

// Serve waits in line and for work to be done.
func (s *Station) Serve(p *Process, work time.Duration) error {
	s.free = max(s.free, p.Now()) + work
	return p.Until(s.free)
}
