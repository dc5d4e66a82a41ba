// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// TestACommandThatEndsAtItsDeadlineSaysWhatTheUserDoes: a runtime repeats its calls, but
// nothing repeats rocectl repair.
func TestACommandThatEndsAtItsDeadlineSaysWhatTheUserDoes(t *testing.T) {
	t.Parallel()
	records := record.Store{Dir: t.TempDir(), BootID: "b"}
	release, err := records.Lock(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, locked := records.Lock(ctx, "c1")
	for name, err := range map[string]error{
		"another call holds the lock": locked,
		"without a hint of its own":   cnierr.New(cnierr.TryAgain, "send probes", "", "", "%w", ctx.Err()),
	} {
		var out strings.Builder
		cli.PrintError(&out, root(&out, &out), err)
		if !strings.Contains(out.String(), "hint: wait, and try again (a runtime does so by itself); if the error stays, ") {
			t.Errorf("%s: %s", name, out.String())
		}
	}
}
