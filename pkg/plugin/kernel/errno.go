// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"

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
