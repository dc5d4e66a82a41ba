// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package inventory

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// Live returns the node of the calling thread's network namespace. A kernel without
// RDMA has no devices. Errors: cnierr.IO.
func Live(ctx context.Context) (Node, error) {
	n := Node{Sys: os.DirFS("/sys"), Driver: ReadDriver}
	c, err := rtnl.Dial()
	if err != nil {
		return Node{}, failed("interfaces", err)
	}
	defer c.Close()
	if n.Links, err = c.Links(ctx); err != nil {
		return Node{}, failed("interfaces", err)
	}
	if n.Addresses, err = c.Addresses(ctx, 0); err != nil {
		return Node{}, failed("addresses", err)
	}
	r, err := nldev.Dial()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return n, nil
	}
	if err != nil {
		return Node{}, failed("RDMA devices", err)
	}
	defer r.Close()
	if n.RDMA, err = r.System(ctx); err != nil {
		return Node{}, failed("RDMA devices", err)
	}
	return n, nil
}

func failed(what string, err error) error {
	return cnierr.New(cnierr.IO, "list", what, "run it in the network namespace of the node", "%w", err)
}

// ReadDriver asks the driver of an interface by ethtool's ioctl (ETHTOOL_GDRVINFO), as ethtool -i does.
func ReadDriver(netdev string) (Driver, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Driver{}, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, netdev)
	if err != nil {
		return Driver{}, err
	}
	return Driver{
		Name:     unix.ByteSliceToString(info.Driver[:]),
		Version:  unix.ByteSliceToString(info.Version[:]),
		Firmware: unix.ByteSliceToString(info.Fw_version[:]),
	}, nil
}
