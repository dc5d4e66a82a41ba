// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package podenv prints the RDMA settings of a pod for a shell, and says what keeps
// a container from using its RDMA devices.
//
// It finds nothing out about rails or GIDs: that is pkg/tool/gids. The programs rocectl
// and roce-env use it. Read this file first.
package podenv

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

// Write writes the lines for a shell. If there is a reason why the lines are not
// complete or not usable, it adds a line that fails.
func Write(w io.Writer, rails []gids.Rail, a gids.Advice, reason error) error {
	var b strings.Builder
	comment := func(format string, args ...any) {
		b.WriteString("# " + strings.Map(printable, fmt.Sprintf(format, args...)) + "\n")
	}
	for _, r := range rails {
		comment("%s %s: %s port %d, GID index %d", r.Link, r.Addr, r.Port.Device.Name, r.Port.Number, r.Index)
	}
	for _, why := range a.Why {
		comment("why: %s", why)
	}
	for _, v := range a.Set {
		fmt.Fprintf(&b, "export %s=%s\n", v.Name, shell.Value(v.Value))
	}
	for i, command := range a.Perftest {
		comment("%s: %s", rails[i].Link, command)
	}
	if reason != nil {
		b.WriteString("false # see the error\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return cnierr.New(cnierr.IO, "write", "standard output", "", "%w", err)
	}
	return nil
}

// printable replaces a character of a name that would end the comment.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}
