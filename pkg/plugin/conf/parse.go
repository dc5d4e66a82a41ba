// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// Input is the input of a CNI call. The results of the functions of this
// package share no memory with it.
type Input struct {
	Command     string // CNI_COMMAND; prevResult of CHECK is from ADD, any other from earlier plugins
	ContainerID string // CNI_CONTAINERID
	Netns       string // CNI_NETNS
	IfName      string // CNI_IFNAME
	Args        string // CNI_ARGS
	Stdin       []byte
}

const operation = "check configuration"

// Parse reads the input of an ADD, a CHECK or a STATUS of roce. STATUS is about
// no attachment, so its request has zero values in the fields of an attachment.
//
// The error is a *cnierr.Error that joins one *cnierr.Error for each fault. The
// subject of a fault is a JSON path or a CNI_ variable. The code is
// cnierr.Decode if all faults are about JSON syntax or types, cnierr.BadEnv if
// all are about CNI_ variables, cnierr.Version if all are of that code, and
// cnierr.BadConfig otherwise.
func Parse(in Input) (Request, error) {
	f := &strict.Faults{}
	r, e, top := general(in, f)
	if top == nil {
		return Request{}, f.Err(operation, "")
	}
	r.Digest = digest(in.Stdin)
	r.DNS = dns(top.At("dns"))
	rs := readRails(top)
	r.LinkInContainer = top.At("linkInContainer").True()
	r.VLAN = int(top.At("vlan").Whole(0, 1, MaxVLAN))
	r.Mode = childMode(top)
	r.MTU = int(top.At("mtu").Whole(0, 0, math.MaxInt32))
	r.BCQueueLen = bcQueueLen(top.At("bcqueuelen"), r.Mode)
	r.Sysctl = sysctls(top.At("sysctl"))
	r.Routing = routing(top.At("routing"))
	r.HostLink = hostLink(top.At("hostLink"))
	r.Probe = probe(top.At("probe"))
	r.RDMA = rdma(top.At("rdma"))
	runtime := top.At("runtimeConfig").Object()
	// The prevResult of CHECK is the result of ADD, which may be our own.
	switch in.Command {
	case "CHECK":
		r.MACs = finalMACs(top)
	case "STATUS":
	default:
		r.Before = resultBefore(top)
		r.Prev = readPrev(top, r.Before, runtime, string(r.IfName))
	}
	r.DeviceInfoFile = deviceInfoFile(runtime.At("CNIDeviceInfoFile"))
	r.MAC = macAddress(top, runtime, e.mac, r.Mode, len(rs.each), f)
	r = withRails(r, top, runtime, e.ips, rs, f)
	inFirstForm(r, f)
	if r.IPAM.Type != "" && r.IPAM.Type != PoolType {
		r.IPAM.Raw = bytes.Clone(in.Stdin)
	}
	misplaced(top)
	// A list has the key cniVersions, and some runtimes leave it in.
	top.Lenient(func(key, ours string) bool { return key != "cniVersions" && strict.Resembles(key, ours) })
	for _, key := range []string{"heal", "namespaces", "ipamPaths"} { // after it: other plugins have similar keys
		ofNode(top.At(key))
	}
	if err := f.Err(operation, r.Network); err != nil {
		return Request{}, err
	}
	return r, nil
}

// misplaced reports keys by which other plugins, or other places of our configuration, say
// what roce has another key for.
func misplaced(top *strict.Object) {
	for _, key := range top.Keys() {
		ours := map[string]string{
			"vlanid": "vlan", "vlan_id": "vlan", "gidindex": "rdma.gidIndex", "addresspool": "ipam.pool",
			"pool": "ipam.pool", "railpool": "ipam.railPool", "subnets": "ipam.subnets", "quarantine": "ipam.quarantine",
		}[strings.ToLower(key)]
		if ours != "" {
			top.At(key).Bad(fmt.Sprintf("did you mean %q?", ours), "unknown key")
		}
	}
}

