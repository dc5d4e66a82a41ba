// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nldev

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// recording answers as a kernel did that was recorded: a file with a line for
// each message, "device" and "port" in the order in which they came, and "sys".
type recording struct {
	devices, ports [][]byte
	sys            []byte
	failed         map[int]error // instead of the answer about the port of this place
	trips          int
	largest        int
	sent           []nlsock.Request
	closed         int
}

func load(t *testing.T, name string) *recording {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := &recording{failed: map[int]error{}}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		kind, data, _ := strings.Cut(lines.Text(), " ")
		b, err := hex.DecodeString(data)
		if err != nil {
			t.Fatal(err)
		}
		switch kind {
		case "device":
			r.devices = append(r.devices, b)
		case "port":
			r.ports = append(r.ports, b)
		case "sys":
			r.sys = b
		}
	}
	return r
}

func (r *recording) Close() { r.closed++ }

func (r *recording) Dump(_ context.Context, req nlsock.Request) ([][]byte, error) {
	r.trips++
	r.sent = append(r.sent, req)
	return r.devices, nil
}

func (r *recording) Exchange(_ context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	r.trips++
	r.largest = max(r.largest, len(reqs))
	var out []nlsock.Reply
	for _, req := range reqs {
		r.sent = append(r.sent, req)
		switch req.Type {
		case client | cmdSysGet:
			out = append(out, nlsock.Reply{Rows: [][]byte{r.sys}})
		case client | cmdPortGet:
			i := len(r.sent) - 3 // after the dump and the mode
			out = append(out, nlsock.Reply{Rows: [][]byte{r.ports[i]}, Err: r.failed[i]})
		default:
			out = append(out, nlsock.Reply{Rows: [][]byte{{9}}})
		}
	}
	return out, nil
}

func TestRecordedKernelsAreRead(t *testing.T) {
	t.Parallel()
	port := func(index int32, name string) []Port {
		return []Port{{Number: 1, State: Active, NetdevIndex: index, Netdev: name}}
	}
	want := System{Devices: []Device{
		{Index: 0, Name: "rxe0", GUID: "5054:00ff:fe00:0000", Protocol: "roce", Ports: port(2, "r0")},
		{Index: 1, Name: "rxe1", GUID: "5054:00ff:fe00:0001", Protocol: "roce", Ports: port(3, "r1")},
	}}
	for _, name := range []string{"testdata/linux-6.1.txt", "testdata/linux-7.3.txt"} {
		r := load(t, name)
		got, err := New(r).System(t.Context())
		if diff := cmp.Diff(want, got); err != nil || diff != "" || r.trips != 2 {
			t.Errorf("%s: %v in %d round trips (-want +got)\n%s", name, err, r.trips, diff)
		}
	}
}

// The recordings have devices of one port each.
func TestEachPortOfADeviceIsAskedFor(t *testing.T) {
	t.Parallel()
	row := nlsock.AppendNumber(nlsock.AppendNumber(nil, attrDevIndex, 7), attrPortIndex, 2)
	r := &recording{devices: [][]byte{row}, ports: make([][]byte, 2)}
	if _, err := New(r).System(t.Context()); err != nil {
		t.Fatal(err)
	}
	var want []nlsock.Request
	for port := range uint32(2) {
		body := nlsock.AppendNumber(nlsock.AppendNumber(nil, attrDevIndex, 7), attrPortIndex, port+1)
		want = append(want, request(cmdPortGet, body))
	}
	if diff := cmp.Diff(want, r.sent[2:]); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for port := range 2 { // the device goes between two questions
		r := &recording{devices: [][]byte{row, row}, ports: make([][]byte, 4), failed: map[int]error{port: unix.ENODEV}}
		if got, err := New(r).System(t.Context()); err != nil || len(got.Devices) != 1 {
			t.Errorf("gone at the question about port %d: %+v, %v", port+1, got, err)
		}
	}
}

// TestEachRequestNamesItsDevice also says that the socket is closed once.
func TestEachRequestNamesItsDevice(t *testing.T) {
	t.Parallel()
	var r recording
	c, ctx := New(&r), t.Context()
	reply, err := c.Get(ctx, 9, 7, nlsock.AppendNumber(nil, attrPortIndex, 2))
	if err := errors.Join(err, c.SetNetns(ctx, 7, 17), c.Rename(ctx, 7, "rxe9"), c.Each(ctx, 7, QueuePairs, nil), c.Each(ctx, 7, Counters, nil)); err != nil {
		t.Fatal(err)
	}
	number := func(typ uint16, v uint32) []byte { return nlsock.AppendNumber(nil, typ, v) }
	device := number(attrDevIndex, 7)
	want := []nlsock.Request{
		{Type: client | 9, Body: slices.Concat(device, number(attrPortIndex, 2))},
		{Type: client | cmdSet, Flags: unix.NLM_F_ACK, Body: slices.Concat(device, number(attrNetnsFD, 17))},
		{Type: client | cmdSet, Flags: unix.NLM_F_ACK, Body: slices.Concat(device, nlsock.AppendText(nil, attrDevName, "rxe9"))},
		{Type: client | 10, Body: device},
		{Type: client | 17, Body: slices.Concat(device, number(attrStatRes, attrQueuePairs))},
	}
	if diff := cmp.Diff(want, r.sent); diff != "" || len(reply.Rows) != 1 {
		t.Errorf("the reply to the first is %v (-want +got)\n%s", reply, diff)
	}
	if c.Close(); r.closed != 1 {
		t.Errorf("the socket is closed %d times", r.closed)
	}
}

