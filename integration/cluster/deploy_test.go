// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
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
// kubectl apply --server-side -k does, which may be done again and again. When it
// returns, all of it is in force.
func deploy(t testing.TB, c *ground.Cluster) {
	t.Helper()
	for _, path := range kustomized(t, deployment) {
		applyFile(t, c, path)
	}
	inForce(t, c)
	// Some policies look up RailPools, which the server lists only when it has such a policy.
	eventually(t, "the policies know the RailPools", func(ctx context.Context) error {
		o := object(t, "RailBlock", "none-0", "{pool: none, index: 0, size: 1, nodeName: none, machineID: none}")
		_, err := kinds(t, c, "railblocks").Create(ctx, o, meta.CreateOptions{DryRun: []string{meta.DryRunAll}})
		if apierrors.IsInvalid(err) && strings.Contains(err.Error(), "not yet synced") {
			return apierrors.NewServiceUnavailable(err.Error())
		}
		return err
	})
}

// last is a right and a policy that refuses what the right allows. LAST is the name of
// all of them, and of the user.
const last = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: LAST}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: LAST}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: LAST}
subjects: [{kind: User, name: LAST, apiGroup: rbac.authorization.k8s.io}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: LAST}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE]}]}
  matchConditions: [{name: user, expression: request.userInfo.username == 'LAST'}]
  validations: [{expression: "false", message: LAST is refused}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: LAST}
spec: {policyName: LAST, validationActions: [Deny]}`

// inForce waits until the API server acts on the cluster roles and the policies that
// were written before. The server reads each kind in the order of the writes. So it has
// read all others when it acts on the last ones.
func inForce(t testing.TB, c *ground.Cluster) {
	t.Helper()
	name := "last-" + strings.ToLower(rand.Text())
	applyText(t, c, "the last policy", []byte(strings.ReplaceAll(last, "LAST", name)))
	user := c.Admin()
	user.Impersonate.UserName = name
	maps := client(t, user).CoreV1().ConfigMaps("default")
	eventually(t, "rights and policies are in force", func(ctx context.Context) error {
		_, err := maps.Create(ctx, &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.CreateOptions{DryRun: []string{meta.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), name+" is refused") {
			return errors.Join(errors.New("the last policy does not refuse"), err)
		}
		return nil
	})
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
// What it says to be wrong stays wrong. A server that was started again takes up to half
// a minute until its policies find the RailPools.
func eventually(t testing.TB, what string, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var before error
	for {
		err := do(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil && before != nil {
			err = before // this one was cut short
		}
		before = err
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
