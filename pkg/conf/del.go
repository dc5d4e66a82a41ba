// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"encoding/json"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf/strict"
)

// Del is one DEL: what leads to the record of the attachment.
type Del struct {
	CNIVersion  string // "" if it is not a string
	Network     string
	ContainerID ContainerID
	IfName      LinkName
	Netns       string // may be empty or gone
	StateDir    string
	// IPAM is ipam.type, "" if it is not a string, and Raw the whole input: they
	// lead to the leases of an attachment whose record is lost.
	IPAM string
	Raw  string
}

// ParseDel reads the input of a DEL of roce or roce-ipam. It looks at nothing
// but the fields of Del, so that no other mistake in a configuration can keep
// a pod from going. What Parse or ParseIPAM accepts, it accepts. Errors are
// those of Parse.
func ParseDel(in Input) (Del, error) {
	f := &strict.Faults{}
	checkAttachment(in, f)
	// The keys are read as skel reads them before it calls us: in any case,
	// and the last of two counts.
	var c struct {
		CNIVersion json.RawMessage `json:"cniVersion"`
		Name       json.RawMessage `json:"name"`
		StateDir   json.RawMessage `json:"stateDir"`
		IPAM       json.RawMessage `json:"ipam"`
	}
	if !f.Unmarshal(in.Stdin, &c) {
		return Del{}, f.Err(operation, "")
	}
	d := Del{
		CNIVersion: stringOf(c.CNIVersion), Network: stringOf(c.Name),
		ContainerID: ContainerID(in.ContainerID), IfName: LinkName(in.IfName), Netns: in.Netns,
		StateDir: DefaultStateDir, IPAM: ipamType(c.IPAM), Raw: string(in.Stdin),
	}
	if !plainName(d.Network) {
		f.Add(cnierr.BadConfig, "name", "", "%q is not the name of a network", d.Network)
	}
	// Anything but a path is a fault, because we would look in the wrong place.
	if c.StateDir != nil && string(c.StateDir) != string(strict.Null) {
		d.StateDir = stringOf(c.StateDir)
		if !cleanAbs(d.StateDir) {
			f.Add(cnierr.BadConfig, "stateDir", stateDirHint, "%s is not a clean absolute path", c.StateDir)
		}
	}
	if err := f.Err(operation, d.Network); err != nil {
		return Del{}, err
	}
	return d, nil
}

// ipamType returns the type in an ipam object, or "".
func ipamType(raw json.RawMessage) string {
	var ipam struct {
		Type json.RawMessage `json:"type"`
	}
	if json.Unmarshal(raw, &ipam) != nil {
		return ""
	}
	return stringOf(ipam.Type)
}

// stringOf returns the string that raw is, or "".
func stringOf(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}