// TestRowsHaveMoreThanIsRead has attributes of kernels to come, and such as end before their values.
func TestRowsHaveMoreThanIsRead(t *testing.T) {
	t.Parallel()
	unknown := attribute(2000, []byte("12345678"))
	row := slices.Concat(nlsock.AppendNumber(nil, attrDevIndex, 7), nlsock.AppendText(nil, attrDevName, "rxe7"), nlsock.AppendText(nil, attrProtocol, "roce"),
		attribute(attrNodeGUID, []byte{8, 7, 6, 5, 4, 3, 2, 1}), nlsock.AppendNumber(nil, attrPortIndex, 2), unknown)
	want := Device{Index: 7, Name: "rxe7", GUID: "0102:0304:0506:0708", Protocol: "roce", Ports: []Port{{Number: 1}, {Number: 2}}}
	if diff := cmp.Diff(want, parseDevice(row)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(Device{}, parseDevice(attribute(attrNodeGUID, []byte{8, 7, 6, 5}))); diff != "" {
		t.Errorf("half a GUID (-want +got)\n%s", diff)
	}
	if got := len(parseDevice(nlsock.AppendNumber(nil, attrPortIndex, maxPorts+1)).Ports); got != maxPorts {
		t.Errorf("got %d ports, want no more than %d", got, maxPorts)
	}
	p := Port{Number: 2}
	p.parse(slices.Concat(attribute(attrState), attribute(attrState, []byte{4}), nlsock.AppendNumber(nil, attrNdevIndex, 3), nlsock.AppendText(nil, attrNdevName, "r1"), unknown))
	if want := (Port{Number: 2, State: Active, NetdevIndex: 3, Netdev: "r1"}); p != want {
		t.Errorf("got %+v, want %+v", p, want)
	}
	got := parseResource(slices.Concat(attribute(attrQPType, []byte{2}), nlsock.AppendNumber(nil, attrPID, 9), nlsock.AppendText(nil, attrModule, "nvme"),
		attribute(attrRegionLength, []byte{0, 16, 0, 0, 0, 0, 0, 0}), unknown))
	if want := (Resource{Type: 2, PID: 9, Module: "nvme", Bytes: 4096}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestExclusiveModeIsRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reply nlsock.Reply
		want  bool
		err   error
	}{
		{nlsock.Reply{Rows: [][]byte{{5, 0, attrNetnsMode, 0, 0, 0, 0, 0}}}, true, nil},
		{nlsock.Reply{Rows: [][]byte{{5, 0, attrNetnsMode, 0, 1, 0, 0, 0}}}, false, nil},
		{nlsock.Reply{Err: unix.EINVAL}, false, nil},     // a kernel without modes
		{nlsock.Reply{Err: unix.EOPNOTSUPP}, false, nil}, // likewise
		{nlsock.Reply{Err: unix.EPERM}, false, unix.EPERM},
		{nlsock.Reply{Rows: [][]byte{{1, 2}}}, false, nil},
		{nlsock.Reply{Rows: [][]byte{slices.Concat(attribute(2000, []byte{1}), attribute(attrNetnsMode), attribute(attrNetnsMode, []byte{0}))}}, true, nil},
		{nlsock.Reply{Rows: [][]byte{attribute(attrNetnsMode, []byte{0})}, Err: unix.EIO}, true, unix.EIO},
	} {
		got, err := exclusive(c.reply)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%+v: got %t, %v", c.reply, got, err)
		}
	}
}

// TestDevicesThatDisappearAreSkipped has a device that goes between the dump and
// the question about its port.
func TestDevicesThatDisappearAreSkipped(t *testing.T) {
	t.Parallel()
	for _, gone := range []error{unix.EINVAL, unix.ENODEV} {
		r := load(t, "testdata/linux-6.1.txt")
		r.failed[0] = gone
		got, err := New(r).System(t.Context())
		if err != nil || len(got.Devices) != 1 || got.Devices[0].Name != "rxe1" || got.Devices[0].Ports[0].Netdev != "r1" {
			t.Errorf("%v: got %+v, %v", gone, got, err)
		}
	}
	r := load(t, "testdata/linux-6.1.txt")
	r.failed[1] = unix.ENOMEM
	if _, err := New(r).System(t.Context()); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("got %v, want ENOMEM", err)
	}
}

