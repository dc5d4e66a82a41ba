// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package deploy tests what an operator applies to a cluster, conf-examples/deploy,
// and the image: that every object is one that the API server would read without
// a key left over, and that names, accounts, folders and commands fit together and
// fit the programs.
//
// It needs no cluster; integration/cluster applies the same files to a real API
// server. Read this file first.
package deploy

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	networking "k8s.io/api/networking/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

const (
	root      = "../../.."
	dir       = root + "/conf-examples/deploy"
	samples   = dir + "/samples"
	uninstall = dir + "/uninstall"
	railTaint = dir + "/rail-taint"
	podLabel  = dir + "/pod-label"
	// monitoring has alerts and a dashboard, for those who have an operator for them.
	monitoring = dir + "/monitoring"
)

// network is a NetworkAttachmentDefinition (k8s.cni.cncf.io/v1).
type network struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		Config string `json:"config"`
	} `json:"spec"`
}

// typeOf returns the type of an object, by apiVersion and kind.
func typeOf(apiVersion, kind string) reflect.Type {
	types := map[string]reflect.Type{
		"v1/Namespace":      reflect.TypeFor[core.Namespace](),
		"v1/ServiceAccount": reflect.TypeFor[core.ServiceAccount](),
		"v1/Service":        reflect.TypeFor[core.Service](),
		"v1/ConfigMap":      reflect.TypeFor[core.ConfigMap](),
		"batch/v1/Job":      reflect.TypeFor[batch.Job](),
		"leaderworkerset.x-k8s.io/v1/LeaderWorkerSet":                      reflect.TypeFor[leaderWorkerSet](),
		"kubeflow.org/v1/PyTorchJob":                                       reflect.TypeFor[kubeflowJob](),
		"kubeflow.org/v2beta1/MPIJob":                                      reflect.TypeFor[kubeflowJob](),
		"ray.io/v1/RayCluster":                                             reflect.TypeFor[rayCluster](),
		"batch.volcano.sh/v1alpha1/Job":                                    reflect.TypeFor[volcanoJob](),
		"apps/v1/DaemonSet":                                                reflect.TypeFor[apps.DaemonSet](),
		"apps/v1/Deployment":                                               reflect.TypeFor[apps.Deployment](),
		"rbac.authorization.k8s.io/v1/ClusterRole":                         reflect.TypeFor[rbac.ClusterRole](),
		"networking.k8s.io/v1/NetworkPolicy":                               reflect.TypeFor[networking.NetworkPolicy](),
		"rbac.authorization.k8s.io/v1/Role":                                reflect.TypeFor[rbac.Role](),
		"rbac.authorization.k8s.io/v1/RoleBinding":                         reflect.TypeFor[rbac.RoleBinding](),
		"k8s.cni.cncf.io/v1/NetworkAttachmentDefinition":                   reflect.TypeFor[network](),
		"rbac.authorization.k8s.io/v1/ClusterRoleBinding":                  reflect.TypeFor[rbac.ClusterRoleBinding](),
		"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy":        reflect.TypeFor[admission.ValidatingAdmissionPolicy](),
		"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding": reflect.TypeFor[admission.ValidatingAdmissionPolicyBinding](),
		"flowcontrol.apiserver.k8s.io/v1/FlowSchema":                       reflect.TypeFor[flowcontrol.FlowSchema](),
		"flowcontrol.apiserver.k8s.io/v1/PriorityLevelConfiguration":       reflect.TypeFor[flowcontrol.PriorityLevelConfiguration](),
		kube.Version().String() + "/RailPool":                              reflect.TypeFor[kube.RailPool](),
		kube.Version().String() + "/RailLease":                             reflect.TypeFor[kube.RailLease](),
	}
	return types[apiVersion+"/"+kind]
}

// objects reads all objects of the files, with no key left over.
func objects(t *testing.T, files ...string) []any {
	t.Helper()
	var out []any
	for _, path := range files {
		for i, doc := range bytes.Split(content(t, path), []byte("\n---\n")) {
			where := fmt.Sprintf("%s, document %d", path, i+1)
			var head meta.TypeMeta
			must(t, where, yaml.Unmarshal(doc, &head))
			kind := typeOf(head.APIVersion, head.Kind)
			if kind == nil {
				t.Fatalf("%s: no type for %s %s", where, head.APIVersion, head.Kind)
			}
			object := reflect.New(kind).Interface()
			must(t, where, yaml.UnmarshalStrict(doc, object))
			out = append(out, object)
		}
	}
	return out
}

// all returns the objects of one type among those of conf-examples/deploy.
func all[T any](t *testing.T) []*T {
	t.Helper()
	return of[T](objects(t, files(t, dir)...))
}

// of returns the objects of one type.
func of[T any](objects []any) []*T {
	var out []*T
	for _, o := range objects {
		if o, ok := o.(*T); ok {
			out = append(out, o)
		}
	}
	return out
}

// one returns the only one.
func one[T any](t *testing.T) *T {
	t.Helper()
	found := all[T](t)
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T, want one", len(found), found)
	}
	return found[0]
}

// files returns the files of a folder with objects of Kubernetes.
func files(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(dir + "/*.yaml")
	must(t, dir, err)
	found = slices.DeleteFunc(found, func(p string) bool { return strings.HasSuffix(p, "/kustomization.yaml") })
	if len(found) == 0 {
		t.Fatalf("%s has no files", dir)
	}
	return found
}

// strictYAML reads a file without a key left over.
func strictYAML(t *testing.T, path string, into any) {
	t.Helper()
	must(t, path, yaml.UnmarshalStrict(content(t, path), into))
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, path, err)
	return b
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
