// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kv

import (
	"bytes"
	"iter"

	bolt "go.etcd.io/bbolt"
)

// Table is sorted keys with their values. Keys and values that it returns are
// valid until the end of the transaction; those that it is given must not be
// changed until then.
type Table struct {
	name    string
	bucket  *bolt.Bucket
	pages   *pages
	changes int // in this transaction
}

// Item is what a table holds under one key. Its key is nil for no item.
type Item struct{ Key, Value []byte }

// look checks the pages through which bbolt finds key. Until the commit these
// are the pages of the file, whatever the transaction has put and deleted: a
// tree changes its shape in the commit (node.go, spill and rebalance). A small
// bucket is inline in its entry, which Tx.Table has checked.
func (t *Table) look(key []byte) error {
	if root := uint64(t.bucket.Root()); root != 0 {
		return t.pages.descend(t.name, root, key)
	}
	return nil
}

// Get returns the value of a key, nil if there is none.
func (t *Table) Get(key []byte) ([]byte, error) {
	if err := t.look(key); err != nil {
		return nil, err
	}
	return opened(t.bucket.Get(key)), nil
}

// opened takes the checksum off a value. It has been checked with its page.
func opened(v []byte) []byte {
	if v == nil {
		return nil
	}
	return v[:len(v)-sumSize]
}

// Ceil returns the first item at or after a key, one with a nil key if there
// is none.
func (t *Table) Ceil(key []byte) (Item, error) { return t.seek(t.bucket.Cursor(), key) }

func (t *Table) seek(c *bolt.Cursor, key []byte) (Item, error) {
	if err := t.look(key); err != nil {
		return Item{}, err
	}
	return t.found(c.Seek(key))
}

// found looks at the pages once more, because what the transaction has deleted
// can lead the cursor farther than it was foreseen.
func (t *Table) found(k, v []byte) (Item, error) {
	if k == nil {
		return Item{}, nil
	}
	return Item{k, opened(v)}, t.look(k)
}

// next returns the item behind one at which the cursor is, if the table has
// not changed since.
func (t *Table) next(c *bolt.Cursor, key []byte) (Item, error) {
	root := uint64(t.bucket.Root())
	if root != 0 && !t.pages.last.inside(root, key) {
		return t.seek(c, append(bytes.Clone(key), 0))
	}
	return t.found(c.Next())
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
		it, err := t.seek(c, s.Lo)
		for {
			if err == nil && (it.Key == nil || s.ends(it.Key)) {
				return
			}
			was := t.changes
			if !yield(it, err) || err != nil {
				return
			}
			if t.changes == was {
				it, err = t.next(c, it.Key)
			} else {
				it, err = t.seek(c, append(bytes.Clone(it.Key), 0))
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
	if err := t.look(key); err != nil {
		return err
	}
	t.changes++
	return t.bucket.Put(key, seal(t.name, key, value))
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
