// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package generate writes Kubernetes objects for roce-cni: from the NICs of a node or of
// all nodes, or from the objects of another network stack.
//
// It reads only what it is given, and the same input gives the same text, so that the
// text can be compared with an older one. A comment above each object says what it
// comes from, what each part replaces, and what was dropped and why. Read this file
// first, which is for a node; cluster.go is for all nodes, from.go and stacks.go for objects of
// other stacks, and ipam.go for their addresses.
package generate

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/tool/netconf"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Document is a Kubernetes object with comments above it. Without an object it is
// comments alone.
type Document struct {
	Comments []string
	Object   map[string]any
}

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

type member struct {
	key   string
	value any
}

// ordered is a JSON object with its keys in the order in which people write them.
type ordered []member

// with adds a member, unless it says nothing: nil, 0, "" or empty.
func (o ordered) with(key string, value any) ordered {
	if empty(value) {
		return o
	}
	return append(o, member{key, value})
}

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

func network(name, namespace, resource string, config ordered) map[string]any {
	return map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": metadata(name, namespace, resource),
		"spec": map[string]any{"config": indent(config)},
	}
}

// indent returns JSON. What is not ours in it was read from JSON.
func indent(v ordered) string {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic("generate: " + err.Error())
	}
	return string(b) + "\n"
}

// resourceName is the annotation of a network with the resource that its pods request.
const resourceName = "k8s.v1.cni.cncf.io/resourceName"

func metadata(name, namespace, resource string) map[string]any {
	out := map[string]any{"name": name}
	if namespace != "" {
		out["namespace"] = namespace
	}
	if resource != "" {
		out["annotations"] = map[string]any{resourceName: resource}
	}
	return out
}

func railPool(name string, spec block.PoolSpec) map[string]any {
	return map[string]any{
		"apiVersion": "roce-cni.io/v1alpha1", "kind": "RailPool", "metadata": map[string]any{"name": name}, "spec": spec,
	}
}

// Choice is what a node cannot tell.
type Choice struct {
	Name      string // of the network, the pool and the resource
	Namespace string // of the network and the test pods; "" for that of kubectl
	Subnet    string // a template of the rails' subnets; "" for those of the NICs' addresses
	Gateway   string // a template of the rails' gateways
	Image     string // of the test pods

	PluginNamespace string // of the RDMA device plugin; "" for that of our manifests
}

// check refuses names that no API server accepts.
func (c Choice) check() error {
	for key, name := range map[string]string{"name": c.Name, "namespace": cmp.Or(c.Namespace, "default"), "plugin-namespace": cmp.Or(c.PluginNamespace, "default")} {
		if len(validation.IsDNS1123Label(name)) > 0 {
			return fmt.Errorf("--%s %q cannot be a name in Kubernetes: it may have a-z, 0-9 and -, and begins and ends with one of the first two", key, name)
		}
	}
	if strings.ContainsFunc(c.Image, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("--image %q cannot be an image: it has a space, or a character that is not ASCII", c.Image)
	}
	return nil
}

// ErrNoRail says that the node has no NIC for the objects.
var ErrNoRail = errors.New("the node has no RoCE NIC that can be a rail")

// Node returns the objects for the rails of a node: a RailPool, a network, the
// configuration of the device plugin, and test pods. Errors: ErrNoRail.
func Node(n nic.Node, choice Choice) ([]Document, error) {
	if err := choice.check(); err != nil {
		return nil, err
	}
	ports := slices.DeleteFunc(n.Inventory(), func(p nic.Details) bool { return p.Rail == nil })
	if len(ports) == 0 {
		return nil, ErrNoRail
	}
	pool, err := railPoolOf(ports, choice)
	if err != nil {
		return nil, err
	}
	match, selectors, comment := matching(n, ports)
	net := Document{append(append(railList(ports), comment), withoutRoCE(ports)...), railNetwork(match, len(ports), choice)}
	pods, comments := podsOf(ports)
	return []Document{pool, net, devicePlugin(pods, selectors, choice, comments), testPods(choice)}, nil
}

// railNetwork returns the network with so many rails that match.
func railNetwork(match ordered, count int, choice Choice) map[string]any {
	return network(choice.Name, choice.Namespace, "rdma/"+choice.Name, ordered{
		{"cniVersion", cniVersion},
		{"name", choice.Name},
		{"type", "roce"},
		{"rails", ordered{{"match", match}, {"count", count}, {"order", "pci"}, {"ifName", "net{rail+1}"}}},
		{"ipam", ordered{{"type", "roce-ipam"}, {"railPool", choice.Name}}},
	})
}

