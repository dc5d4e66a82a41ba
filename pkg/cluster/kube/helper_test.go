// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// answer is what the server says to one request.
type answer struct {
	code   int
	header string // "Name: value"
	body   string
	cut    bool // no answer: the connection ends when the request was read
	slow   bool // no answer: the server waits until the client has gone
}

// request is what the server was asked.
type request struct{ method, path, query, kind, body string }

// server gives its answers one after the other, and the last one again and again.
type server struct {
	*httptest.Server
	mu      sync.Mutex
	answers []answer
	asked   []request
	accepts []string // what the client wants, of each
}

func serve(t *testing.T, answers ...answer) *server {
	t.Helper()
	s := &server{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(s.handle))
	t.Cleanup(s.Close)
	return s
}

func (s *server) handle(w http.ResponseWriter, r *http.Request) {
	a := s.next(r)
	if a.cut {
		panic(http.ErrAbortHandler)
	}
	if a.slow {
		<-r.Context().Done()
		return
	}
	if strings.HasPrefix(a.body, "{") {
		w.Header().Set("Content-Type", "application/json")
	}
	if name, value, there := strings.Cut(a.header, ": "); there {
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.code)
	_, _ = io.WriteString(w, a.body) // a client that has gone needs none
}

func (s *server) next(r *http.Request) answer {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	i := min(len(s.asked), len(s.answers)-1)
	s.asked = append(s.asked, request{r.Method, r.URL.Path, r.URL.Query().Encode(), r.Header.Get("Content-Type"), string(body)})
	s.accepts = append(s.accepts, r.Header.Get("Accept"))
	return s.answers[i]
}

// requests returns what the server was asked so far.
func (s *server) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// noon is the time that people have.
func noon() time.Time { return time.Date(2026, 1, 2, 12, 0, 0, 345678000, time.UTC) }

func (s *server) api(t *testing.T) *kube.API {
	t.Helper()
	a, err := kube.Open(&rest.Config{Host: s.URL}, noon)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// status is a metav1.Status.
func status(code int, reason string) answer {
	return answer{code: code, body: fmt.Sprintf(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "it says so", "reason": %q, "code": %d, "details": {"name": "gpu-3"}}`, reason, code)}
}

// railBlock is the object of block 3, with that UID.
func railBlock(uid string) answer {
	return answer{code: http.StatusOK, body: fmt.Sprintf(`{"apiVersion": "roce-cni.io/v1alpha1", "kind": "RailBlock",
		"metadata": {"name": "gpu-3", "uid": %q, "resourceVersion": "42", "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"roce-cni.io/pool": "gpu"}},
		"spec": {"pool": "gpu", "index": 3, "size": 16, "nodeName": "node-1", "machineID": "abc"},
		"status": {"asserted": "2026-01-02T03:04:05.000006Z", "size": 16, "used": 4, "quarantined": 2, "free": 10}}`, uid)}
}
