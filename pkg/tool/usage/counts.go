// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package usage

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/counts"
)

// countEvery is how often Count looks, or less often where a look takes long: it takes at most
// a twentieth of the time.
const countEvery = 15 * time.Second

// Count writes the counts of a node into a file until the context ends. look returns what users
// have, wait returns after a time, or with the context's error when that ends.
func Count(ctx context.Context, file counts.File, log *slog.Logger, look func(context.Context) ([]Use, error), wait func(context.Context, time.Duration) error) {
	said := ""
	for ctx.Err() == nil {
		began := time.Now()
		uses, err := look(ctx)
		pause := max(countEvery, 20*time.Since(began))
		if uses != nil {
			err = errors.Join(err, file.Write(counts.Counts{Until: time.Now().Add(3 * pause).UTC(), Rows: counts.Bounded(rows(uses))}))
		}
		text := ""
		if err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != "" && text != said {
			log.Warn("what pods have on the RDMA devices cannot be counted", "error", text)
		}
		said = text
		_ = wait(ctx, pause) // the loop looks at the context
	}
}

func rows(uses []Use) []counts.Row {
	var out []counts.Row
	for _, u := range uses {
		who := counts.User{Kind: string(u.Kind), Namespace: u.Pod.Namespace, Pod: cmp.Or(u.Pod.Name, string(u.ContainerID))}
		out = append(out, counts.Row{
			Device: u.Device, User: who, QueuePairs: u.QueuePairs, Contexts: u.Contexts,
			Regions: u.Regions, RegionBytes: u.RegionBytes, Connections: u.Connections, HeldGIDs: len(u.Held),
		})
	}
	return out
}
