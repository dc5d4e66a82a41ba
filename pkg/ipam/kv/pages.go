// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"os"
	"slices"
	"sort"
)

// bbolt trusts what it reads. Most damage makes it panic, which Transact turns
// into an error. But a damaged newest meta page makes it fall back in silence
// to the one before, in which the newest lease is missing; a branch page that
// leads back to itself overflows the stack, which no program survives; and the
// data has no checksums. So each page is looked at here before bbolt is led to
// it. Checking only the values that are returned is not enough: without the
// checks of pages, the tests with a branch that leads back die of the stack, and
// those with an old page or a turned bit in the place of another do not end.
// The format is bbolt's internal/common: page.go, meta.go, bucket.go.
const (
	pageSize   = 4096 // set at creation, so that it is the same on every kernel
	headerSize = 16   // id 8, flags 2, count 2, overflow 4
	elemSize   = 16   // of a leaf: flags, pos, ksize, vsize; of a branch: pos, ksize, pgid 8
	bucketSize = 16   // root pgid 8, sequence 8; the page itself follows if the root is 0
	metaSize   = 64

	branchFlag   = 0x01
	leafFlag     = 0x02
	metaFlag     = 0x04
	freelistFlag = 0x10

	bucketLeafFlag = 0x01 // of an element: its value is a bucket

	magic         = 0xED0CDAED
	formatVersion = 2

	maxDepth = 16
	maxFree  = 65534 // a longer list is written in another way; it would mean 256 MB
)

// pages reads the database file beside bbolt.
type pages struct {
	mem  []byte   // the file as bbolt has mapped it
	root uint64   // of the bucket of buckets
	high uint64   // the first page number that is not in use
	free []uint64 // ascending
	seen map[uint64]treePage
	last leaf // where the last descent ended
}

// treePage is a branch or leaf page, with its overflow, that is sound as one of
// a bucket.
type treePage struct {
	bucket string
	buf    []byte
}

// leaf is a leaf page as seen from above: bbolt comes to it for the keys from
// lo on, and end is the last key that it has.
type leaf struct {
	root    uint64
	buf     []byte
	lo, end []byte
}

// readPages reads and checks the meta pages and the list of free pages.
func readPages(file *os.File) (*pages, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < 2*pageSize {
		return nil, Damagef("the file has %d bytes", info.Size())
	}
	buf := make([]byte, 2*pageSize)
	if _, err := file.ReadAt(buf, 0); err != nil {
		return nil, err
	}
	newest := buf[:pageSize]
	for id := range 2 {
		p := buf[id*pageSize:][:pageSize]
		if err := checkMeta(p, uint64(id)); err != nil {
			return nil, err
		}
		if txid(p) > txid(newest) {
			newest = p
		}
	}
	p := &pages{
		root: u64(newest, headerSize+16),
		high: u64(newest, headerSize+40),
		seen: make(map[uint64]treePage),
	}
	if p.high > uint64(info.Size())/pageSize {
		return nil, Damagef("the file has %d bytes and should have %d pages", info.Size(), p.high)
	}
	return p, p.readFree(file, u64(newest, headerSize+32))
}

func checkMeta(p []byte, id uint64) error {
	m := p[headerSize:]
	sum := fnv.New64a()
	sum.Write(m[:metaSize-8])
	switch {
	case u64(p, 0) != id || flags(p) != metaFlag:
		return Damagef("page %d is not a meta page", id)
	case u32(m, 0) != magic || u32(m, 4) != formatVersion || u32(m, 8) != pageSize:
		return Damagef("meta page %d has magic %#x, version %d, page size %d", id, u32(m, 0), u32(m, 4), u32(m, 8))
	case u64(m, metaSize-8) != sum.Sum64():
		return Damagef("the checksum of meta page %d does not fit", id)
	}
	return nil
}

func (p *pages) readFree(file io.ReaderAt, id uint64) error {
	if id < 2 || id >= p.high {
		return Damagef("page %d does not exist", id)
	}
	buf := make([]byte, pageSize)
	if _, err := file.ReadAt(buf, int64(id)*pageSize); err != nil {
		return err
	}
	n := count(buf)
	more := overflow(buf)
	if u64(buf, 0) != id || flags(buf) != freelistFlag || n > maxFree || id+more >= p.high || headerSize+n*8 > (int(more)+1)*pageSize {
		return Damagef("page %d is not a list of free pages", id)
	}
	if more > 0 {
		buf = append(buf, make([]byte, more*pageSize)...)
		if _, err := file.ReadAt(buf[pageSize:], int64(id+1)*pageSize); err != nil {
			return err
		}
	}
	p.free = make([]uint64, n)
	last := uint64(1)
	for i := range p.free {
		f := u64(buf, headerSize+i*8)
		if f <= last || f >= p.high {
			return Damagef("the list of free pages holds %d after %d", f, last)
		}
		p.free[i], last = f, f
	}
	return nil
}

