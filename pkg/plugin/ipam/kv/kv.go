// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kv

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"iter"

	bolt "go.etcd.io/bbolt"
)

// Table has sorted keys with their values. Keys and values that it returns are
// valid until the end of the transaction. Do not change keys and values that
// you gave it before that.
type Table struct {
	name    string
	bucket  *bolt.Bucket
	changes int // in this transaction
}

// Item is one key of a table with its value. A nil key means that there is no
// item.
type Item struct{ Key, Value []byte }

// Get returns the value of a key, nil if there is none.
func (t *Table) Get(key []byte) ([]byte, error) {
	v := t.bucket.Get(key)
	if v == nil {
		return nil, nil
	}
	return t.unseal(key, v)
}

// Ceil returns the first item at or after a key. Its key is nil if there is
// none.
func (t *Table) Ceil(key []byte) (Item, error) { return t.found(t.bucket.Cursor().Seek(key)) }

func (t *Table) found(key, sealed []byte) (Item, error) {
	if key == nil {
		return Item{}, nil
	}
	v, err := t.unseal(key, sealed)
	return Item{key, v}, err
}

// Span is the keys from Lo up to Hi, without Hi. A nil Lo means from the first
// key, a nil Hi means to the last.
type Span struct{ Lo, Hi []byte }

// Prefix is the span of all keys that start with p.
func Prefix(p []byte) Span {
	hi := bytes.Clone(p)
	for i := len(hi) - 1; i >= 0; i-- {
		hi[i]++
		if hi[i] != 0 {
			return Span{p, hi[:i+1]}
		}
	}
	return Span{p, nil}
}

func (s Span) ends(key []byte) bool { return s.Hi != nil && bytes.Compare(key, s.Hi) >= 0 }

// In yields the items of a span in order. The table may change during the loop.
func (t *Table) In(s Span) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		c := t.bucket.Cursor()
		it, err := t.found(c.Seek(s.Lo))
		for {
			if err == nil && (it.Key == nil || s.ends(it.Key)) {
				return
			}
			was := t.changes
			if !yield(it, err) || err != nil {
				return
			}
			if t.changes == was {
				it, err = t.found(c.Next())
			} else {
				it, err = t.found(c.Seek(append(bytes.Clone(it.Key), 0)))
			}
		}
	}
}

// Ring yields the items of a span, beginning at start. After the last item it
// goes on with the first. start must not be empty.
func (t *Table) Ring(s Span, start []byte) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for _, part := range []Span{{start, s.Hi}, {s.Lo, start}} {
			for it, err := range t.In(part) {
				if !yield(it, err) || err != nil {
					return
				}
			}
		}
	}
}

// Put sets the value of a key.
func (t *Table) Put(key, value []byte) error {
	t.changes++
	return t.bucket.Put(key, binary.BigEndian.AppendUint32(value[:len(value):len(value)], t.sum(key, value)))
}

// Del removes a key, which must be there.
func (t *Table) Del(key []byte) error {
	if v, err := t.Get(key); err != nil {
		return err
	} else if v == nil {
		return Damagef("%s %x is missing", t.name, key)
	}
	t.changes++
	return t.bucket.Delete(key)
}

const sumSize = 4

// unseal checks and removes the checksum of a value.
func (t *Table) unseal(key, v []byte) ([]byte, error) {
	end := len(v) - sumSize
	if end < 0 || binary.BigEndian.Uint32(v[end:]) != t.sum(key, v[:end]) {
		return nil, Damagef("the checksum of %s %x does not fit", t.name, key)
	}
	return v[:end], nil
}

// sum is the checksum of an item. It covers the key, the value and the table's name, so
// that an item of another table does not pass for one of this table.
func (t *Table) sum(key, value []byte) uint32 {
	h := fnv.New32a()
	for _, part := range [][]byte{[]byte(t.name), key, value} {
		_, _ = h.Write(part) // it returns no error
	}
	return h.Sum32()
}
