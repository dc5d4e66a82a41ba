// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package usage

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/counts"
)

// A look takes two seconds, then five looks fail, and then one takes no time. A reader may use
// what was written until two more looks would have replaced it.
func TestACountStaysWhileLooksFailAndTakesATwentiethOfTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		file := counts.File{Dir: t.TempDir()}
		var log strings.Builder
		var pauses, valid []time.Duration
		looks := 0
		look := func(context.Context) ([]Use, error) {
			switch looks++; {
			case looks == 1:
				time.Sleep(2 * time.Second)
			case looks <= 6:
				return nil, errors.New("netlink is away")
			}
			if looks == 7 {
				return []Use{{Device: "rxe0", User: User{Kind: Host}}}, errors.New("netlink is away") // beside the uses
			}
			return []Use{{Device: "rxe0", User: User{Kind: Host}}}, nil
		}
		Count(ctx, file, slog.New(slog.NewTextHandler(&log, nil)), look, func(_ context.Context, d time.Duration) error {
			written, err := file.Read()
			if err != nil {
				t.Fatal(err)
			}
			pauses, valid = append(pauses, d/time.Second), append(valid, time.Until(written.Until)/time.Second)
			if time.Sleep(d); len(pauses) == 7 {
				stop()
			}
			return ctx.Err()
		})
		if diff := cmp.Diff([]time.Duration{40, 15, 15, 15, 15, 15, 15}, pauses); diff != "" {
			t.Errorf("pauses (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff([]time.Duration{120, 80, 65, 50, 35, 20, 45}, valid); diff != "" {
			t.Errorf("what was written is valid for (-want +got)\n%s", diff)
		}
		if got := strings.Count(log.String(), "netlink is away"); got != 1 {
			t.Errorf("the fault is logged %d times, want once\n%s", got, log.String())
		}
	})
}
