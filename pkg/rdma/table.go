// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import "github.com/roce-cni/roce-cni/pkg/rdma/gidtable"

// Entry is a place of a GID table that is in use.
type Entry = gidtable.Entry

// The types of an Entry. RoCEv1 is InfiniBand's too.
const (
	RoCEv1 = gidtable.RoCEv1
	RoCEv2 = gidtable.RoCEv2
)

// Table returns the entries of the GID table of a port of a device that a
// namespace has, in order, and how many places the table has: see
// gidtable.Table.Entries.
func (s *Subsystem) Table(side Side, device string, port uint32) ([]Entry, int, error) {
	sys, err := s.files(side)
	if err != nil {
		return nil, 0, err
	}
	entries, size, err := gidtable.New(sys, device, port).Entries()
	return entries, size, classify("read GID table of", device, err)
}
