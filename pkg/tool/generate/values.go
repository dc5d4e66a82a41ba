// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package generate

import (
	"fmt"
	"maps"
	"slices"
)

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
	path := f.path + key + "."
	for _, part := range f.parts {
		if part.path == path {
			return part
		}
	}
	m, _ := f.whole(key).(map[string]any)
	part := newFields(path, m)
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

// done says that no member needs a comment.
func (f *fields) done() {
	for key := range f.all {
		f.asked[key] = true
	}
}

// drop adds a comment for each member that has a reason to be dropped. A member that says
// nothing (false, 0, "", empty) has none.
func (f *fields) drop(d *Document, reasons map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(reasons)) {
		if v := f.whole(key); !empty(v) {
			d.note("Dropped: %s%s: %s.", f.path, key, reasons[key])
		}
	}
}

// rest adds a comment for each member that nothing has asked for.
func (f *fields) rest(d *Document) {
	for _, key := range slices.Sorted(maps.Keys(f.all)) {
		if !f.asked[key] && !empty(f.all[key]) {
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
	return v == nil || v == false || v == float64(0) || v == ""
}
