// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
)

// server is an API server that answers each request with a code, or not at all.
type server struct {
	code int
	err  error
}

// RoundTrip implements http.RoundTripper.
func (s *server) RoundTrip(*http.Request) (*http.Response, error) {
	if s.err != nil {
		return nil, s.err
	}
	return &http.Response{StatusCode: s.code, Body: http.NoBody}, nil
}

func TestRequestsAreCountedByVerbResourceAndCode(t *testing.T) {
	t.Parallel()
	const ours = "https://api/apis/roce-cni.io/v1alpha1/"
	refused := errors.New("connection refused")
	var said strings.Builder
	r := agent.NewRequests(slog.New(slog.NewTextHandler(&said, nil)))
	s := &server{}
	wire := r.Through(s)
	for _, c := range []struct {
		method, url string
		code        int
		err         error
		want        string
		logs        int // in all, so far
	}{
		{"GET", ours + "railblocks?fieldSelector=x", 200, nil, `code="200",resource="railblocks",verb="list"`, 0},
		{"GET", ours + "railblocks?watch=true", 200, nil, `code="200",resource="railblocks",verb="watch"`, 0},
		{"GET", ours + "railblocks/compute-37", 404, nil, `code="404",resource="railblocks",verb="get"`, 0},
		{"POST", ours + "railblocks", 409, nil, `code="409",resource="railblocks",verb="create"`, 0},
		{"PATCH", ours + "railblocks/compute-37/status", 200, nil, `code="200",resource="railblocks/status",verb="patch"`, 0},
		{"PUT", ours + "railleases/x", 200, nil, `code="200",resource="railleases",verb="update"`, 0},
		{"DELETE", ours + "railleases/x", 200, nil, `code="200",resource="railleases",verb="delete"`, 0},
		{"GET", "https://api/api/v1/nodes/n1", 200, nil, `code="200",resource="nodes",verb="get"`, 0},
		{"GET", "https://api/", 200, nil, `code="200",resource="",verb="get"`, 0},
		{"GET", "https://api/api/v1/pods", 0, context.Canceled, "", 0}, // this node ended it
		{"GET", "https://api/api/v1/nodes/n2", 0, refused, `code="none",resource="nodes",verb="get"`, 1},
		{"GET", "https://api/api/v1/nodes/n2", 429, nil, `code="429",resource="nodes",verb="get"`, 1},
		{"GET", "https://api/api/v1/nodes/n2", 500, nil, `code="500",resource="nodes",verb="get"`, 1},
		{"GET", "https://api/api/v1/nodes/n2", 403, nil, `code="403",resource="nodes",verb="get"`, 2},
		{"GET", "https://api/api/v1/nodes/n2", 504, nil, `code="504",resource="nodes",verb="get"`, 3},
	} {
		s.code, s.err = c.code, c.err
		before := scrape(r)
		answer, err := wire.RoundTrip(httptest.NewRequest(c.method, c.url, http.NoBody))
		if !errors.Is(err, c.err) || err == nil && answer.StatusCode != c.code {
			t.Errorf("%s %s: %v, %v", c.method, c.url, answer, err)
		}
		now := scrape(r)
		if want := `roce_cni_api_requests_total{` + c.want + `} `; (c.want == "") != (now == before) || c.want != "" && !strings.Contains(now, want) {
			t.Errorf("%s %s, %d: want %s in\n%s", c.method, c.url, c.code, want, now)
		}
		if n := strings.Count(said.String(), "\n"); n != c.logs {
			t.Errorf("%s %s, %d: %d lines are logged, want %d\n%s", c.method, c.url, c.code, n, c.logs, &said)
		}
	}
}

func scrape(c prometheus.Collector) string {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/", http.NoBody))
	return w.Body.String()
}
