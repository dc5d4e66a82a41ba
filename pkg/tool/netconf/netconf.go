// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package netconf reads network configurations from files: a plugin configuration, a
// configuration list, or Kubernetes objects as JSON or YAML.
//
// It reads no cluster and changes nothing. It calls package conf, which reports the
// faults of a configuration.
package netconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Config is one network configuration of a file.
type Config struct {
	Origin string   // where it is: the file, or the object in it
	JSON   []byte   // as a runtime would give it to the plugin
	Before string   // the plugin before it in its list, which makes the interface to adopt; "" if roce makes one
	After  []string // the plugins behind it in its list

	first []byte      // the plugin before it, if that one gets addresses of roce-ipam
	pool  *block.Pool // a RailPool, which is no configuration; nil if it is one
}

// Read reads the configurations of a file: a plugin configuration, a
// configuration list, or Kubernetes objects, of which it takes the network
// attachment definitions, and the RailPools. Plugins other than roce are left
// out.
func Read(path string, stdin io.Reader) (nets []Config, pools []block.Pool, err error) {
	var b []byte
	if path == "-" {
		b, err = io.ReadAll(stdin)
	} else {
		b, err = os.ReadFile(path)
	}
	if err != nil {
		var without *fs.PathError // the text of fs.PathError would repeat the path
		if errors.As(err, &without) {
			err = without.Err
		}
		return nil, nil, cnierr.New(cnierr.IO, "read configuration", path, "name a file that can be read, or - for standard input", "%w", err)
	}
	found, err := parseFile(path, b)
	if err != nil {
		return nil, nil, cnierr.New(cnierr.Decode, "read configuration", path, "", "%w", err)
	}
	for _, c := range found {
		if c.pool != nil {
			pools = append(pools, *c.pool)
		} else {
			nets = append(nets, c)
		}
	}
	if len(nets) == 0 {
		return nil, nil, cnierr.New(cnierr.BadConfig, "read configuration", path,
			`give a file with "type": "roce": a CNI configuration, a list of them, or NetworkAttachmentDefinitions; rocectl generate --from makes them from those of other systems`,
			"it has no configuration of the plugin roce")
	}
	return nets, pools, nil
}

// parseFile reads a file as JSON if it looks like JSON, because a runtime reads a
// configuration only as JSON. Otherwise it reads YAML documents.
func parseFile(path string, b []byte) ([]Config, error) {
	if start := bytes.TrimSpace(b); bytes.HasPrefix(start, []byte("{")) || bytes.HasPrefix(start, []byte("[")) {
		return parseJSON(path, b)
	}
	var out []Config
	for i, doc := range bytes.Split(b, []byte("\n---")) {
		found, err := parseYAML(path, doc)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		out = append(out, found...)
	}
	return out, nil
}

// parseYAML reads one YAML document. Only Kubernetes objects may be YAML. All else
// must be JSON.
func parseYAML(origin string, b []byte) ([]Config, error) {
	asJSON, err := yaml.YAMLToJSON(b)
	if err != nil {
		return nil, err
	}
	if string(asJSON) == "null" { // blank, or comments alone
		return nil, nil
	}
	if kind, _ := text(member(asJSON, "kind")); kind == "" {
		return parseJSON(origin, b)
	}
	return parseJSON(origin, asJSON)
}

// document is the union of what a file may have. The reader of the configuration
// reports values of a wrong type.
type document struct {
	Kind     json.RawMessage `json:"kind"`
	Metadata json.RawMessage `json:"metadata"`
	Spec     json.RawMessage `json:"spec"`
	Items    json.RawMessage `json:"items"` // of a Kubernetes list

	CNIVersion json.RawMessage  `json:"cniVersion"`
	Name       json.RawMessage  `json:"name"`
	Type       json.RawMessage  `json:"type"`
	Plugins    *json.RawMessage `json:"plugins"` // nil: absent or null
}

// parseJSON reads one document. It returns anything that is no JSON object unchanged,
// so that the parser of the plugin reports the error.
func parseJSON(origin string, b []byte) ([]Config, error) {
	var d document
	if json.Unmarshal(b, &d) != nil {
		return []Config{{Origin: origin, JSON: b}}, nil
	}
	kind, _ := text(d.Kind)
	switch {
	case kind == "NetworkAttachmentDefinition":
		return fromObject(d)
	case kind == "RailPool":
		p, err := railPool(d)
		if err != nil {
			return nil, fmt.Errorf("RailPool %s: spec: %w", p.Name, err)
		}
		return []Config{{Origin: origin, pool: p}}, nil
	case kind == "List", kind == "RailPoolList":
		return fromItems(origin, d.Items)
	case kind != "":
		return nil, nil
	case d.Plugins != nil:
		return fromList(origin, *d.Plugins, d)
	}
	if plugin, _ := text(d.Type); plugin == conf.PluginType {
		return []Config{{Origin: origin, JSON: b}}, nil
	}
	return nil, nil
}

// text returns raw as a string. The second result is false if raw is no string.
func text(raw json.RawMessage) (string, bool) {
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}

func fromObject(d document) ([]Config, error) {
	name, _ := text(member(d.Metadata, "name"))
	origin := "network attachment definition " + name
	raw := member(d.Spec, "config")
	config, ok := text(raw)
	if raw != nil && !ok {
		return nil, fmt.Errorf("%s: spec.config is not a string", origin)
	}
	if strings.TrimSpace(config) == "" { // it is in a file of the node
		return nil, nil
	}
	return parseJSON(origin, []byte(config))
}

