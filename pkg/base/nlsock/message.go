// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nlsock

import (
	"bytes"
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Request is one message to the kernel.
type Request struct {
	Type, Flags uint16 // NLM_F_REQUEST is added
	Body        []byte // what follows the header
}

// append appends the message.
func (r Request) append(b []byte, seq uint32) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.NLMSG_HDRLEN+len(r.Body)))
	b = binary.NativeEndian.AppendUint16(b, r.Type)
	b = binary.NativeEndian.AppendUint16(b, r.Flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0) // the sender: the kernel knows
	return pad(append(b, r.Body...))
}

// AppendNumber appends a 32-bit attribute.
func AppendNumber(b []byte, typ uint16, v uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofRtAttr+4)
	b = binary.NativeEndian.AppendUint16(b, typ)
	return binary.NativeEndian.AppendUint32(b, v)
}

// AppendText appends a string attribute, with its final zero.
func AppendText(b []byte, typ uint16, v string) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(v)+1))
	b = binary.NativeEndian.AppendUint16(b, typ)
	return pad(append(append(b, v...), 0))
}

// pad appends zeros up to a multiple of four bytes: messages and attributes
// have this alignment.
func pad(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }

// Attributes yields the attributes of a message, without the flags in their
// types.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	const header = unix.SizeofRtAttr
	const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= header {
			n := int(binary.NativeEndian.Uint16(b))
			if n < header || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&^flags, b[header:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// Number reads a 32-bit attribute. It returns 0 for a shorter one.
func Number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// Text reads a string attribute, with or without its final zero.
func Text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
