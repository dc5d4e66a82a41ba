// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

func TestAnswersOfAStoreAreExplained(t *testing.T) {
	t.Parallel()
	for _, err := range []error{block.ErrUnknown, block.ErrConflict, block.ErrExists, block.ErrNotFound, &block.BusyError{}} {
		got := block.Explain(fmt.Errorf("x: %w", err))
		if cnierr.CodeOf(got) != cnierr.TryAgain || !errors.Is(got, err) {
			t.Errorf("%v becomes %v", err, got)
		}
	}
	for busy, want := range map[block.BusyError]string{{}: "the server is busy", {After: time.Second}: "the server is busy, for 1s"} {
		if got := busy.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	denied := cnierr.New(cnierr.BadConfig, "create", "x", "give it the right", "%w", block.ErrUnknown)
	for _, err := range []error{nil, context.Canceled, denied} {
		if got := block.Explain(err); got != err { //nolint:errorlint // the very same
			t.Errorf("%v becomes %v", err, got)
		}
	}
}
