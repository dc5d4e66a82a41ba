// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package rdma knows the RDMA devices of the node.
//
// For now it only tells whether there are any: verifying and moving devices is
// not done yet, and a request for it is refused rather than half served. It
// changes nothing. Everything is in this file.
package rdma

import (
	"errors"
	"io/fs"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
)

// Check returns an error unless the request needs no RDMA work. sys is the
// root of sysfs. Errors: cnierr.NoRDMA on a node without RDMA devices,
// cnierr.Unsupported on one with them, cnierr.IO.
func Check(r conf.RDMA, sys fs.FS) error {
	if r.Mode == conf.RDMAOff {
		return nil
	}
	devices, err := fs.ReadDir(sys, "class/infiniband")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cnierr.New(cnierr.IO, "list RDMA devices in", "/sys/class/infiniband", "", "%w", err)
	}
	if len(devices) == 0 {
		return cnierr.New(cnierr.NoRDMA, "use RDMA mode", string(r.Mode),
			`load the NIC's RDMA driver (rdma link shows its devices), or set "rdma": {"mode": "off"} if the pods need no RDMA`,
			"the node has no RDMA device")
	}
	return cnierr.New(cnierr.Unsupported, "use RDMA mode", string(r.Mode),
		`set "rdma": {"mode": "off"}: the pods then get the network, and RDMA in shared mode works unverified`,
		"this version of roce-cni does not verify or move RDMA devices yet")
}
