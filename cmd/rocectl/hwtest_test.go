// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

// TestHWTestOpensItsFileFirst has a file that cannot be made: a run would be lost.
func TestHWTestOpensItsFileFirst(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	cmd, file := root(&out, &out), filepath.Join(t.TempDir(), "none", "x.tar.gz")
	cmd.SetArgs([]string{"hwtest", "--out", file})
	var e *cnierr.Error
	if err := cmd.Execute(); !errors.As(err, &e) || e.Code != cnierr.IO || e.Subject != file || !strings.Contains(e.Hint, "--out") {
		t.Errorf("got %v, want an error that names the file", err)
	}
	if out.Len() > 0 {
		t.Errorf("steps ran: %s", out.String())
	}
}
