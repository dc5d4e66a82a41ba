// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ground

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"

	"k8s.io/client-go/rest"
)

// Proxy stands between clients and the API server.
type Proxy struct{ server *httptest.Server }

// NewProxy starts a proxy on the way that via describes. Of a silent request the server does
// what it asks for, and the client hears nothing until it gives up. silent is asked about each
// request, from several goroutines. Close ends the proxy.
func NewProxy(via *rest.Config, silent func(*http.Request) bool) (Proxy, error) {
	to, err := url.Parse(via.Host)
	if err != nil {
		return Proxy{}, err
	}
	transport, err := rest.TransportFor(via)
	if err != nil {
		return Proxy{}, err
	}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     transport,
		FlushInterval: -1, // watches
		// What the server does while it is killed is lost for the client too.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	return Proxy{httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if silent(r) {
			forward.ServeHTTP(httptest.NewRecorder(), r)
			<-r.Context().Done()
			return
		}
		forward.ServeHTTP(w, r)
	}))}, nil
}

// Config returns how to reach the API server through the proxy, with the rights
// of the way behind it.
func (p Proxy) Config() *rest.Config { return &rest.Config{Host: p.server.URL, QPS: -1} }

// Close ends the proxy and what goes through it.
func (p Proxy) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
}
