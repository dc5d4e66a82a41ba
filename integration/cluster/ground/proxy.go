// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ground

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
)

// Fault is what a proxy does to one request.
type Fault string

// The faults. Of a Lost request the server hears nothing; a Landed one it has
// done when its answer is lost. In both the connection breaks. Silent is Landed
// with a connection that stays, until the client gives up. A Refused request is
// answered by the proxy: 429, after RetryAfter.
const (
	None    Fault = ""
	Lost    Fault = "lost"
	Landed  Fault = "landed"
	Silent  Fault = "silent"
	Refused Fault = "refused"
)

// RetryAfter is what a Refused request is told.
const RetryAfter = time.Second

// Proxy stands between clients and the API server.
type Proxy struct {
	server *httptest.Server
	fault  func(*http.Request) Fault
	passed atomic.Int64
}

// NewProxy starts a proxy on the way that via describes. fault is asked about
// each request, from several goroutines. Close ends it.
func NewProxy(via *rest.Config, fault func(*http.Request) Fault) (*Proxy, error) {
	to, err := url.Parse(via.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(via)
	if err != nil {
		return nil, err
	}
	p := &Proxy{fault: fault}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     transport,
		FlushInterval: -1, // watches
		// What the server does while it is killed is lost for the client too.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.serve(forward, w, r)
	}))
	return p, nil
}

func (p *Proxy) serve(forward http.Handler, w http.ResponseWriter, r *http.Request) {
	switch p.fault(r) {
	case Lost:
		panic(http.ErrAbortHandler)
	case Landed:
		p.passed.Add(1)
		forward.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case Silent:
		p.passed.Add(1)
		forward.ServeHTTP(httptest.NewRecorder(), r)
		<-r.Context().Done()
	case Refused:
		w.Header().Set("Retry-After", strconv.Itoa(int(RetryAfter.Seconds())))
		http.Error(w, "busy", http.StatusTooManyRequests)
	default:
		p.passed.Add(1)
		forward.ServeHTTP(w, r)
	}
}

// Config returns how to reach the API server through the proxy, with the rights
// of the way behind it.
func (p *Proxy) Config() *rest.Config { return &rest.Config{Host: p.server.URL, QPS: -1} }

// Passed returns how many requests the API server has got.
func (p *Proxy) Passed() int { return int(p.passed.Load()) }

// Close ends the proxy and what goes through it.
func (p *Proxy) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
}
