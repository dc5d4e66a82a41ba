// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"encoding/json"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// Del is one DEL: the facts that lead to the record of the attachment.
type Del struct {
	Network string
	Attachment
	Netns string // may be empty or gone
	// IPAM is ipam.type, and Raw is the whole input. They lead to the leases of an
	// attachment that has lost its record. IPAM is "" if the configuration has no ipam:
	// the ADD has then leased nothing. IPAM is PoolType if ipam cannot be read.
	IPAM string
	Raw  string
	Pod  Pod // empty if the call does not say it
}

// ParseDel reads the input of a DEL of roce or roce-ipam. It looks only at the
// fields of Del, so that no other fault of a configuration can stop the
// deletion of a pod. It accepts everything that Parse or ParseIPAM accepts.
// Errors are those of Parse.
func ParseDel(in Input) (Del, error) {
	f := &strict.Faults{}
	checkAttachment(in, oldNameProblem, f)
	d, _ := readCall(in, f)
	if err := f.Err(operation, d.Network); err != nil {
		return Del{}, err
	}
	d.Attachment, d.Netns = Attachment{ContainerID(in.ContainerID), LinkName(in.IfName)}, in.Netns
	d.Pod = readArgs(in.Args, &strict.Faults{}).pod
	return d, nil
}

// DelOf returns the DEL that undoes an ADD.
func DelOf(r Request) Del {
	return Del{
		Network: r.Network, Attachment: r.Attachment, Netns: r.Netns,
		IPAM: r.IPAM.Type, Raw: string(r.IPAM.Raw), Pod: r.Pod,
	}
}

// GC is one GC: the attachments of one network that are still in use.
type GC struct {
	Network string
	IPAM    string // as in Del
	Raw     string
	// Valid are the attachments that stay. GC removes all others of the
	// network.
	Valid []Attachment
}

// ParseGC reads the input of a GC (SPEC.md, "GC: Clean up any stale
// resources"). The list of valid attachments must exist, and each entry must
// name an attachment. Otherwise the error is BadConfig, and nothing is removed.
// null and an empty list mean that no attachment is valid. Other errors are
// those of ParseDel.
func ParseGC(in Input) (GC, error) {
	f := &strict.Faults{}
	d, list := readCall(in, f)
	const key = "cni.dev/valid-attachments"
	var valid []Attachment
	if list == nil {
		f.Add(cnierr.BadConfig, key, "call GC with the list of attachments that are in use; an empty list frees all of the network", "is missing")
	} else if string(list) != string(strict.Null) {
		valid = attachments(f.ValueAt(key, list))
	}
	if err := f.Err(operation, d.Network); err != nil {
		return GC{}, err
	}
	return GC{Network: d.Network, IPAM: d.IPAM, Raw: d.Raw, Valid: valid}, nil
}

// attachments reads the list of GC. Keys count only in the spelling of the
// specification: an entry that we read wrongly would lose its attachment.
func attachments(list strict.Value) []Attachment {
	const hint = `write each entry as {"containerID": "ID", "ifname": "net1"}`
	text := func(v strict.Value) string {
		s, ok := v.Text(hint)
		if s == "" && (ok || !v.Present()) {
			v.Bad(hint, "missing or empty")
		}
		return s
	}
	out := []Attachment{}
	for _, e := range list.List() {
		if e.Kind() == strict.Null {
			e.Bad(hint, "is null, want an attachment")
			continue
		}
		if o := e.Object(); o.Present() {
			out = append(out, Attachment{ContainerID(text(o.At("containerID"))), LinkName(text(o.At("ifname")))})
		}
	}
	return out
}

// readCall reads what DEL and GC look at: the keys of Del, and the list of GC, nil if it
// is absent. It reads them as skel does before it calls us: upper and lower case are the
// same, and the last of two equal keys counts.
func readCall(in Input, f *strict.Faults) (d Del, valid json.RawMessage) {
	var c struct {
		Name  json.RawMessage `json:"name"`
		IPAM  json.RawMessage `json:"ipam"`
		Valid json.RawMessage `json:"cni.dev/valid-attachments"`
	}
	if _, ok := f.Document(strict.Whole, in.Stdin); !ok || !f.Unmarshal(strict.Whole, in.Stdin, &c) {
		return Del{}, nil
	}
	d = Del{Network: stringOf(c.Name), IPAM: ipamOf(c.IPAM), Raw: string(in.Stdin)}
	if !plainName(d.Network) {
		f.Add(cnierr.BadConfig, "name", "", "%q is not the name of a network", d.Network)
	}
	return d, c.Valid
}

// ipamOf returns the type of an ipam object: "" without ipam, and PoolType if ipam
// cannot be read.
func ipamOf(raw json.RawMessage) (kind string) {
	var ipam struct {
		Type json.RawMessage `json:"type"`
	}
	if raw == nil {
		return ""
	}
	if json.Unmarshal(raw, &ipam) != nil || ipam.Type != nil && json.Unmarshal(ipam.Type, &kind) != nil {
		kind = PoolType
	}
	return kind
}

func stringOf(raw json.RawMessage) string {
	var s string
	_ = json.Unmarshal(raw, &s) // "" if it is no string
	return s
}
