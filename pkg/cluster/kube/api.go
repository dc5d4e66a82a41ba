// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package kube stores RailPools, RailBlocks and RailLeases in the Kubernetes API, and
// answers what claimer and reaper ask about nodes. It also watches the CIDRs of the
// cluster's Services, and stores what nodes report about their rails.
//
// It never decides who owns what, never retries, never caches, and never runs in a plugin. It
// implements the stores of packages block and sticky, and reconcile's Cluster. Read this file
// first; types.go and objects.go have the objects, errors.go the meaning of answers.
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// Deadline is how long a request may take. It is as long as the API server works on a
// request, because a busy server must not get the same work twice.
const Deadline = 60 * time.Second

// pageSize is how many objects one request of a list returns, if the list is read
// from etcd and not from the API server's cache.
const pageSize = 500

// API is an API server. Any number of goroutines may use it.
type API struct {
	ours, core rest.Interface // of the group roce-cni.io, and of Kubernetes itself
	networking rest.Interface // of the group networking.k8s.io
	now        func() time.Time
	deadline   time.Duration
}

// Open makes an API from a configuration. It sends nothing. The limits of client-go on requests
// are off: the caller waits between requests. now is the wall clock, for people.
func Open(cfg *rest.Config, now func() time.Time) (*API, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	of := func(path string, gv schema.GroupVersion) (*rest.RESTClient, error) {
		c := rest.CopyConfig(cfg)
		c.APIPath, c.GroupVersion, c.QPS, c.RateLimiter = path, &gv, -1, nil
		c.ContentType, c.AcceptContentTypes = "application/json", "application/json"
		c.NegotiatedSerializer = serializer.NewCodecFactory(newScheme()).WithoutConversion()
		return rest.RESTClientForConfigAndClient(c, client)
	}
	ours, fault := of("/apis", Version())
	core, fault2 := of("/api", schema.GroupVersion{Version: "v1"})
	networking, fault3 := of("/apis", networking.SchemeGroupVersion)
	if err := errors.Join(fault, fault2, fault3); err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return &API{ours, core, networking, now, Deadline}, nil
}

var (
	_ block.Store    = Blocks{}
	_ sticky.Cluster = &API{}
)

// do sends a request once, within the deadline, and reads the answer into out
// unless that is nil.
func (a *API) do(ctx context.Context, r *rest.Request, what string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, a.deadline)
	defer cancel()
	result := r.MaxRetries(0).Do(ctx) // the error alone would not say what was tried
	if err := result.Error(); err != nil {
		return Classify(what, err)
	}
	body, err := result.Raw()
	if err == nil && out != nil {
		err = json.Unmarshal(body, out)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", block.ErrUnknown, what, err)
	}
	return nil
}

// send is do with a body, unless that is nil.
func (a *API) send(ctx context.Context, r *rest.Request, what string, body, out any) error {
	if body != nil {
		content, err := json.Marshal(body)
		if err != nil {
			return cnierr.New(cnierr.Bug, what, "", "", "%w", err)
		}
		r = r.Body(content)
	}
	return a.do(ctx, r, what, out)
}

// onlyMetadata leaves the specifications of pods, with their environment, at the server.
const onlyMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// any says whether a list has an object, at some time after the call.
func (a *API) any(ctx context.Context, r *rest.Request, what string) (bool, error) {
	var page struct {
		Items []json.RawMessage `json:"items"`
	}
	err := a.do(ctx, r.Param("limit", "1").SetHeader("Accept", onlyMetadata), what, &page)
	return len(page.Items) > 0, err
}

// items returns the objects of a list, as each does.
func items[T any](ctx context.Context, a *API, client rest.Interface, resource string, params url.Values, f block.Freshness) (out []T, err error) {
	err = each(ctx, a, client, resource, params, f, func(o *T) { out = append(out, *o) })
	return out, err
}

// each calls see for each object of a list. A Latest list shows one moment, even if it has many
// pages; if that is too long ago for the next page, the error is a *block.BusyError.
func each[T any](ctx context.Context, a *API, client rest.Interface, resource string, params url.Values, f block.Freshness, see func(*T)) error {
	if f == block.Cached {
		params.Set("resourceVersion", "0")
	} else {
		params.Set("limit", strconv.Itoa(pageSize))
	}
	for {
		request := client.Get().Resource(resource)
		for key := range params {
			request = request.Param(key, params.Get(key))
		}
		var body json.RawMessage
		if err := a.do(ctx, request, "list "+resource, &body); err != nil {
			return err
		}
		var page struct {
			Metadata metav1.ListMeta `json:"metadata"`
			Items    []T             `json:"items"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return cnierr.New(cnierr.Decode, "list", resource, "", "%w", err)
		}
		for i := range page.Items {
			see(&page.Items[i])
		}
		if page.Metadata.Continue == "" {
			return nil
		}
		params.Set("continue", page.Metadata.Continue)
	}
}