// railList says which NIC is which rail.
func railList(ports []nic.Details) []string {
	out := []string{"A network with all rails of the node:"}
	for _, p := range ports {
		out = append(out, fmt.Sprintf("rail %d: %s, %s, %s:%s, %s", *p.Rail, p.Netdev, p.PCI, p.VendorID, p.DeviceID, p.Name))
	}
	return out
}

const (
	aboutPool     = "The addresses of the pods. Each node that has rocectl agent claims blocks of it. It is for all nodes with the same rails."
	aboutTemplate = "subnet: check that no other machine has an address in it, or add ranges that are free."
)

// template returns a pool with the subnets of the user, and how many blocks it has; -1 if
// that depends on the racks.
func template(rails int, choice Choice) (d Document, blocks int, err error) {
	spec := block.PoolSpec{Template: &block.Template{Count: rails, Subnets: []block.Subnet{{Subnet: choice.Subnet, Gateway: choice.Gateway}}}}
	d = Document{Comments: []string{aboutPool, aboutTemplate}, Object: railPool(choice.Name, spec)}
	if strings.Contains(choice.Subnet+choice.Gateway, "{rack") {
		d.note("Cannot tell how many nodes and pods have room: it depends on the racks. Add rackLabel, the label of a Node with its rack.")
		return d, -1, nil
	}
	space, err := block.Pool{Name: choice.Name, Spec: spec}.Space("")
	if err == nil {
		err = d.check()
	}
	return d, space.Blocks(), err
}

// railPoolOf takes the subnets of the rails from the NICs' own addresses, or from the
// template.
func railPoolOf(ports []nic.Details, choice Choice) (Document, error) {
	if choice.Subnet != "" {
		d, _, err := template(len(ports), choice)
		return d, err
	}
	if choice.Gateway != "" {
		return Document{}, errors.New("--gateway is for the subnets of --subnet: give both")
	}
	d := Document{Comments: []string{aboutPool}}
	var spec block.PoolSpec
	bits := hostBits(ports)
	d.note("ranges: the upper half of each NIC's subnet. No other machine may have an address in it, and no NIC of a node: check that.")
	d.note("gateway: none is known here. Add it to each subnet if the rails are routed.")
	for _, p := range ports {
		var subnets []block.Subnet
		for _, a := range p.Addresses {
			if a.Addr().BitLen()-a.Bits() > bits {
				d.note("ranges: %s is larger than another subnet, or than the blocks of a pool reach. A pod has one host index in all subnets, so the range has only those that all can have.", a.Masked())
			}
			subnets = append(subnets, block.Subnet{Subnet: a.Masked().String(), Ranges: []string{upperHalf(a.Masked(), bits)}})
		}
		if len(subnets) == 0 {
			return d, fmt.Errorf("rail %d (%s) has no address of its own, so its subnet is unknown: give it with --subnet, such as 172.{rail+16}.0.0/16", *p.Rail, p.Netdev)
		}
		spec.Rails = append(spec.Rails, block.Rail{Subnets: subnets})
	}
	d.Object = railPool(choice.Name, spec)
	err := d.check() // it may add a comment
	return d, err
}

// hostBits returns how many bits of an address are the host index in the smallest subnet of the
// ports, and at most those that blocks reach. A pod has the same host index in all subnets.
func hostBits(ports []nic.Details) int {
	out := bits.Len(block.DefaultSize*block.MaxBlocks - 1)
	for _, p := range ports {
		for _, a := range p.Addresses {
			out = min(out, a.Addr().BitLen()-a.Bits())
		}
	}
	return out
}

// upperHalf returns the upper half of a subnet with so many bits for hosts, and the same host
// indexes of a larger one, as a prefix.
func upperHalf(p netip.Prefix, bits int) string {
	if bits > 1 {
		bits--
		p = netip.PrefixFrom(netrange.AtNumber(1<<bits, p), p.Bits())
	}
	return netip.PrefixFrom(p.Addr(), p.Addr().BitLen()-bits).String()
}

// matching returns the selector that fits exactly the rails, for roce, and that for the device
// plugin, which has the same keys. If other NICs are of the same kind, both name interfaces.
func matching(n nic.Node, ports []nic.Details) (match, selectors ordered, comment string) {
	vendors, ids := unique(ports, func(p nic.Details) string { return p.VendorID }), unique(ports, func(p nic.Details) string { return p.DeviceID })
	if len(vendors) == 0 {
		match = ordered{{"ifNames", names(ports)}}
		return match, match, "match: the NICs are on no PCI bus, so it names them. It fits only nodes with the same names."
	}
	match = ordered{{"vendors", vendors}, {"deviceIDs", ids}, {"linkTypes", []string{"ether"}}}
	others := n.Others(ports)
	if len(others) == 0 {
		return match, match, "match: vendor and type of the NICs. It fits all nodes with the same NICs."
	}
	return append(slices.Clone(match), member{"ifNames", names(ports)}), append(match, member{"ifNames", onPCI(ports)}),
		fmt.Sprintf("match: the node also has %s of this type, so it names the interfaces. It fits only nodes with the same names.", strings.Join(others, ", "))
}