// read returns a page and its overflow pages.
func (p *pages) read(id uint64) ([]byte, error) {
	if id < 2 || id >= p.high {
		return nil, Damagef("page %d does not exist", id)
	}
	buf := p.mem[id*pageSize:]
	more := overflow(buf)
	if u64(buf, 0) != id || id+more >= p.high {
		return nil, Damagef("page %d says that it is %d, with %d more", id, u64(buf, 0), more)
	}
	return buf[:(more+1)*pageSize], nil
}

// tree returns a branch or leaf page of a bucket, checked.
func (p *pages) tree(bucket string, id uint64) ([]byte, error) {
	if t, ok := p.seen[id]; ok {
		if t.bucket != bucket {
			return nil, Damagef("page %d belongs to both %q and %q", id, t.bucket, bucket)
		}
		return t.buf, nil
	}
	buf, err := p.read(id)
	if err != nil {
		return nil, err
	}
	if _, isFree := slices.BinarySearch(p.free, id); isFree {
		return nil, Damagef("page %d is in use and in the list of free pages", id)
	}
	if err := checkTree(bucket, buf); err != nil {
		return nil, err
	}
	p.seen[id] = treePage{bucket, buf}
	return buf, nil
}

// checkTree checks what is on a branch or leaf page: bbolt lays keys and values
// down without gaps, and each value of ours ends with a checksum. The values of
// the bucket of buckets are buckets, and have none. What is wrong with the keys
// of a branch shows when its children are looked at.
func checkTree(bucket string, p []byte) error {
	isLeaf := flags(p) == leafFlag
	if !isLeaf && (flags(p) != branchFlag || count(p) == 0) || headerSize+count(p)*elemSize > len(p) {
		return Damagef("a page of %q is neither branch nor leaf, or has too many elements", bucket)
	}
	at := headerSize + count(p)*elemSize
	kind := uint32(0)
	if bucket == "" {
		kind = bucketLeafFlag
	}
	seed := seed(bucket)
	for i := range count(p) {
		e := element(p, i)
		if e.begin != at || e.end > len(p) || e.key == nil {
			return Damagef("element %d of a page of %q is out of place", i, bucket)
		}
		if isLeaf && u32(p, headerSize+i*elemSize) != kind {
			return Damagef("element %d of a page of %q is of the wrong kind", i, bucket)
		}
		if isLeaf && bucket != "" && !sealed(seed, p[e.begin:e.end], len(e.value)) {
			return Damagef("the checksum of %s %x does not fit", bucket, e.key)
		}
		at = e.end
	}
	return nil
}

// descend looks at the pages through which bbolt finds target in the tree at
// root. If its leaf has nothing at or after target, bbolt goes on to the next
// leaf, so that is looked at, too.
func (p *pages) descend(bucket string, root uint64, target []byte) error {
	if p.last.serves(root, target) {
		return nil
	}
	at := leaf{root: root}
	var behind uint64 // the page behind the path, nearest the leaf,
	var first []byte  // and the key that its parent has for it
	depth := 0
	for id := root; ; depth++ {
		buf, err := p.below(bucket, id, depth, at.lo)
		if err != nil {
			return err
		}
		if flags(buf) == leafFlag {
			at.buf = buf
			break
		}
		n := count(buf)
		i := sort.Search(n, func(i int) bool { return bytes.Compare(element(buf, i).key, target) > 0 })
		i = max(i-1, 0)
		at.lo = element(buf, i).key
		if i+1 < n {
			first, behind = element(buf, i+1).key, child(buf, i+1)
		}
		id = child(buf, i)
	}
	if n := count(at.buf); n > 0 {
		at.end = element(at.buf, n-1).key
	}
	p.last = at
	if bytes.Compare(target, at.end) <= 0 {
		return nil
	}
	return p.first(bucket, behind, first, depth)
}

// inside says whether the leaf has another key behind one that it has.
func (l leaf) inside(root uint64, key []byte) bool {
	return l.root == root && bytes.Compare(key, l.lo) >= 0 && bytes.Compare(key, l.end) < 0
}

