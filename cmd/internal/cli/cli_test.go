// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cli

import (
	"os"
	"testing"
)

// Package report colours what goes to a file that is a terminal.
func TestWithoutColoursTheOutputIsNoFile(t *testing.T) {
	for _, noColor := range []string{"", "1"} {
		t.Setenv("NO_COLOR", noColor)
		if _, isFile := Output(os.Stdout).(*os.File); isFile != (noColor == "") {
			t.Errorf("NO_COLOR=%q: the output is a file: %v", noColor, isFile)
		}
	}
}
