// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// object is a Kubernetes object, or a CNI configuration without kind.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		// Annotations may have the resource of the device plugin.
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec  map[string]any `json:"spec"`
	Items []object       `json:"items"`

	raw map[string]any
}

// String names the object for comments.
func (o object) String() string {
	name := o.Metadata.Name
	if o.Metadata.Namespace != "" {
		name = o.Metadata.Namespace + "/" + name
	}
	return strings.TrimSpace(o.Kind + " " + name)
}

// From returns what replaces the objects in a text of YAML documents or JSON.
func From(text []byte) ([]Document, error) {
	objects, err := read(text)
	if err != nil {
		return nil, err
	}
	c := converter{sources: map[string]object{}, pools: map[string]string{}}
	for _, o := range objects {
		if isPool(o.Kind) {
			c.sources[o.Kind+" "+o.Metadata.Name] = o
		}
	}
	for _, o := range objects {
		if err := c.convert(o); err != nil {
			return nil, fmt.Errorf("%s: %w", o, err)
		}
	}
	c.unused(objects)
	return c.out, nil
}

func isPool(kind string) bool {
	return kind == "SpiderIPPool" || kind == "IPPool" || kind == "CIDRPool"
}

func read(text []byte) ([]object, error) {
	var out []object
	for i, doc := range bytes.Split(append([]byte("\n"), text...), []byte("\n---")) {
		asJSON, err := yaml.YAMLToJSON(doc)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		if string(asJSON) == "null" {
			continue
		}
		var o object
		if err := json.Unmarshal(asJSON, &o); err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		if err := json.Unmarshal(asJSON, &o.raw); err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		if strings.HasSuffix(o.Kind, "List") {
			out = append(out, o.Items...)
			continue
		}
		out = append(out, o)
	}
	return out, nil
}

// converter collects what replaces the objects of one text.
type converter struct {
	sources map[string]object // pools of other stacks, by kind and name
	used    []string          // the sources that a network uses
	pools   map[string]string // the RailPools in out: their addresses, by name
	out     []Document
}

// convert adds what replaces an object.
func (c *converter) convert(o object) error {
	switch {
	case isPool(o.Kind):
		return nil // with the first network that uses it
	case o.Kind == "SpiderMultusConfig":
		return c.spiderMultusConfig(o)
	case o.Kind == "MacvlanNetwork":
		return c.macvlanNetwork(o)
	case o.Kind == "HostDeviceNetwork":
		return c.hostDeviceNetwork(o)
	case o.Kind == "IPoIBNetwork":
		c.out = append(c.out, Document{Comments: []string{o.String() + ": dropped. It is for InfiniBand, and roce needs Ethernet."}})
		return nil
	case o.Kind == "NetworkAttachmentDefinition":
		text, ok := o.Spec["config"].(string)
		if !ok {
			c.kept(o, "it has no spec.config, so Multus reads a file of the node: give that file to --from")
			return nil
		}
		var config map[string]any
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			return fmt.Errorf("spec.config: %w", err)
		}
		return c.upstream(o, config)
	case o.Kind == "" && (o.raw["type"] != nil || o.raw["plugins"] != nil):
		name, ok := o.raw["name"].(string)
		if !ok {
			return fmt.Errorf("the configuration has no name")
		}
		o.Metadata.Name = name
		return c.upstream(o, o.raw)
	}
	c.kept(o, "it is no network")
	return nil
}

// kept says that an object stays as it is.
func (c *converter) kept(o object, why string) {
	c.out = append(c.out, Document{Comments: []string{fmt.Sprintf("%s: not converted, keep it as it is if you need it: %s.", o, why)}})
}

// unused says which pools no network of the text uses.
func (c *converter) unused(objects []object) {
	for _, o := range objects {
		key := o.Kind + " " + o.Metadata.Name
		used := false
		for _, u := range c.used {
			used = used || u == key
		}
		if isPool(o.Kind) && !used {
			c.out = append(c.out, Document{Comments: []string{o.String() + ": not converted, because no network of the file uses it. Give the networks to --from too."}})
		}
	}
}

// addPool adds a RailPool, unless there is one with the same addresses. It returns the
// name of the one to use.
func (c *converter) addPool(name string, comments []string, spec block.PoolSpec) (string, error) {
	addresses, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	for have, same := range c.pools {
		if same == string(addresses) {
			return have, nil
		}
	}
	name = label(name)
	for c.pools[name] != "" {
		name += "-2"
	}
	c.pools[name] = string(addresses)
	c.out = append(c.out, Document{Comments: comments, Object: railPool(name, spec)})
	return name, nil
}

// label makes a name a DNS label, which the name of a RailPool must be.
func label(name string) string {
	out := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	return strings.Trim(out[:min(len(out), 38)], "-")
}

// addNetwork adds a NetworkAttachmentDefinition.
func (c *converter) addNetwork(d Document, o object, namespace, resource string, config ordered) error {
	n, err := network(o.Metadata.Name, namespace, resource, config)
	if err != nil {
		return err
	}
	d.Object = n
	c.out = append(c.out, d)
	return nil
}
