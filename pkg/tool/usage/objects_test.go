// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package usage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// attribute returns an attribute of netlink with a value.
func attribute(typ uint16, value ...[]byte) []byte {
	b := slices.Concat(value...)
	out := binary.NativeEndian.AppendUint16(nil, uint16(4+len(b)))
	out = append(binary.NativeEndian.AppendUint16(out, typ), b...)
	return append(out, make([]byte, -len(out)&3)...)
}

// counter is one of a program, as fill_res_counter_entry writes it; one without a PID was bound
// by hand.
func counter(pid uint32, name string, v uint64, more ...[]byte) []byte {
	entry := attribute(81, attribute(attrValueName, []byte(name+"\x00")), attribute(attrValue, binary.NativeEndian.AppendUint64(nil, v)))
	var program []byte
	if pid != 0 {
		program = nlsock.AppendNumber(nil, attrPID, pid)
	}
	return slices.Concat(program, attribute(attrValues, append([][]byte{entry}, more...)...))
}

// failing is a kernel with a socket that does not answer some requests, and counts what is open.
type failing struct {
	kernel
	faults map[uint16]error // by command
	open   *int
}

func (f failing) Close() { *f.open-- }

func (f failing) Dump(ctx context.Context, req nlsock.Request) ([][]byte, error) {
	if err := f.faults[req.Type&0x3ff]; err != nil {
		return nil, err
	}
	return f.kernel.Dump(ctx, req)
}

