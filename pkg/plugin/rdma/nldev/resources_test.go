// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nldev

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// objects answers with the lists of a recording, by the command that asks for them.
type objects map[uint16][][]byte

func (objects) Close() {}

func (objects) Exchange(context.Context, ...nlsock.Request) ([]nlsock.Reply, error) { return nil, nil }

func (o objects) Dump(_ context.Context, req nlsock.Request) ([][]byte, error) {
	rows, known := o[req.Type&0x3ff]
	if !known {
		return nil, unix.EINVAL
	}
	return rows, nil
}

// TestRecordedObjectsAreRead has what Linux 6.1 answered with two processes of
// ibv_uc_pingpong.
func TestRecordedObjectsAreRead(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("testdata/resources-6.1.txt")
	if err != nil {
		t.Fatal(err)
	}
	o := objects{uint16(Connections): nil}
	for line := range strings.Lines(string(b)) {
		kind, data, _ := strings.Cut(strings.TrimSpace(line), " ")
		row, err := hex.DecodeString(data)
		if err != nil {
			t.Fatal(err)
		}
		command := map[string]Kind{"qp": QueuePairs, "mr": Regions, "ctx": Contexts}[kind]
		o[uint16(command)] = append(o[uint16(command)], row)
	}
	for kind, want := range map[Kind][]Resource{
		QueuePairs:  {{Type: 3, PID: 189}, {Type: 3, PID: 188}, {Type: 1, Module: "ib_core"}},
		Regions:     {{PID: 189, Bytes: 4096}, {PID: 188, Bytes: 4096}},
		Contexts:    {{PID: 189}, {PID: 188}},
		Connections: nil,
	} {
		got, err := New(o).Resources(t.Context(), 0, kind)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("kind %d: %v (-want +got)\n%s", kind, err, diff)
		}
	}
	if _, err := New(objects{}).Resources(t.Context(), 0, Contexts); !errors.Is(err, ErrNoDevice) {
		t.Errorf("a kernel that does not know the kind: %v, want ErrNoDevice", err)
	}
}

// A GPU's buffer may be longer than 32 bits can say.
func TestALongRegionHasItsWholeLength(t *testing.T) {
	t.Parallel()
	long := uint64(5) << 32
	got := parseResource(attribute(attrRegionLength, binary.NativeEndian.AppendUint64(nil, long)))
	if got.Bytes != long {
		t.Errorf("%d bytes, want %d", got.Bytes, long)
	}
}

// attribute returns a netlink attribute.
func attribute(typ uint16, value ...[]byte) []byte {
	b := slices.Concat(value...)
	out := binary.NativeEndian.AppendUint16(nil, uint16(4+len(b)))
	out = append(binary.NativeEndian.AppendUint16(out, typ), b...)
	return append(out, make([]byte, -len(out)&3)...)
}

// TestEachCounterOfADeviceIsRead has an answer as fill_res_counter_entry writes it.
func TestEachCounterOfADeviceIsRead(t *testing.T) {
	t.Parallel()
	row := attribute(attrCounters, attribute(78, nlsock.AppendNumber(nil, attrPID, 188)), attribute(78, nlsock.AppendNumber(nil, attrPID, 0)))
	var got []uint32
	err := New(objects{uint16(Counters): {row}}).Each(t.Context(), 0, Counters, func(entry []byte) {
		got = append(got, parseResource(entry).PID)
	})
	if err != nil || !slices.Equal(got, []uint32{188, 0}) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestQueuePairsOfTheDriverAreItsOwn(t *testing.T) {
	t.Parallel()
	for r, want := range map[Resource]bool{
		{Type: 0, Module: "ib_core"}: true, {Type: 1, Module: "ib_core"}: true, {Type: 4, Module: "mlx5_ib"}: true,
		{Type: 4, PID: 9}: false, {Type: 2, PID: 9}: false, {Type: 2, Module: "nvme_rdma"}: false,
	} {
		if r.Own() != want {
			t.Errorf("%+v: %t", r, !want)
		}
	}
}

func TestTypesAreSpelledAsRdmaResourceDoes(t *testing.T) {
	t.Parallel()
	for typ, want := range map[uint8]string{2: "RC", 3: "UC", 4: "UD", 255: "DRIVER", 77: "type 77"} {
		if got := (Resource{Type: typ}).TypeName(); got != want {
			t.Errorf("type %d: got %s, want %s", typ, got, want)
		}
	}
}
