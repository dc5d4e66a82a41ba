// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/integration/scale/rival"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// server is the real API server, with what the project installs into a cluster.
type server struct {
	cfg   *rest.Config
	host  string
	admin http.RoundTripper
	// lines are the connections of the nodes: one for each hundred, which is how many
	// requests the API server takes over one at a time. Real agents have one each;
	// to open them is no part of what is measured.
	lines []http.RoundTripper
	clock func() time.Duration // since it was started
	now   func() time.Time
}

// newServer installs our objects, rights and policy, with flow the queue of the agents,
// and the objects and rights of the two other designs.
func newServer(ctx context.Context, c *ground.Cluster, deploy string, flow bool, now func() time.Time) (*server, error) {
	cfg := c.Admin()
	admin, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, err
	}
	began := now()
	s := &server{cfg: cfg, host: cfg.Host, admin: admin, now: now, clock: func() time.Duration { return now().Sub(began) }}
	files, err := filepath.Glob(filepath.Join(deploy, "crds", "rail*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no CustomResourceDefinitions in %s: run it in the root of the repository: %w", deploy, err)
	}
	names := []string{"namespace", "rbac", "policy"}
	if flow {
		names = append(names, "flow")
	}
	for _, name := range names {
		files = append(files, filepath.Join(deploy, name+".yaml"))
	}
	var documents []string
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		documents = append(documents, strings.Split(string(text), "\n---\n")...)
	}
	for _, document := range append(documents, strings.Split(rival.Definitions, "\n---\n")...) {
		if err := s.install(ctx, document); err != nil {
			return nil, err
		}
	}
	return s, s.settled(ctx)
}

// collections are where objects of a kind are made.
func collections(kind string) string {
	return map[string]string{
		"CustomResourceDefinition":         "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"Namespace":                        "/api/v1/namespaces",
		"ServiceAccount":                   "/api/v1/namespaces/roce-cni/serviceaccounts",
		"ClusterRole":                      "/apis/rbac.authorization.k8s.io/v1/clusterroles",
		"ClusterRoleBinding":               "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		"Role":                             "/apis/rbac.authorization.k8s.io/v1/namespaces/roce-cni/roles",
		"RoleBinding":                      "/apis/rbac.authorization.k8s.io/v1/namespaces/roce-cni/rolebindings",
		"ValidatingAdmissionPolicy":        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
		"ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
		"PriorityLevelConfiguration":       "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
		"FlowSchema":                       "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
	}[kind]
}

// install makes what a YAML document says.
func (s *server) install(ctx context.Context, document string) error {
	var what struct{ Kind string }
	if err := yaml.Unmarshal([]byte(document), &what); err != nil {
		return err
	}
	at := collections(what.Kind)
	if at == "" {
		return fmt.Errorf("a %q cannot be installed", what.Kind)
	}
	body, err := yaml.YAMLToJSON([]byte(document))
	if err != nil {
		return err
	}
	if err := s.call(ctx, s.admin, http.MethodPost, at, body, nil); err != nil {
		return fmt.Errorf("install %s: %w", what.Kind, err)
	}
	return nil
}

// settled waits until the API server serves all that was installed: it says so of a
// definition a moment before it does.
func (s *server) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, path := range []string{blockPath, pathOf(rival.Pools), pathOf(rival.Reservations)} {
		for s.call(ctx, s.admin, http.MethodGet, path, nil, nil) != nil {
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return fmt.Errorf("%s is not served: %w", path, err)
			}
		}
	}
	return pause(ctx, 2*time.Second) // for the policy and the queue, which nothing tells about
}

const blockPath = "/apis/roce-cni.io/v1alpha1/railblocks"

// line returns the connection of a node, and opens it if need be.
func (s *server) line(ctx context.Context, number int) (http.RoundTripper, error) {
	const perLine = 100
	for len(s.lines) <= number/perLine {
		tls, err := rest.TLSConfigFor(s.cfg)
		if err != nil {
			return nil, err
		}
		line := transport.NewBearerAuthRoundTripper(s.cfg.BearerToken, &http.Transport{TLSClientConfig: tls, ForceAttemptHTTP2: true})
		// Once it is open it is used by all; else each request would open another.
		if err := s.call(ctx, line, http.MethodGet, "/version", nil, nil); err != nil {
			return nil, err
		}
		s.lines = append(s.lines, line)
	}
	return s.lines[number/perLine], nil
}

// as is a way over a line as a ServiceAccount.
func as(line http.RoundTripper, namespace, account string, extra map[string][]string) http.RoundTripper {
	return transport.NewImpersonatingRoundTripper(transport.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
		Extra:    extra,
	}, line)
}

// actor is a node: its agent, with a token that says which node it is on, and a CNI
// plugin with a ServiceAccount in kube-system, as whereabouts has it.
func (s *server) actor(ctx context.Context, number int, t *tally, random func() float64) (actor, error) {
	a := actor{number: number, tally: t, rand: random, now: s.clock, wait: pause}
	line, err := s.line(ctx, number)
	if err != nil {
		return actor{}, err
	}
	agent := as(line, "roce-cni", "roce-cni-agent", map[string][]string{"authentication.kubernetes.io/node-name": {a.name()}})
	api, err := kube.Open(&rest.Config{Host: s.host, Transport: agent}, s.now)
	if err != nil {
		return actor{}, err
	}
	a.store = countedBlocks{api.Blocks(), t}
	a.objects = countedObjects{&serverObjects{s, as(line, "kube-system", "scale", nil)}, t}
	return a, nil
}

// clear deletes what a scenario may leave.
func (s *server) clear(ctx context.Context) error {
	for _, path := range []string{blockPath, pathOf(rival.Pools), pathOf(rival.Reservations), pathOf(rival.Leases) + "/" + rival.LeaseName} {
		if err := s.call(ctx, s.admin, http.MethodDelete, path, nil, nil); err != nil && !errors.Is(err, block.ErrNotFound) {
			return err
		}
	}
	return nil
}

// call sends a request and reads its answer into out. The errors are a
// block.Store's.
func (s *server) call(ctx context.Context, way http.RoundTripper, method, path string, body []byte, out any) error {
	ctx, cancel := context.WithTimeout(ctx, kube.Deadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.host+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	resp, err := way.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%w: %w", block.ErrUnknown, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%w: %w", block.ErrUnknown, err)
	}
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return block.ErrNotFound
	case resp.StatusCode == http.StatusConflict && method == http.MethodPost:
		return block.ErrExists
	case resp.StatusCode == http.StatusConflict:
		return block.ErrConflict
	case resp.StatusCode == http.StatusTooManyRequests:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // 0: it does not say
		return &block.BusyError{After: time.Duration(seconds) * time.Second}
	case resp.StatusCode >= http.StatusBadRequest:
		return fmt.Errorf("%w: %s %s: %s: %s", block.ErrUnknown, method, path, resp.Status, text)
	case out == nil:
		return nil
	}
	return json.Unmarshal(text, out)
}

// pause waits on the clock of the machine.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