// onPCI returns the interfaces that the device plugin can select: it sees NICs on the PCI
// bus, and so the slaves of a bond and not the bond.
func onPCI(ports []nic.Details) []string {
	var out []string
	for _, p := range ports {
		if len(p.Slaves) == 0 {
			out = append(out, string(p.Netdev))
		}
		out = append(out, p.Slaves...)
	}
	return out
}

func names(ports []nic.Details) []string {
	var out []string
	for _, p := range ports {
		out = append(out, string(p.Netdev))
	}
	return out
}

// unique returns the values of ports or rails, sorted, each once, without empty ones.
func unique[T any](all []T, of func(T) string) []string {
	var out []string
	for _, p := range all {
		if v := of(p); v != "" {
			out = append(out, v)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// withoutRoCE names the rails with RoCE off: they have no GID table.
func withoutRoCE(ports []nic.Details) []string {
	off := slices.DeleteFunc(slices.Clone(ports), func(p nic.Details) bool { return p.GIDs.Size > 0 || p.State == nic.Away })
	if len(off) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("Problem: RoCE is off on %s, so ADD fails there with error 103. rocectl doctor says how to turn it on.", strings.Join(names(off), ", "))}
}

const unknownTables = "rdmaHcaMax: cannot tell, because the size of no GID table is known. Write how many pods a node may have."

// podsOf returns how many pods the fullest GID table has room for, and says why.
func podsOf(ports []nic.Details) (int, []string) {
	ports = slices.DeleteFunc(slices.Clone(ports), func(p nic.Details) bool { return p.GIDs.Size == 0 }) // RoCE is off, or a pod has the device
	if len(ports) == 0 {
		return 0, []string{unknownTables}
	}
	pods, full := 0, ports[0]
	for i, p := range ports {
		if n := p.GIDs.Free() / p.GIDs.Width; i == 0 || n < pods {
			pods, full = n, p
		}
	}
	comments := []string{fmt.Sprintf("rdmaHcaMax: how many pods the GID table of %s has room for, with one IPv4 address each (%d of %d entries are free, and an address takes at most %d).",
		full.Netdev, full.GIDs.Free(), full.GIDs.Size, full.GIDs.Width)}
	if full.GIDs.Hidden {
		comments = append(comments, "NVIDIA's own driver hides the entries of pods from the host. If the node has pods with RDMA, take the number of rocectl gids.")
	}
	return pods, comments
}

// devicePlugin returns the configuration of k8s-rdma-shared-dev-plugin.
func devicePlugin(pods int, selectors ordered, choice Choice, comments []string) (d Document) {
	namespace := cmp.Or(choice.PluginNamespace, "roce-cni")
	d.note("The configuration of k8s-rdma-shared-dev-plugin: one resource for all rails, rdma/%s. It gives a pod /dev/infiniband.", choice.Name)
	d.note("name: that of make deploy and of the Helm chart. Their next upgrade brings their own configuration back, unless you write config.json into conf-examples/deploy/rdma/device-plugin/config.yaml or set the chart's devicePlugin.config. The plugin reads it when it starts: kubectl -n %s rollout restart daemonset/rdma-shared-device-plugin. The plugin's own examples have the name rdma-devices.", namespace)
	d.Comments = append(d.Comments, comments...)
	text := indent(ordered{
		{"periodicUpdateInterval", 300},
		{"configList", []ordered{{{"resourceName", choice.Name}, {"rdmaHcaMax", pods}, {"selectors", selectors}}}},
	})
	d.Object = map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "rdma-shared-device-plugin", "namespace": namespace},
		"data": map[string]any{"config.json": text},
	}
	return d
}

//go:embed testpods.yaml
var testPod string

// testPods returns a DaemonSet with what a pod needs for RDMA. The names are those of choice.check.
func testPods(choice Choice) (d Document) {
	d.note("A test pod on each node with the resource: the network, the device files, and the right to lock memory. Delete it after the test. The image is that of make push-tools: --image has its name.")
	image, _ := json.Marshal(choice.Image) // a string
	text := strings.NewReplacer("NAME", choice.Name, "IMAGE", string(image)).Replace(testPod)
	if err := yaml.Unmarshal([]byte(text), &d.Object); err != nil {
		panic("generate: testpods.yaml: " + err.Error())
	}
	d.Object["metadata"] = metadata(choice.Name+"-test", choice.Namespace, "")
	return d
}
