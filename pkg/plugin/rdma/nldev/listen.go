// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nldev

import (
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// groupNotify is RDMA_NL_GROUP_NOTIFY, which kernels have from 6.12 on.
const groupNotify = 4

// Listen returns a listener for devices that are made, renamed or removed, as "rdma monitor"
// is. EINVAL means that the kernel tells nothing of them.
func Listen() (*nlsock.Listener, error) { return nlsock.Listen(unix.NETLINK_RDMA, groupNotify) }
