// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/tool/usage"
)

// TestTopSaysWhatIsMissing has looks that read everything, and looks that did not.
func TestTopSaysWhatIsMissing(t *testing.T) {
	uses := []usage.Use{{Device: "rxe0", Interface: "net1", QueuePairs: map[string]int{"RC": 1}}}
	for _, missing := range []error{nil, errors.Join(errors.New("the calls"), errors.New("a record"))} {
		var out bytes.Buffer
		top := top{node: &nodeFlags{stateDir: t.TempDir()}, out: &out}
		if err := top.write(&out, uses, missing); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "RC 1") || strings.Contains(out.String(), "# missing: the calls\n# missing: a record\n") != (missing != nil) {
			t.Errorf("without %v:\n%s", missing, &out)
		}
	}
}
