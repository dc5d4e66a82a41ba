// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// trouble notes the error of one thing, or that it has none, and logs a change. The
// caller holds the lock.
func (k *poolController) trouble(what string, err error) {
	text, before := "", k.troubles[what]
	if err != nil {
		text = Line(err)
	}
	switch {
	case text == before:
		return
	case err == nil:
		delete(k.troubles, what)
		k.Log.Info("solved: "+what, "pool", k.pool)
	default:
		k.troubles[what] = text
		k.Log.Warn(what, append(About(err), "pool", k.pool)...)
	}
}

// About returns the fields of a log line about an error.
func About(err error) []any {
	c := told(err)
	return []any{slog.String("error", c.Msg), slog.String("hint", c.Details)}
}

// Line is an error and its hint.
func Line(err error) string {
	c := told(err)
	return fmt.Sprintf("%s (%s)", c.Msg, c.Details)
}

// told is an error in one line, with its hint.
func told(err error) *types.Error { return cnierr.CNI("rocectl", block.Explain(err)) }

// Health says whether pods of this node get addresses of each pool that selects it.
// It also returns one line for each error, without secrets.
func (a *Agent) Health() (well bool, lines []string) {
	a.mu.Lock()
	view, controllers, unreadable, unseen := maps.Clone(a.view), maps.Clone(a.controllers), a.unreadable, a.unseen
	a.mu.Unlock()
	if view == nil && unseen == "" {
		unseen = "the RailPools and the Node object have not been read yet: check that the API server answers"
	}
	for _, line := range []string{unreadable, unseen} {
		if line != "" {
			lines = append(lines, line)
		}
	}
	well = len(lines) == 0
	for _, name := range slices.Sorted(maps.Keys(view)) {
		j := view[name]
		if !j.selected {
			continue
		}
		if j.deleted {
			lines = append(lines, fmt.Sprintf("RailPool %s: it was deleted: the node claims no more blocks of it, and releases its blocks when no pod has an address of it", name))
		} else if _, err := a.Ranges.Read(name); err != nil {
			well, lines = false, append(lines, fmt.Sprintf("RailPool %s: %s", name, told(err).Msg))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(controllers)) {
		lines = append(lines, controllers[name].ills()...)
	}
	return well, append(lines, a.services.ills()...)
}

// ills returns the errors of a pool.
func (k *poolController) ills() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var lines []string
	for _, what := range slices.Sorted(maps.Keys(k.troubles)) {
		lines = append(lines, fmt.Sprintf("RailPool %s: %s: %s", k.pool, what, k.troubles[what]))
	}
	return lines
}

// Handler serves /metrics for Prometheus and /healthz: 200 when pods get addresses of
// every pool that selects the node, otherwise 503. The body has the errors.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		well, lines := a.Health()
		if !well {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if len(lines) == 0 {
			lines = []string{"ok"}
		}
		for _, line := range lines {
			_, _ = io.WriteString(w, line+"\n") // the client is gone
		}
	})
	return mux
}
