// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"io/fs"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// Entry is an entry of a GID table that is in use.
type Entry = gidtable.Entry

// The types of an Entry. RoCEv1 is InfiniBand's too.
const (
	RoCEv1 = gidtable.RoCEv1
	RoCEv2 = gidtable.RoCEv2
)

// ErrNoTable says that a port has no GID table: RoCE is off, or the device is
// missing.
var ErrNoTable = gidtable.ErrNone

// Table returns the entries of the GID table of a port in order, and the size of the
// table: see gidtable.Table.Entries. The device is in the namespace of. The entries
// are those that a process in the namespace reader sees: see Merge. Errors:
// ErrNoTable.
func (s *Subsystem) Table(of, reader Side, device string, port uint32) ([]Entry, int, error) {
	sys, err := s.files(of)
	if err != nil {
		return nil, 0, err
	}
	var entries []Entry
	var size int
	err = s.at(reader, func() (err error) {
		entries, size, err = gidtable.New(sys, device, port).Entries()
		return err
	})
	return entries, size, classify("read GID table of", device, err)
}

// Room says how many more pods free entries are enough for: see gidtable.Room.
func Room(free, width int) string { return gidtable.Room(free, width) }

// Width returns how many entries an address takes in a table: see gidtable.Width.
func Width(entries []Entry) int { return gidtable.Width(entries) }

// Own returns the entries that may be that of an interface: see gidtable.Own.
func Own(entries []Entry, name string, was *int) []Entry { return gidtable.Own(entries, name, was) }

// Numbers joins GID indexes for a sentence.
func Numbers(places []int) string { return gidtable.Numbers(places) }

// Merge joins the entries that two namespaces see of one table: see gidtable.Merge.
func Merge(a, b []Entry) (all []Entry, differ bool) { return gidtable.Merge(a, b) }

// Function returns the PCI address of the function that a device of a namespace is, and
// whether it is a virtual function (SR-IOV). It returns "" for a device that is none, such
// as Soft-RoCE or a scalable function.
func (s *Subsystem) Function(of Side, device string) (address string, virtual bool) {
	sys, err := s.files(of)
	if err != nil {
		return "", false
	}
	bus, address := discover.Hardware(sys, device)
	if bus != "pci" {
		return "", false
	}
	_, err = fs.Stat(sys, "class/infiniband/"+device+"/device/physfn")
	return address, err == nil
}

// Model returns what the driver calls the model of a device of a namespace, such as MT4129
// for a ConnectX-7 (hca_type); "" if the driver does not tell.
func (s *Subsystem) Model(of Side, device string) string {
	sys, err := s.files(of)
	if err != nil {
		return ""
	}
	text, _ := fs.ReadFile(sys, "class/infiniband/"+device+"/hca_type") // most drivers have it
	return strings.TrimSpace(string(text))
}
