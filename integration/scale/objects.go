// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"net/http"

	"github.com/roce-cni/roce-cni/integration/scale/rival"
)

// serverObjects is the objects of the other two designs on the real API server.
type serverObjects struct {
	*server
	way http.RoundTripper
}

func pathOf(k rival.Kind) string {
	if k == rival.Leases {
		return "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
	}
	return "/apis/scale.roce-cni.io/v1/" + string(k)
}

func (s *serverObjects) Get(ctx context.Context, k rival.Kind, name string) (rival.Object, error) {
	var out rival.Wire
	err := s.call(ctx, s.way, http.MethodGet, pathOf(k)+"/"+name, nil, &out)
	return out.Object(k), err
}

func (s *serverObjects) List(ctx context.Context, k rival.Kind) error {
	var out struct {
		Items []rival.Wire `json:"items"`
	}
	return s.call(ctx, s.way, http.MethodGet, pathOf(k), nil, &out)
}

func (s *serverObjects) Create(ctx context.Context, o rival.Object) error {
	body, err := rival.Encode(o)
	if err != nil {
		return err
	}
	return s.call(ctx, s.way, http.MethodPost, pathOf(o.Kind), body, nil)
}

func (s *serverObjects) Update(ctx context.Context, o rival.Object) (rival.Object, error) {
	body, err := rival.Encode(o)
	if err != nil {
		return rival.Object{}, err
	}
	var out rival.Wire
	err = s.call(ctx, s.way, http.MethodPut, pathOf(o.Kind)+"/"+o.Name, body, &out)
	return out.Object(o.Kind), err
}
