// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"io/fs"
	"math"

	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// Table returns the entries of the GID table of a port in order, and the size of the
// table: see gidtable.Table.Entries. The device is in the namespace of. The entries
// are those that a process in the namespace reader sees: see gidtable.Merge. Errors:
// gidtable.ErrNone.
func (s *Subsystem) Table(of, reader plan.Place, device string, port uint32) ([]gidtable.Entry, int, error) {
	sys, err := s.files(of)
	if err != nil {
		return nil, 0, err
	}
	return s.entries(sys, reader, plan.RDMADevice{Name: device, Port: port}, math.MaxInt)
}

// Before returns the entries with an index below limit that a reader in a namespace
// sees: see gidtable.Table.Before. The device is in the host's namespace.
func (s *Subsystem) Before(reader plan.Place, d plan.RDMADevice, limit int) (entries []gidtable.Entry, size int, err error) {
	return s.entries(s.c.Sys, reader, d, limit)
}

func (s *Subsystem) entries(sys fs.FS, reader plan.Place, d plan.RDMADevice, limit int) (entries []gidtable.Entry, size int, err error) {
	err = s.at(reader, func() (err error) {
		entries, size, err = gidtable.New(sys, d.Name, d.Port).Before(limit)
		return err
	})
	return entries, size, classify("read GID table of", portName(d), err)
}

// Function returns the PCI address of the function that a device of a namespace is, and
// whether it is a virtual function (SR-IOV). It returns "" for a device that is none, such
// as Soft-RoCE or a scalable function.
func (s *Subsystem) Function(of plan.Place, device string) (address string, virtual bool) {
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
func (s *Subsystem) Model(of plan.Place, device string) string {
	sys, err := s.files(of)
	if err != nil {
		return ""
	}
	return discover.Text(sys, "class/infiniband/"+device+"/hca_type")
}
