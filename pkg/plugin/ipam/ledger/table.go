// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"iter"

	bolt "go.etcd.io/bbolt"
)

// table has sorted keys with their values. Keys and values that it returns are
// valid until the end of the transaction. Do not change keys and values that
// you gave it before that. Damage ends the transaction: see fail.
type table struct {
	name    string
	bucket  *bolt.Bucket
	changes int // in this transaction
}

// item is one key of a table with its value. A nil key means that there is no
// item.
type item struct{ Key, Value []byte }

// get returns the value of a key, nil if there is none.
func (t *table) get(key []byte) []byte {
	v := t.bucket.Get(key)
	if v == nil {
		return nil
	}
	return t.unseal(key, v)
}

// ceil returns the first item at or after a key. Its key is nil if there is
// none.
func (t *table) ceil(key []byte) item { return t.found(t.bucket.Cursor().Seek(key)) }

func (t *table) found(key, sealed []byte) item {
	if key == nil {
		return item{}
	}
	return item{key, t.unseal(key, sealed)}
}

// in yields the items with keys that start with prefix, in order. The table may change
// during the loop.
func (t *table) in(prefix []byte) iter.Seq[item] {
	return t.from(prefix, func(key []byte) bool { return bytes.HasPrefix(key, prefix) })
}

// ring yields all items, beginning at start. After the last item it goes on with the
// first. The table may change during the loop.
func (t *table) ring(start []byte) iter.Seq[item] {
	return func(yield func(item) bool) {
		for it := range t.from(start, func([]byte) bool { return true }) {
			if !yield(it) {
				return
			}
		}
		t.from(nil, func(key []byte) bool { return bytes.Compare(key, start) < 0 })(yield)
	}
}

// from yields the items at and after a key, as long as in returns true for their keys.
func (t *table) from(key []byte, in func(key []byte) bool) iter.Seq[item] {
	return func(yield func(item) bool) {
		c := t.bucket.Cursor()
		it := t.found(c.Seek(key))
		for it.Key != nil && in(it.Key) {
			was := t.changes
			if !yield(it) {
				return
			}
			if t.changes == was {
				it = t.found(c.Next())
			} else {
				it = t.found(c.Seek(append(bytes.Clone(it.Key), 0)))
			}
		}
	}
}

// put sets the value of a key.
func (t *table) put(key, value []byte) {
	t.changes++
	if err := t.bucket.Put(key, binary.BigEndian.AppendUint32(value[:len(value):len(value)], t.sum(key, value))); err != nil {
		fail(err)
	}
}

// del removes a key, which must be there.
func (t *table) del(key []byte) {
	if t.get(key) == nil {
		fail(damagef("%s %x is missing", t.name, key))
	}
	t.changes++
	if err := t.bucket.Delete(key); err != nil {
		fail(err)
	}
}

const sumSize = 4

// unseal checks and removes the checksum of a value.
func (t *table) unseal(key, v []byte) []byte {
	end := len(v) - sumSize
	if end < 0 || binary.BigEndian.Uint32(v[end:]) != t.sum(key, v[:end]) {
		fail(damagef("the checksum of %s %x does not fit", t.name, key))
	}
	return v[:end]
}

// sum is the checksum of an item. It covers the key, the value and the table's name, so
// that an item of another table does not pass for one of this table.
func (t *table) sum(key, value []byte) uint32 {
	h := fnv.New32a()
	for _, part := range [][]byte{[]byte(t.name), key, value} {
		_, _ = h.Write(part) // it returns no error
	}
	return h.Sum32()
}
