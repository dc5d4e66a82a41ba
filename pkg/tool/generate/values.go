// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"fmt"
	"maps"
	"slices"
)

// str returns a member that is a string, "" if it is none.
func str(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}

// anys returns a member that is a list, nil if it is none.
func anys(m map[string]any, key string) []any {
	l, _ := m[key].([]any)
	return l
}

// list returns a member that is a list of strings, or one string.
func list(m map[string]any, key string) []string {
	if s := str(m, key); s != "" {
		return []string{s}
	}
	var out []string
	for _, v := range anys(m, key) {
		out = append(out, fmt.Sprint(v))
	}
	return out
}

// child returns a member that is an object, nil if it is none.
func child(m map[string]any, key string) map[string]any {
	o, _ := m[key].(map[string]any)
	return o
}

// noteDropped adds a comment for each member that has a reason to be dropped.
func noteDropped(d *Document, prefix string, in map[string]any, reasons map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(in)) {
		if why, dropped := reasons[key]; dropped {
			d.note("Dropped: %s%s: %s.", prefix, key, why)
		}
	}
}
