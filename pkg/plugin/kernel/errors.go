// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
)

const needsRoot = netns.NeedsRoot

// meaning is what an error of the kernel means to an operator.
type meaning struct {
	is   error
	code cnierr.Code
	hint string
}

// everywhere returns the meanings that errors have for every operation. A
// meaning for one operation is in the file of that operation.
func everywhere() []meaning {
	const again = cnierr.Again + "; if the error stays, check the load of the node"
	return []meaning{
		{context.Canceled, cnierr.TryAgain, again},
		{context.DeadlineExceeded, cnierr.TryAgain, again},
		{rtnl.ErrInterrupted, cnierr.TryAgain, again},
		{rtnl.ErrTooMuch, cnierr.IO, "find the program that makes so many routes, rules or links in the pod"},
		{unix.ENOMEM, cnierr.TryAgain, again},
		{unix.ENOBUFS, cnierr.TryAgain, again},
		{unix.EPERM, cnierr.IO, needsRoot},
		{unix.EACCES, cnierr.IO, needsRoot},
		{unix.ENODEV, cnierr.IO, "the interface disappeared meanwhile: ip monitor link in the pod shows when another program removes it"},
		{unix.EAFNOSUPPORT, cnierr.Unsupported, "remove the IPv6 addresses, or boot the node without ipv6.disable=1"},
	}
}

// classify gives an error of the kernel its code and hint. It takes the first
// of own that fits, then the first of everywhere, else IO. It returns nil for
// nil, and leaves an error with a code as it is.
func classify(action, subject string, err error, own ...meaning) error {
	var known *cnierr.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	for _, m := range append(own, everywhere()...) {
		if errors.Is(err, m.is) {
			return &cnierr.Error{Code: m.code, Op: action, Subject: subject, Hint: m.hint, Err: err}
		}
	}
	return &cnierr.Error{Code: cnierr.IO, Op: action, Subject: subject, Err: err}
}

// ignore returns nil for the errors that mean that there was nothing to do.
func ignore(err error, harmless ...unix.Errno) error {
	for _, e := range harmless {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// ChangedError is in the finding of Check about a property that another program has
// set since Do: the MAC and the MTU of a link, its settings, the name of its master, and the
// route to a subnet that it has moved to a table of its own. Plugins behind roce do that, such as tuning
// and sbr, so that it is no damage.
type ChangedError struct {
	Property  string // MAC, MTU, the name of an RDMA device, a route, or the path of a setting
	Want, Got string
	// Raise is the MTU of ADD if it is higher, and the NIC allows it now; else 0. The kernel
	// lowers the MTU of a child with that of its NIC, and does not raise it again. Repair
	// does: a lower MTU is to be set by roce itself.
	Raise int
}

// Error says what Do set, and what is there now.
func (e *ChangedError) Error() string {
	if strings.Contains(e.Property, "/") { // the subject of the finding has the path
		return fmt.Sprintf("want %s, got %s", e.Want, e.Got)
	}
	if e.Raise > 0 {
		return fmt.Sprintf("want %s %s, got %s: its NIC had that for a time, or a program set it; rocectl repair raises it", e.Property, e.Want, e.Got)
	}
	return fmt.Sprintf("want %s %s, got %s", e.Property, e.Want, e.Got)
}

// The properties of a link in a ChangedError.
const (
	MAC    = "MAC"
	MTU    = "MTU"
	Master = "master" // its name

	subnetRoute = "the route to its subnet"
)
