// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package generate writes Kubernetes objects for roce-cni: from the NICs of a node or of
// all nodes, or from the objects of another network stack.
//
// It reads only what it is given, and the same input gives the same text, so that the
// text can be compared with an older one. A comment above each object says what it
// comes from, what each part replaces, and what was dropped and why. Read this file
// first; node.go is for a node, cluster.go for all nodes, from.go for objects, and each
// other file for one stack.
package generate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/tool/netconf"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Document is a Kubernetes object with comments above it. Without an object it is
// comments alone.
type Document struct {
	Comments []string
	Object   map[string]any
}

// note adds a comment.
func (d *Document) note(format string, args ...any) {
	d.Comments = append(d.Comments, fmt.Sprintf(format, args...))
}

// check returns what ADD, or the agents, would find wrong in the object. For a RailPool it adds
// how many nodes and pods it has room for.
func (d *Document) check() error {
	if err := netconf.Validate(d.Object); err != nil {
		return err
	}
	spec, ok := d.Object["spec"].(block.PoolSpec)
	if !ok {
		return nil
	}
	room, err := block.Pool{Name: "pool", Spec: spec}.Room()
	if err == nil {
		d.note("The pool has %s.", room)
	}
	return err
}

// Text returns documents as YAML.
func Text(docs []Document) (string, error) {
	var parts []string
	for _, d := range docs {
		var b strings.Builder
		for _, c := range d.Comments {
			for line := range strings.Lines(wrap(c)) {
				b.WriteString("# " + strings.TrimSuffix(line, "\n") + "\n")
			}
		}
		if d.Object != nil {
			body, err := yaml.Marshal(d.Object)
			if err != nil {
				return "", err
			}
			b.Write(body)
		}
		parts = append(parts, b.String())
	}
	return strings.Join(parts, "---\n"), nil
}

// wrap breaks a comment into lines; those after the first are indented.
func wrap(s string) string {
	const width = 96
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(s) {
		word = report.Printable(word) // the names are those of a file of others
		switch {
		case i == 0:
		case column+1+len(word) > width:
			b.WriteString("\n  ")
			column = 2
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// member is a key of a JSON object.
type member struct {
	key   string
	value any
}

// ordered is a JSON object with its keys in the order in which people write them.
type ordered []member

// MarshalJSON implements json.Marshaler.
func (o ordered) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(m.key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// cniVersion is what all runtimes of supported clusters speak.
const cniVersion = "1.0.0"

// network returns a NetworkAttachmentDefinition.
func network(name, namespace, resource string, config ordered) (map[string]any, error) {
	text, err := indent(config)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": metadata(name, namespace, resource),
		"spec": map[string]any{"config": text},
	}, nil
}

func indent(v any) (string, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return string(b) + "\n", err
}

func metadata(name, namespace, resource string) map[string]any {
	out := map[string]any{"name": name}
	if namespace != "" {
		out["namespace"] = namespace
	}
	if resource != "" {
		out["annotations"] = map[string]any{"k8s.v1.cni.cncf.io/resourceName": resource}
	}
	return out
}

// railPool returns a RailPool.
func railPool(name string, spec block.PoolSpec) map[string]any {
	return map[string]any{
		"apiVersion": "roce-cni.io/v1alpha1", "kind": "RailPool", "metadata": map[string]any{"name": name}, "spec": spec,
	}
}
