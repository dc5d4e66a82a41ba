// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
)

// deployment is what an operator applies.
const deployment = "../../conf-examples/deploy"

// deploy applies what kustomization.yaml lists to a cluster, as
// kubectl apply --server-side -k does, which may be done again and again.
func deploy(t testing.TB, c *ground.Cluster) {
	t.Helper()
	for _, path := range kustomized(t, deployment) {
		applyFile(t, c, path)
	}
}

// kustomized returns the files that a folder's kustomization.yaml lists.
func kustomized(t testing.TB, dir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	must(t, err)
	var list struct {
		Resources []string `json:"resources"`
	}
	must(t, yaml.Unmarshal(text, &list))
	var out []string
	for _, name := range list.Resources {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			out = append(out, kustomized(t, path)...)
			continue
		}
		out = append(out, path)
	}
	return out
}

// applyFile applies the objects of a file, or, with meta.DryRunAll, only asks about
// them. Those of a kind that has just been defined are refused for a moment.
func applyFile(t testing.TB, c *ground.Cluster, path string, dryRun ...string) {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	applyText(t, c, path, text, dryRun...)
}

// applyText is applyFile with the content of the file.
func applyText(t testing.TB, c *ground.Cluster, path string, text []byte, dryRun ...string) {
	t.Helper()
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		must(t, yaml.UnmarshalStrict(doc, &object.Object))
		eventually(t, path+" "+object.GetName(), func(ctx context.Context) error { return apply(ctx, c, object, dryRun) })
	}
}

// apply applies an object. A kind is looked up again each time.
func apply(ctx context.Context, c *ground.Cluster, object *unstructured.Unstructured, dryRun []string) error {
	config := c.Admin()
	find, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	groups, err := restmapper.GetAPIGroupResources(find)
	if err != nil {
		return err
	}
	kind := object.GroupVersionKind()
	mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	all, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	namespace := object.GetNamespace()
	if namespace == "" && mapping.Scope.Name() == apimeta.RESTScopeNameNamespace {
		namespace = "default"
	}
	_, err = all.Resource(mapping.Resource).Namespace(namespace).
		Apply(ctx, object.GetName(), object, meta.ApplyOptions{FieldManager: "test", Force: true, DryRun: dryRun})
	return err
}

// eventually waits for what the API server does a moment after it has answered.
// What it says to be wrong stays wrong.
func eventually(t testing.TB, what string, do func(context.Context) error) {
	t.Helper()
	within(t, 30*time.Second, what, do)
}

func within(t testing.TB, limit time.Duration, what string, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := do(ctx)
		if err == nil {
			return
		}
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}
