// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// hostile is a name that the kernel accepts for a link: at most 15 bytes, without
// blanks, slashes and colons.
const hostile = "`id>p`$(id);e'l"

// quoted is a word in single quotes; an apostrophe in it is written '\”.
var quoted = regexp.MustCompile(`'[^']*'(\\''[^']*')*`)

// fill sets every text in a value, and makes one element for each list and pointer.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile)
	case reflect.Uint8, reflect.Uint32:
		v.SetUint(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Struct:
		switch v.Interface().(type) {
		case netip.Addr:
			v.Set(reflect.ValueOf(netip.MustParseAddr("10.0.0.1")))
			return
		case netip.Prefix:
			v.Set(reflect.ValueOf(netip.MustParsePrefix("10.0.0.1/24")))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	}
}

// Each command that is printed is made from these, with the names of a pod.
func TestNoCommandHasAWordOfThePodUnquoted(t *testing.T) {
	t.Parallel()
	for _, r := range kinds {
		v := reflect.New(r.of).Elem()
		fill(v)
		for _, place := range []Place{Pod, Host} {
			for _, netns := range []string{hostile, "/proc/1/" + hostile} {
				for _, command := range (Op{Place: place, Kind: v.Interface().(Kind)}).Commands(netns) {
					rest := quoted.ReplaceAllString(command, "")
					if strings.ContainsAny(rest, "`$'\n") {
						t.Errorf("%s: %s\nunquoted: %s", r.name, command, rest)
					}
				}
			}
		}
	}
}

// A link that is there has its own MAC, and a device that was made again has another name.
func TestOnlyLinksHaveAMACAndOnlyWhatLooksHasADevice(t *testing.T) {
	t.Parallel()
	mac, device := conf.MAC{2, 1}, RDMADevice{Name: "mlx5_9", Port: 1}
	for _, r := range kinds {
		v := reflect.New(r.of).Elem()
		fill(v)
		for _, place := range []Place{Pod, Host} {
			is := Op{Place: place, Kind: v.Interface().(Kind)}
			set := func(field string, value any, when bool) Op {
				want := reflect.New(r.of).Elem()
				want.Set(v)
				if when {
					want.FieldByName(field).Set(reflect.ValueOf(value))
				}
				return Op{Place: place, Kind: want.Interface().(Kind)}
			}
			if got, want := is.WithMAC(mac), set("MAC", mac, r.name == "macvlan" || r.name == "adopt"); !got.Same(want) {
				t.Errorf("%s: got %+v, want %+v", r.name, got, want)
			}
			now := func(RDMADevice) RDMADevice { return device }
			if got, want := (Ops{is}).WithDevices(now)[0], set("Device", device, r.looks && place == Host); !got.Same(want) {
				t.Errorf("%s: got %+v, want %+v", r.name, got, want)
			}
		}
	}
}
