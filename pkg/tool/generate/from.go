// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// object is a Kubernetes object, or a CNI configuration without kind.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string         `json:"name"`
		Namespace string         `json:"namespace"`
		Labels    map[string]any `json:"labels"` // their names count
		// Annotations may have the resource of the device plugin.
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Items []map[string]any `json:"items"`

	spec   *fields
	status *fields
	file   *fields // all of a CNI configuration; nil for a Kubernetes object
}

// String names the object for comments.
func (o object) String() string {
	name := o.Metadata.Name
	if o.Metadata.Namespace != "" {
		name = o.Metadata.Namespace + "/" + name
	}
	return strings.TrimSpace(o.Kind + " " + name)
}

// From returns what replaces the objects in a text of YAML documents or JSON. The error says
// which objects could not be converted, or would be refused by ADD or by the cluster; the
// documents have all others, and comments about these.
func From(text []byte) ([]Document, error) {
	objects, unread := read(text)
	var faults []error
	c := converter{sources: map[string]object{}, pools: map[string]string{}}
	for _, o := range objects {
		if o.isPool() {
			c.sources[o.Kind+" "+o.Metadata.Name] = o
		}
	}
	for _, o := range objects {
		if err := c.convert(o); err != nil {
			c.out = append(c.out, Document{Comments: []string{fmt.Sprintf("%s: NOT converted: %v", o, err)}})
			faults = append(faults, fmt.Errorf("%s: %w", o, err))
		}
	}
	for _, u := range unread {
		c.out = append(c.out, Document{Comments: []string{fmt.Sprintf("%s: NOT converted: %v", u.at, u.err)}})
		faults = append(faults, fmt.Errorf("%s: %w", u.at, u.err))
	}
	c.unused(objects)
	for i := range c.out {
		if err := c.out[i].check(); err != nil {
			c.out[i].note("Problem: %v", err)
			faults = append(faults, err)
		}
	}
	return c.out, errors.Join(faults...)
}

// isPool says whether it is a pool that a network may use. Calico and whereabouts also have a
// kind IPPool.
func (o object) isPool() bool {
	if o.Kind == "IPPool" || o.Kind == "CIDRPool" {
		group := o.group()
		return group == "" || group == nvIPAM
	}
	return o.Kind == "SpiderIPPool"
}

// nvIPAM is the API group of the pools of NVIDIA's IPAM plugin.
const nvIPAM = "nv-ipam.nvidia.com"

// group returns the API group, "" if the object does not name one.
func (o object) group() string {
	group, _, named := strings.Cut(o.APIVersion, "/")
	if !named {
		return ""
	}
	return group
}

func isNetwork(kind string) bool {
	return slices.Contains([]string{"NetworkAttachmentDefinition", "SpiderMultusConfig", "MacvlanNetwork", "HostDeviceNetwork"}, kind)
}

// unreadable is a part of the text that is no object.
type unreadable struct {
	at  string // where, for comments
	err error
}

func read(text []byte) (out []object, not []unreadable) {
	for i, doc := range bytes.Split(text, []byte("\n---")) {
		at := fmt.Sprintf("document %d", i+1)
		var all map[string]any
		if err := yaml.Unmarshal(doc, &all); err != nil {
			not = append(not, unreadable{at, err})
			continue
		}
		if all == nil {
			continue
		}
		o, err := objectOf(all)
		switch {
		case err != nil:
			not = append(not, unreadable{at, err})
		case strings.HasSuffix(o.Kind, "List"):
			for j, item := range o.Items {
				one, err := objectOf(item)
				if err != nil {
					not = append(not, unreadable{fmt.Sprintf("%s: items[%d]", at, j), err})
					continue
				}
				out = append(out, one)
			}
		default:
			out = append(out, o)
		}
	}
	return out, not
}

// objectOf reads a Kubernetes object or a CNI configuration. A Kubernetes object with other
// members than it can have is probably indented wrongly, and an error.
func objectOf(all map[string]any) (o object, err error) {
	text, err := json.Marshal(all)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		return o, err
	}
	top := newFields("", all)
	if o.Kind == "" {
		o.file = top
		return o, nil
	}
	o.spec, o.status = top.object("spec"), top.object("status")
	if !isNetwork(o.Kind) && !o.isPool() {
		return o, nil
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains([]string{"apiVersion", "kind", "metadata", "spec", "status", "items"}, key) {
			return o, fmt.Errorf("%s: %q stands beside spec. Indent it so that it is in spec", o, key)
		}
	}
	return o, nil
}

// converter collects what replaces the objects of one text.
type converter struct {
	sources map[string]object // pools of other stacks, by kind and name
	used    []string          // the sources that a network uses
	pools   map[string]string // the RailPools in out: their addresses, by name
	out     []Document
}

