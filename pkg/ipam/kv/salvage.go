// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kv

// Salvage calls fn for every item of the named tables whose checksum fits,
// wherever it lies in the bytes of a file that cannot be read any more. They
// come in no order, and more than once: the pages that bbolt has given up hold
// what was true before.
func Salvage(file []byte, names []string, fn func(table string, it Item)) {
	s := salvor{fn: fn}
	for _, name := range names {
		s.tables = append(s.tables, sealedTable{name, seed(name)})
	}
	for at := 0; at+headerSize <= len(file); at += pageSize {
		p := file[at:]
		if size := (overflow(p) + 1) * pageSize; size < uint64(len(p)) {
			p = p[:size]
		}
		s.page(p, s.inline)
	}
}

type sealedTable struct {
	name string
	seed uint32
}

type salvor struct {
	tables []sealedTable
	fn     func(string, Item)
}

// page looks at the elements of a leaf page. bucket is called for those that
// say that they are a bucket.
func (s salvor) page(p []byte, bucket func(value []byte)) {
	if flags(p) != leafFlag {
		return
	}
	for i := range min(count(p), (len(p)-headerSize)/elemSize) {
		e := element(p, i)
		switch {
		case e.key == nil:
		case u32(p, headerSize+i*elemSize) == bucketLeafFlag:
			bucket(e.value)
		default:
			s.item(p[e.begin:e.end], e)
		}
	}
}

// inline looks at a bucket that is small enough to lie in its own entry.
func (s salvor) inline(value []byte) {
	if len(value) >= bucketSize+headerSize {
		s.page(value[bucketSize:], func([]byte) {}) // no bucket of ours holds buckets
	}
}

func (s salvor) item(b []byte, e elem) {
	for _, t := range s.tables {
		if sealed(t.seed, b, len(e.value)) {
			s.fn(t.name, Item{e.key, opened(e.value)})
			return
		}
	}
}
