// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// definition is what we look at of a CustomResourceDefinition.
type definition struct {
	Spec struct {
		Group string `json:"group"`
		Names struct {
			Plural string `json:"plural"`
		} `json:"names"`
		Versions []struct {
			Name   string `json:"name"`
			Schema struct {
				Schema schema `json:"openAPIV3Schema"`
			} `json:"schema"`
		} `json:"versions"`
	} `json:"spec"`
}

type schema struct {
	Description string            `json:"description"`
	Type        string            `json:"type"`
	Properties  map[string]schema `json:"properties"`
	Items       *schema           `json:"items"`
	Default     any               `json:"default"`
	Maximum     float64           `json:"maximum"`
}

// crd is the schema of a kind.
func crd(t *testing.T, plural string) schema {
	t.Helper()
	content, err := os.ReadFile("../../../conf-examples/deploy/crds/" + plural + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d definition
	if err := yaml.Unmarshal(content, &d); err != nil {
		t.Fatal(err)
	}
	v := d.Spec.Versions
	if d.Spec.Group != kube.Version().Group || d.Spec.Names.Plural != plural || len(v) != 1 || v[0].Name != kube.Version().Version {
		t.Fatalf("%s is of %s, versions %+v", d.Spec.Names.Plural, d.Spec.Group, v)
	}
	return v[0].Schema.Schema
}

// TestDefinitionsSayWhatTheProgramsRead: the API server drops a field that is not
// in the schema without a word, and kubectl explain tells what is.
func TestDefinitionsSayWhatTheProgramsRead(t *testing.T) {
	t.Parallel()
	pool, railBlock, lease := crd(t, "railpools"), crd(t, "railblocks"), crd(t, "railleases")
	for path, tt := range map[string]struct {
		s   schema
		typ reflect.Type
	}{
		"railpools.spec":    {pool.Properties["spec"], reflect.TypeFor[block.PoolSpec]()},
		"railpools.status":  {pool.Properties["status"], reflect.TypeFor[kube.PoolStatus]()},
		"railblocks.spec":   {railBlock.Properties["spec"], reflect.TypeFor[block.Spec]()},
		"railblocks.status": {railBlock.Properties["status"], reflect.TypeFor[kube.BlockStatus]()},
		"railleases.spec":   {lease.Properties["spec"], reflect.TypeFor[sticky.Spec]()},
		"railnodes.status":  {crd(t, "railnodes").Properties["status"], reflect.TypeFor[kube.NodeStatus]()},
	} {
		same(t, path, tt.s, tt.typ)
	}
	if pool.Description == "" || railBlock.Description == "" || lease.Description == "" {
		t.Error("kubectl explain has nothing to say of a kind")
	}
}

// same compares an object of a schema with a type.
func same(t *testing.T, path string, s schema, typ reflect.Type) {
	t.Helper()
	if s.Description == "" {
		t.Errorf("%s has no description", path)
	}
	fields := fieldsOf(typ)
	var there, want []string
	for name := range s.Properties {
		there = append(there, name)
	}
	for name := range fields {
		want = append(want, name)
	}
	slices.Sort(there)
	slices.Sort(want)
	if diff := cmp.Diff(want, there); diff != "" {
		t.Errorf("%s (-type +schema)\n%s", path, diff)
	}
	for name, p := range s.Properties {
		below(t, path+"."+name, p, fields[name])
	}
}

// below goes on with what a field holds.
func below(t *testing.T, path string, s schema, typ reflect.Type) {
	t.Helper()
	if s.Description == "" && !strings.HasSuffix(path, "[]") {
		t.Errorf("%s has no description", path)
	}
	if typ == nil {
		return
	}
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	switch {
	case s.Type == "array":
		if typ.Kind() != reflect.Slice {
			t.Errorf("%s is a list in the schema, and %s", path, typ)
			return
		}
		below(t, path+"[]", *s.Items, typ.Elem())
	case len(s.Properties) > 0:
		s.Description = "of the list"
		same(t, path, s, typ)
	case s.Type != map[reflect.Kind]string{reflect.Int: "integer", reflect.Int64: "integer", reflect.String: "string", reflect.Map: "object", reflect.Struct: "string", reflect.Bool: "boolean"}[typ.Kind()]:
		t.Errorf("%s is %s in the schema, and %s", path, s.Type, typ)
	}
}

// fieldsOf returns the fields of a type by their names in JSON.
func fieldsOf(typ reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(typ) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && !f.Anonymous {
			out[name] = f.Type
		}
	}
	return out
}

func TestLimitsAndDefaultsAreThoseOfTheProgram(t *testing.T) {
	t.Parallel()
	spec, of := crd(t, "railpools").Properties["spec"], crd(t, "railblocks")
	size := spec.Properties["blockSize"]
	if size.Default != float64(block.DefaultSize) || size.Maximum != block.MaxSize {
		t.Errorf("blockSize: default %v, maximum %v", size.Default, size.Maximum)
	}
	if p := of.Properties["spec"].Properties; p["size"].Maximum != block.MaxSize || p["index"].Maximum != block.MaxBlocks-1 {
		t.Errorf("a block's size is up to %v, its index up to %v", p["size"].Maximum, p["index"].Maximum)
	}
	quarantine, err := time.ParseDuration(spec.Properties["quarantine"].Default.(string))
	space, err2 := block.Pool{Name: "p", Spec: block.PoolSpec{Rails: []block.Rail{{Subnets: []block.Subnet{{Subnet: "10.0.0.0/24"}}}}}}.Space("")
	if err != nil || err2 != nil || quarantine != space.Quarantine() {
		t.Errorf("quarantine: default %v, errors %v, %v; want %v", quarantine, err, err2, space.Quarantine())
	}
	if slot := crd(t, "railleases").Properties["spec"].Properties["slot"]; slot.Maximum != block.MaxBlocks*block.MaxSize-1 {
		t.Errorf("a lease's slot is up to %v", slot.Maximum)
	}
	if of.Properties["status"].Default == nil {
		t.Error("the status of a block has no default: a JSON patch has nothing to write into")
	}
}
