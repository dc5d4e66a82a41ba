// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// Whole is the name of the whole document in faults.
const Whole = "JSON"

// Document returns the top-level object of b. If b is not one JSON object, it notes a
// fault of the name, such as Whole, and the second result is false.
func (f *Faults) Document(name string, b []byte) (*Object, bool) {
	var whole json.RawMessage
	if !f.Unmarshal(name, b, &whole) {
		return nil, false
	}
	v := Value{name, f, bytes.TrimSpace(b)}
	if !v.is(AnObject, "") {
		return nil, false
	}
	o := v.Object()
	o.path = ""
	return o, true
}

// Unmarshal is json.Unmarshal. If b is not JSON, or does not fit into the value that into
// points to, it notes a fault of the name, with line and column, and returns false.
func (f *Faults) Unmarshal(name string, b []byte, into any) bool {
	err := json.Unmarshal(b, into)
	if err == nil {
		return true
	}
	place := ""
	var s *json.SyntaxError
	if errors.As(err, &s) && s.Offset > 0 && s.Offset <= int64(len(b)) {
		before := b[:s.Offset-1]
		line := bytes.Count(before, []byte("\n")) + 1
		place = fmt.Sprintf("line %d, column %d: ", line, len(before)-bytes.LastIndexByte(before, '\n'))
	}
	f.Add(cnierr.Decode, name, "", "%s%w", place, err)
	return false
}

// Object reads the members of one JSON object. A key that no reader has asked
// for at the end is unknown.
type Object struct {
	faults  *Faults
	path    string
	present bool
	word    bool     // another value stands for the object
	keys    []string // in the order of the document
	members map[string]json.RawMessage
	twice   []string
	asked   []string
}

// Object returns the object in v. It returns an object without members if v is
// absent or of another type.
func (v Value) Object() *Object {
	o := &Object{faults: v.faults, path: v.Path, members: map[string]json.RawMessage{}}
	if !v.is(AnObject, "") {
		return o
	}
	o.present = true
	d := json.NewDecoder(bytes.NewReader(v.raw))
	_, err := d.Token()
	for err == nil && d.More() {
		err = o.read(d)
	}
	if err != nil {
		panic(fmt.Sprintf("strict: object of a valid document: %v", err))
	}
	return o
}

// ObjectOr is Object, but a value v that is no object stands for {key: v}.
func (v Value) ObjectOr(key string) *Object {
	if k := v.Kind(); k == AnObject || k == Absent {
		return v.Object()
	}
	return &Object{
		faults: v.faults, path: v.Path, present: true, word: true,
		keys: []string{key}, members: map[string]json.RawMessage{key: v.raw},
	}
}

func (o *Object) read(d *json.Decoder) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	key, _ := token.(string)
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return err
	}
	if _, there := o.members[key]; there {
		o.twice = append(o.twice, key)
	} else {
		o.keys = append(o.keys, key)
	}
	o.members[key] = raw
	return nil
}

// Present says whether there is an object.
func (o *Object) Present() bool { return o.present }

// Keys returns the keys in the order of the document.
func (o *Object) Keys() []string { return o.keys }

// Repeats says whether a key appears more than once.
func (o *Object) Repeats(key string) bool { return slices.Contains(o.twice, key) }

// Has says whether a key has a value other than null. It does not declare the
// key.
func (o *Object) Has(key string) bool {
	raw := o.members[key]
	return raw != nil && string(raw) != string(Null)
}

// At returns the value of a key, and declares the key. A repeated key is a
// fault, because readers of JSON do not agree on which value counts.
func (o *Object) At(key string) Value {
	v := Value{Path: o.pathOf(key), faults: o.faults}
	if o.Has(key) {
		v.raw = o.members[key]
	}
	if slices.Contains(o.asked, key) {
		return v
	}
	o.asked = append(o.asked, key)
	if o.Repeats(key) {
		v.Bad("keep one of the two", "the key appears twice")
	}
	return v
}

func (o *Object) pathOf(key string) string {
	if o.path == "" {
		return key
	}
	if o.word {
		return o.path
	}
	return o.path + "." + key
}

// Strict reports the keys that no reader has asked for. If hint is not nil, it
// may give a better hint for a key than the most similar spelling.
func (o *Object) Strict(hint func(key string) string) {
	for _, key := range o.keys {
		if slices.Contains(o.asked, key) {
			continue
		}
		if o.faults.full() {
			o.faults.more++
			continue
		}
		advice := ""
		if hint != nil {
			advice = hint(key)
		}
		if advice == "" {
			advice = didYouMean(key, o.asked)
		}
		o.faults.Add(cnierr.BadConfig, o.pathOf(key), advice, "unknown key")
	}
}

// Lenient reports each unknown key that is the same as one that a reader has asked for,
// as the function says. It ignores other unknown keys: they belong to other plugins.
func (o *Object) Lenient(same func(key, ours string) bool) {
	for _, key := range o.keys {
		like := func(ours string) bool { return same(key, ours) }
		if !slices.Contains(o.asked, key) && slices.ContainsFunc(o.asked, like) {
			o.faults.Add(cnierr.BadConfig, o.pathOf(key), didYouMean(key, o.asked), "unknown key")
		}
	}
}
