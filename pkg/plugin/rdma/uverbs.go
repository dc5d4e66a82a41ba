// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
)

// uverbs returns the name of the file that programs open to use a device, such as
// uverbs1. It returns "" if there is none, or if several devices of the node have the
// name of this one. Every namespace sees these files.
func (s *Subsystem) uverbs(device string) string {
	if files := s.deviceFiles(device); len(files) == 1 {
		return files[0].Name
	}
	return ""
}

// deviceFiles returns the files for programs of all devices of the node that have a name.
func (s *Subsystem) deviceFiles(device string) []discover.File {
	return slices.DeleteFunc(discover.Files(s.c.Sys), func(f discover.File) bool { return f.Device != device })
}

const checkingFile = "check device file of"

// sameFile returns a finding if the device has another file than before the move. The
// kernel makes a new file on each move and takes the lowest free number
// (ib_uverbs_add_one), which another device may have left. A device plugin gave the
// container the old one.
func (m move) sameFile() error {
	was, is := m.op.UVerbs, m.uverbs(m.op.Device.Name)
	if was == "" || is == "" || was == is || m.op.UVerbsMode == conf.Off {
		return nil
	}
	return cnierr.New(cnierr.Damaged, checkingFile, m.op.Device.Name,
		"if a device plugin gives device files to the container, delete the pod: a new one gets /dev/infiniband/"+is+"; if it uses all of /dev/infiniband, set rdma.uverbs to off",
		"the move changed its file from /dev/infiniband/%s to /dev/infiniband/%s", was, is)
}

// renumbered treats such a finding as rdma.uverbs says, when a pod is made.
func (m move) renumbered() error {
	finding := m.sameFile()
	if finding == nil || m.op.UVerbsMode == conf.Require {
		return finding
	}
	m.c.Log.Warn("the move changed the file of an RDMA device", "error", finding.Error(), "hint", hintOf(finding))
	return nil
}
