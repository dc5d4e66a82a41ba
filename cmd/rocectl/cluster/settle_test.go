// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// kubeconfigOf returns a kubeconfig of a server.
func kubeconfigOf(t *testing.T, server string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := strings.ReplaceAll(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "SERVER"}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}]}`, "SERVER", server)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestCRDsThatWereJustAppliedAreAwaited: an API server refuses the first lists of a kind
// with code 429, "storage is (re)initializing".
func TestCRDsThatWereJustAppliedAreAwaited(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if asked.Add(1) <= 2 {
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "code": 429, "reason": "TooManyRequests", "message": "storage is (re)initializing"}`)
			return
		}
		_, _ = io.WriteString(w, `{"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}`)
	}))
	t.Cleanup(server.Close)
	if _, _, err := (Fleet{Kubectl: Kubectl{Kubeconfig: kubeconfigOf(t, server.URL)}}).Reports(t.Context(), io.Discard); err != nil {
		t.Errorf("after %d requests: %v", asked.Load(), err)
	}
}

// TestTheContextNamesTheCluster: without it, the cluster is that of the current context.
func TestTheContextNamesTheCluster(t *testing.T) {
	t.Parallel()
	asked := ""
	of := map[string]string{}
	for _, name := range []string{"here", "there"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked = name
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}`)
		}))
		t.Cleanup(server.Close)
		of[name] = server.URL
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "here",
		"clusters": [{"name": "a", "cluster": {"server": %q}}, {"name": "b", "cluster": {"server": %q}}],
		"contexts": [{"name": "here", "context": {"cluster": "a"}}, {"name": "there", "context": {"cluster": "b"}}]}`, of["here"], of["there"])
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for context, want := range map[string]string{"": "here", "here": "here", "there": "there"} {
		if _, _, err := (Fleet{Kubectl: Kubectl{Kubeconfig: file, Context: context}}).Reports(t.Context(), io.Discard); err != nil || asked != want {
			t.Errorf("--context=%s: asked %s, %v", context, asked, err)
		}
	}
	_, _, err := Fleet{Kubectl: Kubectl{Kubeconfig: file, Context: "nowhere"}}.Reports(t.Context(), io.Discard)
	if cnierr.CodeOf(err) != cnierr.BadConfig {
		t.Errorf("a context that the file does not have: %v", err)
	}
}

// TestCRDsThatAreNotEstablishedAreNamed: in a server that does not know the kind, and in
// one that stays busy.
func TestCRDsThatAreNotEstablishedAreNamed(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"unknown": http.NotFound,
		"busy": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusTooManyRequests)
		},
	} {
		server := httptest.NewServer(answer)
		t.Cleanup(server.Close)
		_, _, err := Fleet{Kubectl: Kubectl{Kubeconfig: kubeconfigOf(t, server.URL)}}.Reports(t.Context(), io.Discard)
		var e *cnierr.Error
		if !errors.As(err, &e) || !strings.Contains(e.Hint, "kubectl wait --for=condition=Established crd/railnodes.roce-cni.io") {
			t.Errorf("%s: got %v with the hint %q", name, err, e.Hint)
		}
	}
}