// TestCountersOfAProgramAreThoseOfItsUser has counters on two ports for one program, one that was
// bound by hand, and one without traffic.
func TestCountersOfAProgramAreThoseOfItsUser(t *testing.T) {
	t.Parallel()
	n, k := node(t, fstest.MapFS{"189/ns/net": link("net:[1]"), "188/ns/net": link("net:[77]")}), recorded(t)
	received := func(v uint64) []byte { return counter(0, "rdma_rx_bytes", v)[4:] }
	k["counter"] = [][]byte{attribute(77,
		attribute(78, counter(188, "rdma_tx_bytes", 100, received(200))), attribute(78, counter(188, "rdma_tx_bytes", 5, received(7))),
		attribute(78, counter(0, "rdma_tx_bytes", 9, received(9))), attribute(78, counter(189, "out_of_buffer", 3)),
	)}
	n.Dial = func() (*nldev.Conn, error) { return nldev.New(k), nil }
	before := time.Now()
	uses, err := n.Read(t.Context())
	if err != nil || len(uses) != 2 {
		t.Fatalf("%+v, error %v, want those of a pod and of the host", uses, err)
	}
	pod, host := uses[0], uses[1]
	if pod.Counted == nil || pod.Counted.At.Before(before) || host.Counted != nil {
		t.Fatalf("counted %+v for the pod, and %+v for the host", pod.Counted, host.Counted)
	}
	if diff := cmp.Diff(Traffic{At: pod.Counted.At, Sent: 105, Received: 207, Unit: "bytes"}, *pod.Counted); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestObjectsOfTheKernelHaveNoProcess has a module with two contexts beside the programs.
func TestObjectsOfTheKernelHaveNoProcess(t *testing.T) {
	t.Parallel()
	n, k := node(t, fstest.MapFS{"189/ns/net": link("net:[1]"), "188/ns/net": link("net:[77]")}), recorded(t)
	module := attribute(0, attribute(29, []byte("nvme_rdma\x00")))
	k["ctx"] = append([][]byte{attribute(86, module, module)}, k["ctx"]...)
	n.Dial = func() (*nldev.Conn, error) { return nldev.New(k), nil }
	uses, err := n.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string // pods first, although the kernel and the host come first in the list
	for _, u := range uses {
		got = append(got, fmt.Sprint(u.User, " ", u.Contexts, " ", len(u.Processes), u.Processes != nil))
	}
	if diff := cmp.Diff([]string{"ml/p1 1 1 true", "host 1 1 true", "the kernel's nvme_rdma 2 0 true"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWhatTheKernelDoesNotAnswerIsAnError(t *testing.T) {
	t.Parallel()
	const qp, region, connection, context, counters = 10, 13, 11, 22, 17
	refused := errors.New("the kernel refuses")
	for command, name := range map[uint16]string{qp: "queue pairs", region: "regions", connection: "connections", context: "contexts", counters: "counters", 1: ""} {
		for _, fault := range []error{refused, unix.ENODEV} {
			n, open := node(t, fstest.MapFS{}), 0
			n.Dial = func() (*nldev.Conn, error) {
				open++
				return nldev.New(failing{recorded(t), map[uint16]error{command: fault}, &open}), nil
			}
			uses, err := n.Read(t.Context())
			gone := errors.Is(fault, unix.ENODEV) && name != "" // a device that is gone is none
			if want := "objects of RDMA device rxe0: the kernel refuses"; gone != (err == nil) || errors.Is(fault, refused) && (!errors.Is(err, refused) || name != "" && err.Error() != want) {
				t.Errorf("%s, %v: %d uses, error %v", name, fault, len(uses), err)
			}
			if open != 0 {
				t.Errorf("%s, %v: %d sockets are open", name, fault, open)
			}
		}
	}
	n := node(t, fstest.MapFS{})
	n.Dial = func() (*nldev.Conn, error) { return nil, rdma.ErrNoDevice }
	if uses, err := n.Read(t.Context()); uses != nil || !errors.Is(err, rdma.ErrNoDevice) {
		t.Errorf("without RDMA: %v, error %v", uses, err)
	}
}

// TestDevicesOfPodsAreReadInTheirNamespaces has a pod with two devices, and two interfaces. It is
// not parallel, because it counts open files.
func TestDevicesOfPodsAreReadInTheirNamespaces(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root enters a namespace")
	}
	own, err := netns.At("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	pod := func() Node {
		n := node(t, fstest.MapFS{})
		n.Records[0].Netns, n.Records[0].NetnsID = own.Path, own.ID
		move := plan.Move{Device: plan.RDMADevice{Name: "rxe0"}}
		n.Records[0].Plan.Ops = plan.OnHost(move, move)
		n.Records = append(n.Records, n.Records[0])
		return n
	}
	n, dials, open := pod(), 0, 0
	n.Dial = func() (*nldev.Conn, error) {
		dials, open = dials+1, open+1
		return nldev.New(failing{recorded(t), nil, &open}), nil
	}
	before := cnitest.OpenFiles(t)
	uses, err := n.Read(t.Context())
	if after := cnitest.OpenFiles(t); after != before {
		t.Errorf("%d files are open, %d were", after, before)
	}
	if err != nil || dials != 2 || open != 0 || len(uses) != 1 || uses[0].Contexts != 4 {
		t.Errorf("%d dials, %d sockets are open, uses %+v, error %v, want the host's and the pod's together", dials, open, uses, err)
	}
	refused := errors.New("refused")
	dial := n.Dial
	n = pod()
	n.Dial = func() (*nldev.Conn, error) {
		if dials++; dials > 4 {
			return nil, refused
		}
		return dial()
	}
	if _, err := n.Read(t.Context()); !errors.Is(err, refused) {
		t.Errorf("without a socket in the pod: %v", err)
	}
	n = pod()
	n.Records[0].NetnsID.Dev, n.Records = own.ID.Dev+1, n.Records[:1] // of another kernel
	if uses, err := n.Read(t.Context()); err != nil || uses[0].Contexts != 2 {
		t.Errorf("another namespace is read: %+v, error %v", uses, err)
	}
}

func TestAProcessHoldsWhatItsPodHadWhenItBegan(t *testing.T) {
	t.Parallel()
	since := func(d time.Duration) calls.Held { return calls.Held{Netns: 78, Since: d} }
	for text, want := range map[string]bool{
		"188 (a) b) S" + strings.Repeat(" 1", 18) + " 10000": true,
		"188 (a) S" + strings.Repeat(" 1", 18) + " 10001":    false,
		"188 (a) S" + strings.Repeat(" 1", 18):               false,
		"188 (a) S" + strings.Repeat(" 1", 18) + " x":        false,
		"": false,
	} {
		r := read{Node: Node{Proc: fstest.MapFS{"188/stat": {Data: []byte(text)}}}}
		if got := r.outlived(rdma.Process{PID: 188, Netns: 78}, since(100*time.Second)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
		if r.outlived(rdma.Process{PID: 188, Netns: 79}, since(100*time.Second)) {
			t.Errorf("%q: of another namespace", text)
		}
	}
}

// TestIndexesThatProgramsShareAreHeldOnce has two programs of a pod that is gone.
func TestIndexesThatProgramsShareAreHeldOnce(t *testing.T) {
	t.Parallel()
	n := node(t, fstest.MapFS{"189/ns/net": link("net:[78]"), "188/ns/net": link("net:[78]"), "189/stat": stat, "188/stat": stat})
	n.Calls = calls.File{Dir: t.TempDir()}
	held := calls.Held{Device: "rxe0", Port: 1, Index: 5, Netns: 78, Since: 200 * time.Second}
	later := held
	later.Index, later.Since = 6, 50*time.Second // the programs began after it
	err := n.Calls.Append(calls.Call{Attachment: conf.Attachment{ContainerID: "c2"}, Pod: "ml/p2", Held: []calls.Held{held, later}})
	if err != nil {
		t.Fatal(err)
	}
	uses, err := n.Read(t.Context())
	if err != nil || len(uses) != 1 || len(uses[0].Processes) != 2 {
		t.Fatalf("%+v, error %v, want one user with two programs", uses, err)
	}
	if diff := cmp.Diff([]calls.Held{held}, uses[0].Held); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestARateNeedsTwoLooksAtTheSameCounters(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	before := Traffic{At: start, Sent: 1000, Received: 500, Unit: "bytes"}
	for name, c := range map[string]struct {
		after          Traffic
		sent, received string
	}{
		"more":              {Traffic{start.Add(2 * time.Second), 1400, 560, "bytes"}, "200 B/s", "30 B/s"},
		"the same":          {Traffic{start.Add(time.Second), 1000, 500, "bytes"}, "0 B/s", "0 B/s"},
		"less sent":         {Traffic{start.Add(time.Second), 999, 600, "bytes"}, "", ""},
		"less received":     {Traffic{start.Add(time.Second), 1001, 499, "bytes"}, "", ""},
		"in another unit":   {Traffic{start.Add(time.Second), 1001, 501, "packets"}, "", ""},
		"not counted":       {Traffic{start.Add(time.Second), 1001, 501, ""}, "", ""},
		"at the same time":  {Traffic{start, 1001, 501, "bytes"}, "", ""},
		"at a time earlier": {Traffic{start.Add(-time.Second), 1001, 501, "bytes"}, "", ""},
	} {
		if sent, received := c.after.Since(before); sent.String() != c.sent || received.String() != c.received {
			t.Errorf("%s: %q and %q, want %q and %q", name, sent, received, c.sent, c.received)
		}
	}
}