// member returns the value of a key of an object. It returns nil if there is none, or
// if raw is no object.
func member(raw json.RawMessage, key string) json.RawMessage {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return nil
	}
	return object[key]
}

// fromItems reads what kubectl get prints for several objects.
func fromItems(origin string, list json.RawMessage) ([]Config, error) {
	var items []json.RawMessage
	if list != nil && json.Unmarshal(list, &items) != nil {
		return nil, errors.New("items is not a list")
	}
	var out []Config
	for i, item := range items {
		found, err := parseJSON(origin, item)
		if err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		out = append(out, found...)
	}
	return out, nil
}

// fromList gives the list's name and version to the plugins in it, as libcni
// does.
func fromList(origin string, list json.RawMessage, d document) ([]Config, error) {
	var plugins []json.RawMessage
	if json.Unmarshal(list, &plugins) != nil {
		return nil, errors.New("plugins is not a list")
	}
	var out []Config
	before := ""
	var first []byte
	for i, raw := range plugins {
		var plugin map[string]any
		if json.Unmarshal(raw, &plugin) != nil {
			return nil, fmt.Errorf("plugins[%d] is not an object", i)
		}
		kind, _ := plugin["type"].(string)
		plugin["name"], plugin["cniVersion"] = d.Name, d.CNIVersion
		b, err := json.Marshal(plugin)
		if err != nil {
			return nil, fmt.Errorf("plugins[%d]: %w", i, err)
		}
		if kind != conf.PluginType {
			before = kind
			if ipam, ok := plugin["ipam"].(map[string]any); ok && ipam["type"] == conf.PoolType {
				first = b
			}
			continue
		}
		c := Config{Origin: fmt.Sprintf("%s, plugins[%d]", origin, i), JSON: b, first: first}
		if plugin["master"] == nil && plugin["rails"] == nil && plugin["prevResult"] == nil {
			c.Before = before
		}
		c.After = types(plugins[i+1:])
		out = append(out, c)
	}
	return out, nil
}

// types returns the types of plugins, without those that have none.
func types(plugins []json.RawMessage) []string {
	var out []string
	for _, raw := range plugins {
		if kind, _ := text(member(raw, "type")); kind != "" {
			out = append(out, kind)
		}
	}
	return out
}

// Parse validates the configuration as an ADD of ifName would, and ipam of the plugin before
// it in its list, if that is roce-ipam. Only another IPAM plugin knows its addresses: then the
// request has addresses of documentation (RFC 5737) in their place, and other is its name.
func (c Config) Parse(ifName, netns, args string) (req conf.Request, other string, err error) {
	req, err = c.validate(ifName, netns, args)
	if err != nil || req.IPAM.Type == "" || req.IPAM.Type == conf.PoolType {
		return req, "", err
	}
	other = req.IPAM.Type
	var doc map[string]any
	if err := json.Unmarshal(c.JSON, &doc); err != nil {
		return req, other, err
	}
	doc["ipam"] = map[string]any{"type": conf.PoolType, "subnets": []any{map[string]any{"subnet": "192.0.2.0/24"}}}
	if c.JSON, err = json.Marshal(doc); err == nil {
		req, err = c.validate(ifName, netns, args)
	}
	return req, other, err
}

func (c Config) validate(ifName, netns, args string) (conf.Request, error) {
	if slices.Contains(c.After, conf.PluginType) {
		return conf.Request{}, cnierr.New(cnierr.BadConfig, "read list", c.Origin,
			"list roce only once: with rails, it makes several interfaces", "roce stands in the list twice")
	}
	config, err := c.behind(ifName, netns)
	if err != nil {
		return conf.Request{}, err
	}
	in := conf.Input{ContainerID: "plan", Netns: netns, IfName: ifName, Args: args, Stdin: c.first}
	if c.first != nil {
		if _, err := conf.ParseIPAM(in); err != nil {
			return conf.Request{}, fmt.Errorf("%s, the plugin before it: %w", c.Origin, err)
		}
	}
	in.Stdin = config
	req, err := conf.Parse(in)
	if err != nil {
		err = fmt.Errorf("%s: %w", c.Origin, err)
	}
	return req, err
}

// Validate returns what ADD, or the agents, would find wrong in a NetworkAttachmentDefinition
// or a RailPool, nil for any other object.
func Validate(object map[string]any) error {
	b, err := json.Marshal(object)
	if err != nil {
		return err
	}
	found, err := parseJSON(fmt.Sprint(object["kind"]), b)
	for _, c := range found {
		switch {
		case err != nil:
		case c.pool != nil:
			err = c.pool.Validate()
		default:
			_, err = c.validate("net1", "/run/netns/pod", "")
		}
	}
	return err
}

// behind returns the configuration for a call after another plugin that has made an
// interface. Only that plugin knows the rest of its result.
func (c Config) behind(ifName, netns string) ([]byte, error) {
	if c.Before == "" {
		return c.JSON, nil
	}
	var doc map[string]any
	if err := json.Unmarshal(c.JSON, &doc); err != nil {
		return nil, err
	}
	doc["prevResult"] = map[string]any{
		"cniVersion": doc["cniVersion"], "interfaces": []any{map[string]any{"name": ifName, "sandbox": netns}},
	}
	return json.Marshal(doc)
}

func railPool(d document) (*block.Pool, error) {
	p := &block.Pool{}
	p.Name, _ = text(member(d.Metadata, "name"))
	if d.Spec == nil {
		return p, nil
	}
	return p, json.Unmarshal(d.Spec, &p.Spec)
}
