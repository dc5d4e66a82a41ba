// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
)

// netconf is one network configuration of a file.
type netconf struct {
	origin string // where it stands: the file, or the object in it
	config []byte // as a runtime would give it to the plugin
	before string // the plugin before it in its list, whose interface it adopts; "" if it makes one
}

// readNetconfs reads the configurations of a file: a plugin configuration, a
// configuration list, or Kubernetes objects, of which it takes the network
// attachment definitions. Plugins other than roce are left out.
func readNetconfs(path string, stdin io.Reader) ([]netconf, error) {
	var b []byte
	var err error
	if path == "-" {
		b, err = io.ReadAll(stdin)
	} else {
		b, err = os.ReadFile(path)
	}
	if err != nil {
		var without *fs.PathError // whose text has the path again
		if errors.As(err, &without) {
			err = without.Err
		}
		return nil, cnierr.New(cnierr.IO, "read configuration", path, "name a file that can be read, or - for standard input", "%w", err)
	}
	var out []netconf
	for i, doc := range bytes.Split(b, []byte("\n---")) {
		found, err := parseDocument(path, doc)
		if err != nil {
			return nil, cnierr.New(cnierr.Decode, "read configuration", path, "", "document %d: %w", i+1, err)
		}
		out = append(out, found...)
	}
	if len(out) == 0 {
		return nil, cnierr.New(cnierr.BadConfig, "read configuration", path,
			`give a file with "type": "roce": a CNI configuration, a list of them, or NetworkAttachmentDefinitions`,
			"it has no configuration of the plugin roce")
	}
	return out, nil
}

// document is the union of what a file may hold.
type document struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Config string `json:"config"`
	} `json:"spec"`

	Items []json.RawMessage `json:"items"` // of a Kubernetes list

	CNIVersion string            `json:"cniVersion"`
	Name       string            `json:"name"`
	Type       string            `json:"type"`
	Plugins    []json.RawMessage `json:"plugins"`
}

func parseDocument(origin string, b []byte) ([]netconf, error) {
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, nil
	}
	b, err := yaml.YAMLToJSON(b)
	if err != nil {
		return nil, err
	}
	var d document
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, err
	}
	switch {
	case d.Kind == "NetworkAttachmentDefinition":
		return parseDocument("network attachment definition "+d.Metadata.Name, []byte(d.Spec.Config))
	case d.Kind == "List":
		return fromItems(origin, d.Items)
	case d.Kind != "":
		return nil, nil
	case d.Plugins != nil:
		return fromList(origin, d)
	case d.Type == "roce":
		return []netconf{{origin: origin, config: b}}, nil
	}
	return nil, nil
}

// fromItems reads what kubectl get prints for several objects.
func fromItems(origin string, items []json.RawMessage) ([]netconf, error) {
	var out []netconf
	for i, item := range items {
		found, err := parseDocument(origin, item)
		if err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
		out = append(out, found...)
	}
	return out, nil
}

// fromList gives the list's name and version to the plugins in it, as libcni
// does.
func fromList(origin string, d document) ([]netconf, error) {
	var out []netconf
	before := ""
	for i, raw := range d.Plugins {
		var plugin map[string]any
		if err := json.Unmarshal(raw, &plugin); err != nil {
			return nil, fmt.Errorf("plugins[%d]: %w", i, err)
		}
		kind, _ := plugin["type"].(string)
		if kind != conf.PluginType {
			before = kind
			continue
		}
		plugin["name"], plugin["cniVersion"] = d.Name, d.CNIVersion
		b, err := json.Marshal(plugin)
		if err != nil {
			return nil, fmt.Errorf("plugins[%d]: %w", i, err)
		}
		c := netconf{origin: fmt.Sprintf("%s, plugins[%d]", origin, i), config: b}
		if plugin["master"] == nil && plugin["prevResult"] == nil {
			c.before = before
		}
		out = append(out, c)
	}
	return out, nil
}

// parse validates the configuration as an ADD of ifName would.
func (c netconf) parse(ifName, netns, args string) (conf.Request, error) {
	config, err := c.behind(ifName, netns)
	if err != nil {
		return conf.Request{}, err
	}
	req, err := conf.Parse(conf.Input{
		ContainerID: "plan", Netns: netns, IfName: ifName, Args: args, Stdin: config,
	})
	if err != nil {
		return req, fmt.Errorf("%s: %w", c.origin, err)
	}
	if req.IPAM.Type != "" && req.IPAM.Type != conf.PoolType {
		return req, fmt.Errorf("%s: %w", c.origin, errOtherIPAM(req.IPAM.Type))
	}
	return req, nil
}

// behind returns the configuration as it comes behind another plugin that has
// made an interface. What else that one would say, only it knows.
func (c netconf) behind(ifName, netns string) ([]byte, error) {
	if c.before == "" {
		return c.config, nil
	}
	var doc map[string]any
	if err := json.Unmarshal(c.config, &doc); err != nil {
		return nil, err
	}
	doc["prevResult"] = map[string]any{
		"cniVersion": doc["cniVersion"], "interfaces": []any{map[string]any{"name": ifName, "sandbox": netns}},
	}
	return json.Marshal(doc)
}

func errOtherIPAM(ipamType string) error {
	return &cnierr.Error{
		Code: cnierr.Unsupported, Op: "plan addresses of IPAM plugin", Subject: ipamType,
		Hint: "give the configuration with the roce-ipam pool, or without ipam, to see the rest of the plan",
		Err:  errors.New("only the plugin itself knows which address it would give"),
	}
}
