// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// deviceInfo executes plan.DeviceInfo.
type deviceInfo struct{ op plan.DeviceInfo }

// do writes the file under another name and links it to its name. So a reader finds
// the whole file or none, and do never replaces another file. The folder belongs to
// the runtime, and stays.
func (d deviceInfo) do(context.Context) error {
	const action = "write device information"
	if err := trusted.MakeFolder(filepath.Dir(d.op.File), 0o755); err != nil {
		return d.failed(action, err)
	}
	draft, err := trusted.Fresh(d.op.File, 0o644)
	if err != nil {
		return d.failed(action, err)
	}
	_, err = draft.WriteString(d.op.Text())
	if err = errors.Join(err, draft.Close()); err == nil {
		err = os.Link(draft.Name(), d.op.File)
	}
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return d.failed(action, errors.Join(err, os.Remove(draft.Name())))
}

// undo removes the file if it is ours. Multus itself removes the file of the device
// plugin.
func (d deviceInfo) undo(context.Context) error {
	const action = "remove device information"
	if err := trusted.Folder(filepath.Dir(d.op.File)); err != nil {
		return d.failed(action, err)
	}
	if err := trusted.Sweep(d.op.File); err != nil {
		return d.failed(action, err)
	}
	info, err := os.Lstat(d.op.File)
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(d.op.Text())) {
		return d.failed(action, gone(err))
	}
	b, err := trusted.Read(d.op.File)
	if err == nil && string(b) == d.op.Text() {
		err = os.Remove(d.op.File)
	}
	return d.failed(action, gone(err))
}

// check returns an error if there is no file. It accepts the file of another program.
func (d deviceInfo) check(context.Context) error {
	_, err := os.Lstat(d.op.File)
	if errors.Is(err, fs.ErrNotExist) {
		return damaged("check device information", d.op.File, plan.OnHost(d.op).Commands(""), "the file is gone")
	}
	return d.failed("check device information", err)
}

// gone returns nil if the error says that the file is not there: it counts as
// removed.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (d deviceInfo) failed(action string, err error) error {
	if err == nil {
		return nil
	}
	return cnierr.New(cnierr.IO, action, d.op.File,
		"check the folder: Multus and the plugin must see it at the same path; or remove the capability CNIDeviceInfoFile", "%w", err)
}
