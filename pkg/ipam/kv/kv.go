// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kv

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"iter"

	bolt "go.etcd.io/bbolt"
)

// Table is sorted keys with their values. Keys and values that it returns are
// valid until the end of the transaction; those that it is given must not be
// changed until then.
type Table struct {
	name    string
	bucket  *bolt.Bucket
	changes int // in this transaction
}

// Item is what a table holds under one key. Its key is nil for no item.
type Item struct{ Key, Value []byte }

// Get returns the value of a key, nil if there is none.
func (t *Table) Get(key []byte) ([]byte, error) {
	v := t.bucket.Get(key)
	if v == nil {
		return nil, nil
	}
	return t.unseal(key, v)
}

// Ceil returns the first item at or after a key, one with a nil key if there
// is none.
func (t *Table) Ceil(key []byte) (Item, error) { return t.found(t.bucket.Cursor().Seek(key)) }

func (t *Table) found(key, sealed []byte) (Item, error) {
	if key == nil {
		return Item{}, nil
	}
	v, err := t.unseal(key, sealed)
	return Item{key, v}, err
}

// Span is the keys from Lo up to and without Hi. A nil Lo is the first key
// there is, a nil Hi is behind the last.
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

// In yields the items of a span in order. The table may be changed meanwhile.
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

// Ring yields the items of a span beginning at start, which must not be empty,
// going on with the first after the last.
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

// unseal takes the checksum off a value. Earlier versions write it and demand it, so
// it stays in the format.
func (t *Table) unseal(key, v []byte) ([]byte, error) {
	end := len(v) - sumSize
	if end < 0 || binary.BigEndian.Uint32(v[end:]) != t.sum(key, v[:end]) {
		return nil, Damagef("the checksum of %s %x does not fit", t.name, key)
	}
	return v[:end], nil
}

// sum is the checksum of an item: of the table's name, so that an item of another table
// is not taken for one of this, the key and the value.
func (t *Table) sum(key, value []byte) uint32 {
	castagnoli := crc32.MakeTable(crc32.Castagnoli) // made once by crc32; processors have an instruction for it
	c := crc32.Update(0, castagnoli, []byte(t.name))
	return crc32.Update(crc32.Update(c, castagnoli, key), castagnoli, value)
}