func (c *converter) convert(o object) error {
	switch {
	case o.isPool():
		return nil // with the first network that uses it
	case o.Kind == "IPPool":
		c.kept(o, fmt.Sprintf("it is of %s, and only networks with pools of %s use IPPools", o.group(), nvIPAM))
		return nil
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
		text := o.spec.str("config")
		if text == "" {
			c.kept(o, "it has no spec.config, so Multus reads a file of the node: give that file to --from")
			return nil
		}
		var config map[string]any
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			return fmt.Errorf("spec.config: %w", err)
		}
		return c.upstream(o, newFields("", config))
	case o.file != nil && (o.file.whole("type") != nil || o.file.whole("plugins") != nil):
		o.Metadata.Name = o.file.str("name")
		if o.Metadata.Name == "" {
			return fmt.Errorf("the configuration has no name")
		}
		return c.upstream(o, o.file)
	case strings.HasSuffix(o.Kind, "Network"): // SriovNetwork, OVSNetwork and others of an operator
		c.kept(o, "give the NetworkAttachmentDefinition of the same name, which its operator has made, to --from")
		return nil
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
		if o.isPool() && !slices.Contains(c.used, key) {
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
	comments = append(comments, "The old pool has the same addresses. Before a pod uses the new network, leave each address in only one of the two.")
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

// newName returns the name of the network that replaces an object. Under the old one, pods of
// the old network could not run beside those of the new one, and the operator of the old one
// would write it back.
func (o object) newName() string { return o.Metadata.Name + "-roce" }

func (c *converter) addNetwork(d Document, o object, namespace, resource string, config ordered) {
	resource = cmp.Or(resource, o.Metadata.Annotations[resourceName])
	o.metadataDropped(&d)
	d.note("name: a new one, so that the old network stays until no pod uses it. A pod asks for the new one: k8s.v1.cni.cncf.io/networks: %s.", o.newName())
	if resource == "" {
		d.note("No object names the resource of the device plugin for this network. If its pods request one, add it: annotations: {%s: RESOURCE}.", resourceName)
	}
	d.Object = network(o.newName(), namespace, resource, append(ordered{{"cniVersion", cniVersion}, {"name", o.newName()}}, config...))
	c.out = append(c.out, d)
}

// metadataDropped adds a comment for each annotation and label, but for those that this package or
// nothing outside of kubectl reads.
func (o object) metadataDropped(d *Document) {
	const why = "the new network does not have it. If a program needs it, add it."
	for _, key := range slices.Sorted(maps.Keys(o.Metadata.Annotations)) {
		if key != resourceName && key != "kubectl.kubernetes.io/last-applied-configuration" && !slices.Contains(injections(), key) {
			d.note("Dropped: annotation %s: %s", key, why)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(o.Metadata.Labels)) {
		d.note("Dropped: label %s: %s", key, why)
	}
}

// fields is an object of another stack, which may lack what its methods ask for. It knows
// which of its members were asked for, so that the rest can be named.
type fields struct {
	path  string // of the object, such as "spec.macvlan."; "" for a whole file
	all   map[string]any
	asked map[string]bool
	parts []*fields // what object and objects have returned
}

func newFields(path string, all map[string]any) *fields {
	return &fields{path: path, all: all, asked: map[string]bool{}}
}

// whole returns a member with all that is in it, nil if there is none.
func (f *fields) whole(key string) any {
	f.asked[key] = true
	return f.all[key]
}

// str returns a member that is a string, "" if it is none.
func (f *fields) str(key string) string {
	s, _ := f.whole(key).(string)
	return s
}

// number returns a member that is a number, 0 if it is none.
func (f *fields) number(key string) int {
	n, _ := f.whole(key).(float64)
	return int(n)
}

// list returns a member that is a list of strings, or one string.
func (f *fields) list(key string) []string {
	if s := f.str(key); s != "" {
		return []string{s}
	}
	var out []string
	all, _ := f.whole(key).([]any)
	for _, v := range all {
		out = append(out, fmt.Sprint(v))
	}
	return out
}

// object returns a member that is an object, an empty one if it is none.
func (f *fields) object(key string) *fields {
	m, _ := f.whole(key).(map[string]any)
	part := newFields(f.path+key+".", m)
	f.parts = append(f.parts, part)
	return part
}

// objects returns the objects in a member that is a list, or a list of lists.
func (f *fields) objects(key string) []*fields {
	var out []*fields
	var collect func(path string, v any)
	collect = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			out = append(out, newFields(path+".", v))
		case []any:
			for i, one := range v {
				collect(fmt.Sprintf("%s[%d]", path, i), one)
			}
		}
	}
	if l, ok := f.whole(key).([]any); ok {
		collect(f.path+key, l)
	}
	f.parts = append(f.parts, out...)
	return out
}

// done says that no member needs a comment, with all that is in it.
func (f *fields) done() {
	for key := range f.all {
		f.asked[key] = true
	}
	f.parts = nil
}

// dropped says of members of objects of other stacks why nothing replaces them.
//
//go:embed dropped.yaml
var dropped []byte

// drop adds a comment for each member that has a reason in dropped to be dropped from a kind of
// object. A member that says nothing (false, 0, "", empty) has none, unless dropped has a reason
// for false.
func (f *fields) drop(d *Document, kind string) {
	var all map[string]map[string]string
	if err := yaml.UnmarshalStrict(dropped, &all); err != nil {
		panic("generate: dropped.yaml: " + err.Error())
	}
	reasons := all[kind]
	for _, said := range slices.Sorted(maps.Keys(reasons)) {
		key, off := strings.CutSuffix(said, ": false")
		if v := f.whole(key); !off && !empty(v) || off && v == false {
			d.note("Dropped: %s%s: %s.", f.path, said, reasons[said])
		}
	}
}

// rest adds a comment for each member that nothing has asked for. False and 0 say something in a
// member with an unknown default.
func (f *fields) rest(d *Document) {
	for _, key := range slices.Sorted(maps.Keys(f.all)) {
		v := f.all[key]
		if says := !empty(v) || v == false || v == float64(0); says && !f.asked[key] {
			d.note("Dropped: %s%s: roce-cni does not know it. If you need what it does, look for it in docs/configuration.md.", f.path, key)
		}
	}
	for _, part := range f.parts {
		part.rest(d)
	}
}

func empty(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return v == nil || v == false || v == 0 || v == float64(0) || v == ""
}