func digest(stdin []byte) string {
	var c map[string]json.RawMessage
	if json.Unmarshal(stdin, &c) != nil {
		return ""
	}
	delete(c, "prevResult")
	delete(c, "runtimeConfig")
	b, err := json.Marshal(c)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func withRails(r Request, top, runtime *strict.Object, args []string, rs rails, f *strict.Faults) Request {
	ipam, g := addresses(top, runtime, args, r.Network, rs, f)
	r.IPAM, r.Rails, r.Match, r.MinRails = ipam, rs.of(r.IfName, r.Routing), rs.match, rs.least
	for i, one := range r.Rails {
		r.Rails[i].Routing = r.withDefault(one)
	}
	contradictoryRDMA(r.RDMA, f)
	contradictoryGIDIndex(r, f)
	contradictoryHostLink(r, f)
	contradictoryDefaults(r, f)
	contradictoryVLAN(r, f)
	if rs.wrong || ipam.later() {
		return r
	}
	return r.settled(g, f)
}

// general reads what is about the call, not about the link. top is nil if the document
// cannot be read.
func general(in Input, f *strict.Faults) (r Request, e env, top *strict.Object) {
	e = readEnv(in, f)
	top, ok := f.Document(strict.Whole, in.Stdin)
	if !ok || !bounded(in.Stdin, f) {
		return Request{}, e, nil
	}
	r = Request{
		CNIVersion: cniVersion(top.At("cniVersion")),
		Network:    networkName(top.At("name")),
		Attachment: e.Attachment,
		Netns:      e.netns,
		Pod:        e.pod,
		Status:     status(top.At("status")),
	}
	ofNode(top.At("stateDir"))
	ofNode(top.At("log"))
	return r, e, top
}

// Program returns the type of the plugin that a configuration is for: of roce-ipam's
// input, that is the plugin that calls it. It returns "" if there is none. All verbs
// read it in this way, so that DEL finds what ADD has leased.
func Program(in Input) string {
	var c struct {
		Type json.RawMessage `json:"type"`
	}
	if json.Unmarshal(in.Stdin, &c) != nil {
		return ""
	}
	return stringOf(c.Type)
}

// ParseIPAM reads the input of an ADD or a CHECK of roce-ipam. It looks only at
// the key ipam and, for ADD, prevResult, and refuses the settings of the node. All other keys belong to the main
// plugin, also dns and CNI_ARGS MAC; their fields of the request are zero. Errors are
// those of Parse.
func ParseIPAM(in Input) (Request, error) {
	f := &strict.Faults{}
	r, e, top := general(in, f)
	if top == nil {
		return Request{}, f.Err(operation, "")
	}
	before := f.Len()
	// The key rails is for the main plugin, too.
	r = withRails(r, top, top.At("runtimeConfig").Object(), e.ips, oneRail(), f)
	onlyRoce(r.IPAM, f)
	if in.Command == "ADD" {
		r.Before = resultBefore(top)
	}
	if r.IPAM.Type != PoolType && f.Len() == before {
		f.Add(cnierr.BadConfig, "ipam.type", "set ipam.type to "+PoolType, "want %q, got %q", PoolType, r.IPAM.Type)
	}
	// CNI's own reader ignores case, so a key that differs only in case is meant for us.
	top.Lenient(strings.EqualFold)
	if err := f.Err(operation, r.Network); err != nil {
		return Request{}, err
	}
	return r, nil
}

// onlyRoce reports keys that need to know the NIC: only roce knows it.
func onlyRoce(p IPAM, f *strict.Faults) {
	const hint, unknown = "write ipam.subnets", "roce knows the NIC, but roce-ipam called by another plugin does not"
	if p.FromMaster != nil {
		f.Add(cnierr.BadConfig, "ipam.fromMaster", hint, unknown)
	}
	if p.Table {
		f.Add(cnierr.BadConfig, "ipam.table", hint, unknown)
	}
}

func cniVersion(v strict.Value) string {
	s, ok := v.Text("")
	if (ok || !v.Present()) && !slices.Contains(Versions(), s) {
		v.Fault(cnierr.Version, "", "%q is none of %s", s, strings.Join(Versions(), ", "))
	}
	return s
}

// Versions returns the CNI versions that we support.
func Versions() []string {
	return []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
}

// firstForm says whether the results of a version have the first form: one address of
// each family, and nothing about interfaces.
func firstForm(version string) bool { return version == "0.1.0" || version == "0.2.0" }

func inFirstForm(r Request, f *strict.Faults) {
	if !firstForm(r.CNIVersion) {
		return
	}
	const key, hint = "cniVersion", "set cniVersion to 0.3.0 or newer"
	switch {
	case len(r.Rails) > 1:
		f.Add(cnierr.Version, key, hint+", or configure one interface", "a result of version %s cannot have %d interfaces", r.CNIVersion, len(r.Rails))
	case r.Before != nil && r.Prev == nil:
		f.Add(cnierr.Version, key, hint, "a result of version %s cannot have an interface beside that of the plugin before roce", r.CNIVersion)
	case r.IPAM.Type == "" && (r.Before == nil || len(r.Before.IPs) == 0):
		f.Add(cnierr.Version, key, hint, "a result of version %s must have an address, and the interface gets none", r.CNIVersion)
	}
}

// longestNetwork is the longest name of a network. Names of Kubernetes objects are not
// longer, and the lease database has room for it.
const longestNetwork = 253

func networkName(v strict.Value) string {
	s, ok := v.Text("")
	if (ok || !v.Present()) && !plainName(s) {
		v.Bad("use a letter or digit, then letters, digits and _.-", "%q is not the name of a network", s)
	}
	if len(s) > longestNetwork {
		v.Bad("choose a shorter name", "%d characters, at most %d are possible", len(s), longestNetwork)
	}
	return s
}

// SettingsFile is where the settings of a node are, as package settings reads them.
const SettingsFile = "/etc/roce/node.json"

func setByNode(key string) string {
	return fmt.Sprintf("remove it from the network; the key %q of %s on the node sets it", key, SettingsFile)
}

func ofNode(v strict.Value) {
	if v.Present() {
		v.Bad(setByNode(v.Path), "it is a setting of the node, which a network cannot change")
	}
}

func status(v strict.Value) Status {
	o := v.Object()
	defer o.Strict(nil)
	return Status{Pool: strict.Choice(o.At("pool"), Require, Off), Rails: strict.Choice(o.At("rails"), AnyRail, Require)}
}

func dns(v strict.Value) types.DNS {
	o := v.Object()
	domain, _ := o.At("domain").Text("")
	return types.DNS{
		Nameservers: o.At("nameservers").Texts(),
		Domain:      domain,
		Search:      o.At("search").Texts(),
		Options:     o.At("options").Texts(),
	}
}

// The most that a configuration may have. No cluster needs as much. More would
// let the author of a configuration use up the time and the memory of a node.
const (
	maxInput      = 256 << 10 // bytes of standard input
	maxSubnets    = 64        // of one rail
	maxRanges     = 256       // of one subnet; as many exclusions
	maxRoutes     = 64
	maxSysctls    = 64
	maxAddresses  = 64 // that are requested
	maxBCQueueLen = 10_000
)

// bounded says whether an input is small enough to be read, and reports what is too
// long. It checks nothing else: the reader of a key reports a wrong type.
func bounded(stdin []byte, f *strict.Faults) bool {
	before := f.Len()
	if len(stdin) > maxInput {
		f.Add(cnierr.BadConfig, strict.Whole, "", "it has %d bytes, the limit is %d", len(stdin), maxInput)
		return false
	}
	type subnets []struct{ Ranges, Exclude []json.RawMessage }
	var c struct {
		IPAM struct {
			Subnets subnets
			Routes  []json.RawMessage
		}
		Rails         json.RawMessage
		Sysctl        map[string]json.RawMessage
		RuntimeConfig struct{ IPs []json.RawMessage }
		Args          struct {
			CNI struct{ IPs []json.RawMessage }
		}
	}
	var rails []struct{ Subnets subnets }
	_ = json.Unmarshal(stdin, &c)       // what can be read is enough here
	_ = json.Unmarshal(c.Rails, &rails) // an object has no subnets for each rail
	most := func(path string, have, most int) {
		if have > most {
			f.Add(cnierr.BadConfig, path, "", "%d entries, the limit is %d", have, most)
		}
	}
	each := func(path string, list subnets) {
		most(path, len(list), maxSubnets)
		for i, s := range list[:min(len(list), maxSubnets)] {
			most(fmt.Sprintf("%s[%d].ranges", path, i), len(s.Ranges), maxRanges)
			most(fmt.Sprintf("%s[%d].exclude", path, i), len(s.Exclude), maxRanges)
		}
	}
	each("ipam.subnets", c.IPAM.Subnets)
	for i, r := range rails {
		each(fmt.Sprintf("rails[%d].subnets", i), r.Subnets)
	}
	most("ipam.routes", len(c.IPAM.Routes), maxRoutes)
	most("sysctl", len(c.Sysctl), maxSysctls)
	most("runtimeConfig.ips", len(c.RuntimeConfig.IPs), maxAddresses)
	most("args.cni.ips", len(c.Args.CNI.IPs), maxAddresses)
	return f.Len() == before
}

func deviceInfoFile(v strict.Value) string {
	if v.Raw() == `""` {
		return ""
	}
	s, _ := v.Absolute()
	return s
}
