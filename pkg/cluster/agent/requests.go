// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Requests counts the requests to the API server. Claimers wait for an answer without
// limit, so it also logs once that there is no answer.
type Requests struct {
	*prometheus.CounterVec // by verb, resource and code
	log                    *slog.Logger

	mu     sync.Mutex
	silent bool
}

// NewRequests returns a counter at zero.
func NewRequests(log *slog.Logger) *Requests {
	c := counter("api_requests_total", "Requests to the API server by the code of the answer: none if there is no answer.", "verb", "resource", "code")
	return &Requests{CounterVec: c, log: log}
}

// Through returns a RoundTripper that counts what goes through another one: it is for
// rest.Config.Wrap of client-go.
func (r *Requests) Through(next http.RoundTripper) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(q *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(q)
		if !errors.Is(err, context.Canceled) { // otherwise this node ended it
			r.note(q, answer, err)
		}
		return answer, err
	})
}

func (r *Requests) note(q *http.Request, answer *http.Response, err error) {
	verb, resource := asked(q)
	code, silent := "none", true
	if err == nil {
		code = strconv.Itoa(answer.StatusCode)
		silent = answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode >= http.StatusInternalServerError
	}
	r.WithLabelValues(verb, resource, code).Inc()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case silent && !r.silent:
		r.log.Warn("the API server does not answer, or is busy: the node keeps what it has, and the agent tries again",
			"verb", verb, "resource", resource, "code", code, "error", err)
	case !silent && r.silent:
		r.log.Info("the API server answers again")
	}
	r.silent = silent
}

// asked returns the verb and the resource of a request, as RBAC has them: the path is
// /api/v1/RESOURCE/NAME/SUBRESOURCE, or /apis/GROUP/VERSION/RESOURCE and so on.
func asked(q *http.Request) (verb, resource string) {
	path := strings.Split(strings.Trim(q.URL.Path, "/"), "/")
	path = path[min(len(path), map[bool]int{true: 2, false: 3}[path[0] == "api"]):]
	verb = map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[q.Method]
	switch {
	case verb != "":
	case q.URL.Query().Has("watch"):
		verb = "watch"
	case len(path) == 1:
		verb = "list"
	default:
		verb = "get"
	}
	if len(path) > 2 {
		return verb, path[0] + "/" + path[2]
	}
	return verb, strings.Join(path[:min(len(path), 1)], "")
}
