// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
)

const needsRoot = "run the plugin as root, with CAP_NET_ADMIN and CAP_SYS_ADMIN in the host's user namespace"

// classify gives an error of the kernel its code and hint. Nil stays nil, and an
// error with a code keeps its code.
func classify(action, subject string, err error) error {
	const again = cnierr.Again + "; if the error stays, check the load of the node"
	var known *cnierr.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return cnierr.New(cnierr.NoRDMA, action, subject, discover.LoadDriver, "the kernel has no RDMA: %w", fmt.Errorf("%w: %w", ErrNoDevice, err))
	}
	for _, e := range []error{context.Canceled, context.DeadlineExceeded, nlsock.ErrInterrupted, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN} {
		if errors.Is(err, e) {
			return &cnierr.Error{Code: cnierr.TryAgain, Op: action, Subject: subject, Hint: again, Err: err}
		}
	}
	hint := ""
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		hint = needsRoot
	}
	return &cnierr.Error{Code: cnierr.IO, Op: action, Subject: subject, Hint: hint, Err: err}
}

// noDevice says whether an error means that there is no device. Other errors mean
// that the question failed.
func noDevice(err error) bool { return errors.Is(err, ErrNoDevice) }

// text returns the text of a file of sysfs or procfs, "" if it cannot be read.
func text(files fs.FS, name string) string {
	b, err := fs.ReadFile(files, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