// refusing is a socket that fails, or that answers a request with an error.
type refusing struct{ dump, exchange, reply error }

func (refusing) Close() {}

func (r refusing) Dump(context.Context, nlsock.Request) ([][]byte, error) { return nil, r.dump }

func (r refusing) Exchange(context.Context, ...nlsock.Request) ([]nlsock.Reply, error) {
	return []nlsock.Reply{{Err: r.reply}}, r.exchange
}

// A node that does not answer is not one without devices.
func TestWhatTheKernelRefusesIsAnError(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	set := map[string]func(c *Conn) error{
		"move":   func(c *Conn) error { return c.SetNetns(ctx, 0, 9) },
		"rename": func(c *Conn) error { return c.Rename(ctx, 0, "rxe9") },
	}
	system := func(c *Conn) error { _, err := c.System(ctx); return err }
	resources := func(c *Conn) error { _, err := c.Resources(ctx, 0, QueuePairs); return err }
	get := func(c *Conn) error { r, err := c.Get(ctx, cmdPortGet, 0, nil); return errors.Join(err, r.Err) }
	for r, calls := range map[refusing][]func(*Conn) error{
		{dump: unix.EPERM}:     {system, resources},
		{exchange: unix.EPERM}: {system, get, set["move"], set["rename"]},
		{reply: unix.EPERM}:    {system, get, set["move"], set["rename"]},
	} {
		for i, call := range calls {
			if err := call(New(r)); !errors.Is(err, unix.EPERM) {
				t.Errorf("call %d of %+v: %v", i, r, err)
			}
		}
	}
	for name, do := range set {
		for refusal, gone := range map[error]bool{unix.EINVAL: true, unix.ENODEV: true, unix.EEXIST: false, unix.EOPNOTSUPP: false} {
			if err := do(New(refusing{reply: refusal})); !errors.Is(err, refusal) || errors.Is(err, ErrNoDevice) != gone {
				t.Errorf("%s: %v of %v", name, err, refusal)
			}
		}
		if err := do(New(refusing{})); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnswersFitInTheReceiveBuffer(t *testing.T) {
	t.Parallel()
	r := load(t, "testdata/linux-6.1.txt")
	for range 99 {
		r.devices, r.ports = append(r.devices, r.devices[0]), append(r.ports, r.ports[0])
	}
	got, err := New(r).System(t.Context())
	if err != nil || len(got.Devices) != 101 || got.Devices[100].Ports[0].Netdev != "r0" || r.trips != 3 || r.largest != batch {
		t.Errorf("got %d devices, %v, in %d round trips with at most %d requests", len(got.Devices), err, r.trips, r.largest)
	}
}

func TestTruncatedAnswersAreHarmless(t *testing.T) {
	t.Parallel()
	r := load(t, "testdata/linux-7.3.txt")
	for n := range len(r.devices[0]) {
		d := parseDevice(r.devices[0][:n])
		if len(d.Ports) > 1 {
			t.Errorf("first %d bytes: %+v", n, d)
		}
		var p Port
		p.parse(r.ports[0][:min(n, len(r.ports[0]))])
	}
	for _, typ := range []uint16{attrQPType, attrPID, attrModule, attrRegionLength} {
		if got := parseResource(attribute(typ)); got != (Resource{}) {
			t.Errorf("attribute %d without a value: %+v", typ, got)
		}
	}
}

func TestStatesAreSpelledAsRdmaLinkDoes(t *testing.T) {
	t.Parallel()
	got := fmt.Sprint(Down, Init, Armed, Active, ActiveDefer, State(0))
	if want := "DOWN INIT ARMED ACTIVE ACTIVE_DEFER state 0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// FuzzSystem: no answer panics.
func FuzzSystem(f *testing.F) {
	f.Add([]byte{}, []byte{}, []byte{})
	f.Add([]byte{1}, []byte{2, 3}, []byte{4, 5, 6})
	f.Add([]byte{8, 0, attrPortIndex, 0, 1, 0, 0, 0, 4, 0, attrDevName, 0}, []byte{4, 0, attrState, 0}, []byte{4, 0, attrNetnsMode, 0})
	f.Add([]byte{8, 0, attrPortIndex, 0, 255, 255, 255, 255, 8, 0, attrNodeGUID, 0, 1, 2, 3, 4}, []byte{4, 0, attrState, 0}, []byte{})
	f.Fuzz(func(t *testing.T, device, port, sys []byte) {
		r := &recording{devices: [][]byte{device}, sys: sys, ports: make([][]byte, maxPorts)}
		for i := range r.ports {
			r.ports[i] = port
		}
		if _, err := New(r).System(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
