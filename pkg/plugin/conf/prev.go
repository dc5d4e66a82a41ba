// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// Prev is the interface that the plugins before roce in a chain have made for
// the pod, and that roce adopts. Its name is CNI_IFNAME.
type Prev struct {
	// Result is the result of those plugins. Do not change it: the runtime and
	// the CHECK of those plugins get it unchanged.
	Result *current.Result
	// Interface is the index of the interface in Result.Interfaces.
	Interface int
	// Device is the key deviceID, if it is a PCI address or the name of an
	// auxiliary device; else "".
	Device string
}

// readPrev returns the interface with a name, which an ADD is to adopt. It returns nil when
// roce makes its own interface, because there is a master, or rails, or no result of an
// earlier plugin. It notes faults of top.
// before is what resultBefore returns for top.
func readPrev(top *strict.Object, before *current.Result, runtime *strict.Object, ifName string) *Prev {
	master, v := top.At("master"), top.At("prevResult")
	makes := master.Present() && master.Raw() != `""` || top.At("rails").Present()
	if makes || !v.Present() {
		return nil
	}
	ofMaker(top)
	if before == nil {
		return nil
	}
	i := slices.IndexFunc(before.Interfaces, func(l *current.Interface) bool {
		return l.Name == ifName && l.Sandbox != ""
	})
	if i < 0 {
		v.Bad("put roce behind the plugin that makes the pod's interface, or set master to have roce make one",
			"it lists no interface %q of the pod", ifName)
	}
	return &Prev{Result: before, Interface: i, Device: deviceID(top.At("deviceID"), runtime.At("deviceID"))}
}

// resultBefore returns the result of the plugins before in the list. It returns nil if there
// is none, or a fault.
func resultBefore(top *strict.Object) *current.Result {
	v := top.At("prevResult")
	if !v.Present() {
		return nil
	}
	version, _ := top.At("cniVersion").Text("")
	res, err := ReadResult([]byte(v.Raw()), version)
	if err != nil {
		v.Fault(cnierr.Decode, "check the plugin before roce in the list: its result is prevResult", "not the result of a CNI plugin: %w", err)
		return nil
	}
	return res
}

// finalMACs returns the MACs of the pod's interfaces in the prevResult of CHECK, which
// is the result of the last plugin of the list.
func finalMACs(top *strict.Object) map[LinkName]MAC {
	res := resultBefore(top)
	if res == nil {
		return nil
	}
	out := map[LinkName]MAC{}
	for _, l := range res.Interfaces {
		if mac, err := ParseMAC(l.Mac); err == nil && l.Sandbox != "" {
			out[LinkName(l.Name)] = mac
		}
	}
	return out
}

func ofMaker(top *strict.Object) {
	const hint = "set it in the configuration of the plugin that makes the interface, or set master to have roce make one"
	keys := []strict.Value{top.At("ipam").Object().At("type")}
	for _, key := range []string{"mode", "mtu", "mac", "bcqueuelen", "linkInContainer"} {
		keys = append(keys, top.At(key))
	}
	for _, v := range keys {
		if v.Present() {
			v.Bad(hint, "has no effect: without master, roce adopts the interface in prevResult")
		}
	}
}

// deviceID returns the first value that names a device. It reports no fault for
// other values: with a shared device plugin, Multus puts a meaningless number
// there.
func deviceID(values ...strict.Value) string {
	pci := regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	auxiliary := regexp.MustCompile(`^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[0-9]+$`)
	for _, v := range values {
		var s string
		if json.Unmarshal([]byte(v.Raw()), &s) != nil {
			continue
		}
		if auxiliary.MatchString(s) {
			return s
		}
		if s = strings.ToLower(s); pci.MatchString(s) {
			return s
		}
	}
	return ""
}

// ReadResult reads the result of a plugin, of any CNI version. A result without
// a version has the version of the configuration, as in libcni
// (https://github.com/containernetworking/cni/issues/895). No interface, address or route
// is nil.
func ReadResult(b []byte, version string) (*current.Result, error) {
	var doc map[string]json.RawMessage
	err := json.Unmarshal(b, &doc)
	if err == nil && doc == nil {
		err = errors.New("is null, want a result")
	}
	if err != nil {
		return nil, err
	}
	if said := stringOf(doc["cniVersion"]); said != "" {
		version = said
	} else {
		doc["cniVersion"] = json.RawMessage(fmt.Sprintf("%q", version))
	}
	if b, err = json.Marshal(doc); err != nil {
		return nil, err
	}
	r, err := create.Create(version, b)
	if err == nil {
		err = whole(r)
	}
	if err != nil {
		return nil, err
	}
	return current.NewResultFromResult(r)
}

// whole returns an error if a list of a result has null in place of an object: libcni would
// panic when it writes or reads the result in another version.
func whole(r types.Result) error {
	b, err := json.Marshal(r)
	var lists map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(b, &lists)
	}
	for _, key := range []string{"interfaces", "ips", "routes"} {
		var all []json.RawMessage
		if json.Unmarshal(lists[key], &all) == nil && slices.ContainsFunc(all, func(one json.RawMessage) bool { return string(one) == "null" }) {
			return fmt.Errorf("%s has null in place of an object", key)
		}
	}
	return err
}
