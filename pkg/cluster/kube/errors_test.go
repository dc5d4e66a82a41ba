// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// is says whether an error is one of a store's answers.
func is(want error) func(error) bool {
	return func(err error) bool { return errors.Is(err, want) && !errors.As(err, new(*cnierr.Error)) }
}

// busy says whether an error is a refusal for so long.
func busy(after time.Duration) func(error) bool {
	return func(err error) bool {
		var b *block.BusyError
		return errors.As(err, &b) && b.After == after && !errors.Is(err, block.ErrUnknown)
	}
}

// lasting says whether an error is one that waiting does not correct, with a hint.
func lasting(code cnierr.Code, hint string) func(error) bool {
	return func(err error) bool {
		c := cnierr.CNI("rocectl", err)
		return c != nil && cnierr.CodeOf(err) == code && strings.Contains(c.Details, hint) && !errors.Is(err, block.ErrUnknown)
	}
}

func sample() block.Block {
	return block.Block{Name: "gpu-3", Spec: block.Spec{Pool: "gpu", Index: 3, Size: 16, Owner: block.Owner{NodeName: "node-1", MachineID: "abc"}}}
}

func TestAnAnswerMeansWhetherAnythingWasDone(t *testing.T) {
	t.Parallel()
	const create, get, remove, list = "create", "get", "delete", "list"
	for name, tt := range map[string]struct {
		op     string
		answer answer
		want   func(error) bool
	}{
		"too many requests":                             {create, answer{code: 429, header: "Retry-After: 7", body: "Too many requests"}, busy(7 * time.Second)},
		"too many requests, as a Status":                {create, answer{code: 429, header: "Retry-After: 1", body: `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "TooManyRequests", "code": 429, "details": {"retryAfterSeconds": 1}}`}, busy(time.Second)},
		"too many requests, without Retry-After":        {create, answer{code: 429, body: "Too many requests"}, busy(0)},
		"too many requests of a list":                   {list, answer{code: 429, header: "Retry-After: 3", body: "Too many requests"}, busy(3 * time.Second)},
		"unavailable, try again":                        {create, answer{code: 503, header: "Retry-After: 5", body: "starting"}, busy(5 * time.Second)},
		"a policy that a new server cannot look up yet": {create, answer{code: 422, body: `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422, "message": "railblocks.roce-cni.io \"gpu-3\" is forbidden: ValidatingAdmissionPolicy 'roce-cni-blocks-fit' denied request: failed to configure policy: failed to find resource referenced by paramKind: 'roce-cni.io/v1alpha1, Kind=RailPool'"}`}, is(block.ErrUnknown)},
		"pools that a new server has not listed yet":    {create, answer{code: 422, body: `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422, "message": "railblocks.roce-cni.io \"gpu-3\" is forbidden: ValidatingAdmissionPolicy 'roce-cni-blocks-fit' with binding 'roce-cni-blocks-fit' denied request: failed to configure binding: paramKind kind ` + "`&ParamKind{APIVersion:roce-cni.io/v1alpha1,Kind:RailPool,}`" + ` not yet synced to use for admission"}`}, is(block.ErrUnknown)},
		"unavailable, says a proxy":                     {create, answer{code: 503, body: "upstream reset"}, is(block.ErrUnknown)},
		"etcd does not answer":                          {create, answer{code: 500, header: "Retry-After: 2", body: `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "ServerTimeout", "code": 500, "details": {"retryAfterSeconds": 2}}`}, is(block.ErrUnknown)},
		"an internal error":                             {create, status(500, "InternalError"), is(block.ErrUnknown)},
		"the server's own deadline":                     {create, answer{code: 504, header: "Retry-After: 2", body: status(504, "Timeout").body}, is(block.ErrUnknown)},
		"a bad gateway":                                 {create, answer{code: 502, body: "<html>"}, is(block.ErrUnknown)},
		"the name is taken":                             {create, status(409, "AlreadyExists"), is(block.ErrExists)},
		"another version":                               {remove, status(409, "Conflict"), is(block.ErrConflict)},
		"not there":                                     {get, status(404, "NotFound"), is(block.ErrNotFound)},
		"nothing to delete":                             {remove, status(404, "NotFound"), is(block.ErrNotFound)},
		"a list that took too long":                     {list, status(410, "Expired"), busy(0)},
		"the group is not there":                        {get, answer{code: 404, body: "404 page not found\n"}, lasting(cnierr.NotAvailable, "CustomResourceDefinitions")},
		"the group is not there to create in":           {create, answer{code: 404, body: "404 page not found\n"}, lasting(cnierr.NotAvailable, "CustomResourceDefinitions")},
		"no right":                                      {create, status(403, "Forbidden"), lasting(cnierr.NotAvailable, "ServiceAccount")},
		"no identity":                                   {create, status(401, "Unauthorized"), lasting(cnierr.NotAvailable, "kubectl auth whoami")},
		"invalid":                                       {create, status(422, "Invalid"), lasting(cnierr.BadConfig, "CustomResourceDefinitions")},
		"what the server cannot read":                   {create, status(400, "BadRequest"), lasting(cnierr.NotAvailable, "")},
		"a list of something else":                      {list, answer{code: 200, body: `{"items": [{"spec": {"index": "one"}}]}`}, lasting(cnierr.Decode, "")},
		"half an answer":                                {create, answer{code: 200, body: `{"metadata": {"name`}, is(block.ErrUnknown)},
		"no answer, with the request read":              {create, answer{cut: true}, is(block.ErrUnknown)},
		"no answer to a read":                           {get, answer{cut: true}, is(block.ErrUnknown)},
		"no answer in time":                             {create, answer{slow: true}, is(block.ErrUnknown)},
		"no list in time":                               {list, answer{slow: true}, is(block.ErrUnknown)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, tt.answer)
			a := s.api(t)
			if tt.answer.slow {
				a = a.Within(50 * time.Millisecond)
			}
			var err error
			switch tt.op {
			case create:
				_, err = a.Blocks().Create(t.Context(), sample())
			case get:
				_, err = a.Blocks().Get(t.Context(), "gpu-3")
			case remove:
				err = a.Blocks().Delete(t.Context(), "gpu-3", "uid", "42")
			case list:
				_, err = a.Blocks().List(t.Context(), block.Query{Pool: "gpu"})
			}
			if !tt.want(err) {
				t.Errorf("got %v", err)
			}
			// Who calls tries again, and counts. On a busy machine a request may be given
			// up before it was sent.
			if asked := s.requests(); len(asked) > 1 || len(asked) == 0 && !tt.answer.slow {
				t.Errorf("asked %d times: %v", len(asked), asked)
			}
		})
	}
}

func TestACallThatIsEndedHasNoAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{slow: true})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.api(t).Blocks().Create(ctx, sample()); !is(block.ErrUnknown)(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestAServerThatIsNotThereHasNoAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: http.StatusOK})
	a := s.api(t)
	s.Close()
	if _, err := a.Blocks().Get(t.Context(), "gpu-3"); !is(block.ErrUnknown)(err) {
		t.Errorf("got %v", err)
	}
}

func TestAServerWithAnUnknownCertificateIsAPermanentError(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	a, err := kube.Open(&rest.Config{Host: s.URL}, noon)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Blocks().Get(t.Context(), "gpu-3"); !lasting(cnierr.BadConfig, "certificate authority")(err) {
		t.Errorf("got %v", err)
	}
}