// serves says whether a descent for target would end at the leaf and need
// nothing behind it.
func (l leaf) serves(root uint64, target []byte) bool {
	return l.root == root && bytes.Compare(target, l.lo) >= 0 && bytes.Compare(target, l.end) <= 0
}

// first looks at the pages down to the first leaf below a page.
func (p *pages) first(bucket string, id uint64, lo []byte, depth int) error {
	for ; id != 0; depth++ {
		buf, err := p.below(bucket, id, depth, lo)
		if err != nil || flags(buf) == leafFlag {
			return err
		}
		id = child(buf, 0)
	}
	return nil
}

// below returns a page whose first key is lo, as its parent says; nil is any.
func (p *pages) below(bucket string, id uint64, depth int, lo []byte) ([]byte, error) {
	if depth > maxDepth {
		return nil, Damagef("the tree of page %d is too deep", id)
	}
	buf, err := p.tree(bucket, id)
	if err != nil {
		return nil, err
	}
	if lo != nil && (count(buf) == 0 || !bytes.Equal(element(buf, 0).key, lo)) {
		return nil, Damagef("page %d is out of place", id)
	}
	return buf, nil
}

// bucket checks the entry of a bucket in the bucket of buckets, and the page
// of a bucket that is small enough to be in the entry itself.
func (p *pages) bucket(name string) error {
	if err := p.descend("", p.root, []byte(name)); err != nil {
		return err
	}
	buf := p.last.buf
	for i := range count(buf) {
		e := element(buf, i)
		switch {
		case string(e.key) != name:
		case len(e.value) < bucketSize:
			return Damagef("the entry of table %s is malformed", name)
		case u64(e.value, 0) != 0:
			return nil
		case len(e.value) < bucketSize+headerSize:
			return Damagef("the entry of table %s is malformed", name)
		default:
			return checkTree(name, e.value[bucketSize:])
		}
	}
	return Damagef("there is no table %s", name)
}

// elem is an element of a branch or leaf page. Its key is nil if the element
// does not lie inside the page. A branch has no values.
type elem struct {
	begin, end int
	key, value []byte
}

func element(p []byte, i int) elem {
	at := headerSize + i*elemSize
	pos, ksize, vsize := u32(p, at), u32(p, at+4), uint32(0)
	if flags(p) == leafFlag {
		pos, ksize, vsize = u32(p, at+4), u32(p, at+8), u32(p, at+12)
	}
	e := elem{begin: at + int(pos)}
	mid := e.begin + int(ksize)
	e.end = mid + int(vsize)
	if ksize > 0 && e.end <= len(p) {
		e.key, e.value = p[e.begin:mid], p[mid:e.end]
	}
	return e
}

func flags(p []byte) uint16        { return binary.NativeEndian.Uint16(p[8:]) }
func overflow(p []byte) uint64     { return uint64(u32(p, 12)) }
func count(p []byte) int           { return int(binary.NativeEndian.Uint16(p[10:])) }
func child(p []byte, i int) uint64 { return u64(p, headerSize+i*elemSize+8) }
func txid(p []byte) uint64         { return u64(p, headerSize+48) }

func u32(b []byte, at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
func u64(b []byte, at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }

const sumSize = 4

// seed starts the checksums of a bucket, so that what belongs in one is not
// taken for something in another.
func seed(bucket string) uint32 { return crc32.Update(0, castagnoli(), []byte(bucket)) }

// seal appends the checksum of bucket, key and value to a value.
func seal(bucket string, key, value []byte) []byte {
	c := crc32.Update(crc32.Update(seed(bucket), castagnoli(), key), castagnoli(), value)
	return binary.BigEndian.AppendUint32(value[:len(value):len(value)], c)
}

// sealed checks a key with its value behind it, of size bytes.
func sealed(seed uint32, b []byte, size int) bool {
	end := len(b) - sumSize
	return size >= sumSize && binary.BigEndian.Uint32(b[end:]) == crc32.Update(seed, castagnoli(), b[:end])
}

// castagnoli is the polynomial that processors have an instruction for. crc32
// makes the table once.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// ErrDamaged is the cause of every error about what a file holds, as opposed
// to errors of the file system.
var ErrDamaged = errors.New("damaged")

// Damagef says what is wrong with what a file holds.
func Damagef(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrDamaged}, args...)...)
}
