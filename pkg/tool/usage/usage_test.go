// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package usage

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// kernel answers as Linux 6.1 did that was recorded: two devices, and on the first one two
// programs (188 and 189) with a UC queue pair, a region of 4096 bytes and a context each.
type kernel map[string][][]byte

func recorded(t *testing.T) kernel {
	t.Helper()
	k := kernel{}
	for _, name := range []string{"linux-6.1.txt", "resources-6.1.txt"} {
		f, err := os.Open("../../plugin/rdma/nldev/testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			kind, data, _ := strings.Cut(lines.Text(), " ")
			b, err := hex.DecodeString(data)
			if err != nil {
				t.Fatal(err)
			}
			k[kind] = append(k[kind], b)
		}
	}
	return k
}

func (kernel) Close() {}

func (k kernel) Dump(_ context.Context, req nlsock.Request) ([][]byte, error) {
	for typ, device := range nlsock.Attributes(req.Body) {
		if typ == 1 && nlsock.Number(device) != 0 && k["both"] == nil {
			return nil, nil
		}
	}
	return k[map[uint16]string{1: "device", 10: "qp", 13: "mr", 17: "counter", 22: "ctx"}[req.Type&0x3ff]], nil
}

func (k kernel) Exchange(_ context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	out := []nlsock.Reply{{Rows: k["sys"]}}
	for i := range reqs[1:] {
		out = append(out, nlsock.Reply{Rows: k["port"][i : i+1]})
	}
	return out, nil
}

func link(target string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
}

// node has the host in namespace 1, and a pod on rxe0 in namespace 77.
func node(t *testing.T, proc fstest.MapFS) Node {
	t.Helper()
	proc["self/ns/net"] = link("net:[1]")
	pod := record.Record{
		Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Pod: conf.Pod{Namespace: "ml", Name: "p1"}, NetnsID: netns.ID{Ino: 77},
		Plan: plan.Plan{Ops: plan.OnHost(plan.GID{Device: plan.RDMADevice{Name: "rxe0"}, Targets: []plan.GIDTarget{{Link: "net1", Addr: netip.MustParseAddr("172.16.0.11")}}})},
	}
	return Node{
		Sys: fstest.MapFS{}, Proc: proc, Records: []record.Record{pod},
		Dial: func() (*nldev.Conn, error) { return nldev.New(recorded(t)), nil },
	}
}

func TestObjectsBelongToThePodOfTheirProcess(t *testing.T) {
	t.Parallel()
	one := Use{
		Device: "rxe0", User: User{Kind: Pod, Pod: conf.Pod{Namespace: "ml", Name: "p1"}, ContainerID: "c1"}, Interface: "net1",
		QueuePairs: map[string]int{"UC": 1}, Contexts: 1, Regions: 1, RegionBytes: 4096, Processes: []rdma.Process{{PID: 189, Comm: "a"}},
	}
	of := func(u User, p rdma.Process) Use {
		out := one
		out.User, out.Interface, out.Processes = u, "", []rdma.Process{p}
		return out
	}
	second := one
	second.Processes = []rdma.Process{{PID: 188, Comm: "b"}}
	both := one
	both.QueuePairs, both.Contexts, both.Regions, both.RegionBytes = map[string]int{"UC": 2}, 2, 2, 8192
	both.Processes = []rdma.Process{{PID: 189, Comm: "a"}, {PID: 188, Comm: "b"}}
	for name, c := range map[string]struct {
		proc fstest.MapFS
		want []Use
	}{
		"both of one pod":                 {fstest.MapFS{"189/ns/net": link("net:[77]"), "188/ns/net": link("net:[77]")}, []Use{both}},
		"one of the host":                 {fstest.MapFS{"189/ns/net": link("net:[77]"), "188/ns/net": link("net:[1]")}, []Use{one, of(User{Kind: Host}, rdma.Process{PID: 188, Comm: "b"})}},
		"one of a pod without record":     {fstest.MapFS{"189/ns/net": link("net:[77]"), "188/ns/net": link("net:[78]")}, []Use{one, of(User{Kind: Unknown}, rdma.Process{PID: 188, Comm: "b"})}},
		"two pods":                        {fstest.MapFS{"189/ns/net": link("net:[77]"), "188/ns/net": link("net:[79]")}, []Use{of(User{Kind: Pod, Pod: conf.Pod{Namespace: "ml", Name: "p0"}, ContainerID: "c9"}, rdma.Process{PID: 188, Comm: "b"}), one}},
		"one of the host, first":          {fstest.MapFS{"189/ns/net": link("net:[1]"), "188/ns/net": link("net:[77]")}, []Use{second, of(User{Kind: Host}, rdma.Process{PID: 189, Comm: "a"})}},
		"one that has ended since it was": {fstest.MapFS{"189/ns/net": link("net:[77]")}, []Use{one, of(User{Kind: Unknown}, rdma.Process{PID: 188, Comm: "b"})}},
	} {
		c.proc["189/comm"], c.proc["188/comm"] = &fstest.MapFile{Data: []byte("a\n")}, &fstest.MapFile{Data: []byte("b\n")}
		n := node(t, c.proc)
		n.Records = append(n.Records, record.Record{Attachment: conf.Attachment{ContainerID: "c8"}}, // its namespace is not known
			record.Record{Attachment: conf.Attachment{ContainerID: "c9"}, Pod: conf.Pod{Namespace: "ml", Name: "p0"}, NetnsID: netns.ID{Ino: 79}})
		got, err := n.Read(t.Context())
		if diff := cmp.Diff(c.want, got, cmpopts.IgnoreFields(rdma.Process{}, "Netns")); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
}

func TestAProcessThatHasEndedIsNoneOfAnUnknownHost(t *testing.T) {
	t.Parallel()
	proc := fstest.MapFS{"189/ns/net": link("net:[77]")}
	n := node(t, proc)
	delete(proc, "self/ns/net")
	uses, err := n.Read(t.Context())
	if err != nil || len(uses) != 2 || uses[0].Kind != Pod || uses[1].Kind != Unknown {
		t.Errorf("%+v, error %v, want a pod and a process that is unknown", uses, err)
	}
}

// stat is that of a process that began 100 seconds after boot (proc_pid_stat(5)).
var stat = &fstest.MapFile{Data: []byte("188 (a) b) S" + strings.Repeat(" 1", 18) + " 10000 1 1\n")}

// The DEL of c2 has found a program. Its index 5 has an entry again on port 1, its index 6 reads as free,
// and so does index 7, which p1 has lost. The driver hides the entry at 10, which c5 has, and
// that at 7 of port 2. A pod
// that is gone too had index 11 after c2. c0 and c3 had namespaces of these numbers before, and
// so had c6, before the program began, and c7, before the node was rebooted.
func TestIndexesOfADeletedPodAreThoseOfItsPrograms(t *testing.T) {
	t.Parallel()
	n := node(t, fstest.MapFS{"189/ns/net": link("net:[77]"), "188/ns/net": link("net:[78]"), "189/stat": stat, "188/stat": stat})
	n.BootID = "b"
	hidden, other2 := 10, 7
	n.Records = append(n.Records, record.Record{Attachment: conf.Attachment{ContainerID: "c5"}, Plan: plan.Plan{Ops: plan.OnHost(
		plan.GID{Device: plan.RDMADevice{Name: "rxe0", Port: 1}, Targets: []plan.GIDTarget{{Link: "net1", Index: &hidden}}},
		plan.GID{Device: plan.RDMADevice{Name: "rxe0", Port: 2}, Targets: []plan.GIDTarget{{Link: "net1", Index: &other2}}})}})
	n.Sys = fstest.MapFS{"class/infiniband/rxe0/ports/1/gid_attrs/types/5": {Data: []byte("RoCE v2\n")}}
	n.Calls = calls.File{Dir: t.TempDir()}
	at := func(index int, ino uint64) calls.Held {
		return calls.Held{Device: "rxe0", Port: 1, Index: index, Netns: ino, BootID: "b", Since: 200 * time.Second}
	}
	other, again, early, rebooted, second := at(9, 78), at(6, 78), at(12, 78), at(13, 78), at(5, 78)
	second.Port = 2
	other.Device, again.Since, early.Since, rebooted.BootID = "rxe1", 210*time.Second, 50*time.Second, "a"
	for _, c := range []calls.Call{
		{Attachment: conf.Attachment{ContainerID: "c7"}, Pod: "ml/p7", Held: []calls.Held{rebooted}},
		{Attachment: conf.Attachment{ContainerID: "c0"}, Pod: "ml/old", Held: []calls.Held{at(4, 78)}}, // had this namespace before
		{Attachment: conf.Attachment{ContainerID: "c2"}, Pod: "ml/p2", Held: []calls.Held{at(5, 78), at(6, 78), at(10, 78), at(11, 78), other, second}},
		{Attachment: conf.Attachment{ContainerID: "c2"}, Pod: "ml/p2", Held: []calls.Held{again}}, // the first DEL has failed
		{Attachment: conf.Attachment{ContainerID: "c1"}, Pod: "ml/p1", Held: []calls.Held{at(7, 77)}},
		{Attachment: conf.Attachment{ContainerID: "c3"}, Pod: "ml/p3", Held: []calls.Held{at(8, 77)}},
		{Attachment: conf.Attachment{ContainerID: "c4"}, Pod: "ml/p4", Held: []calls.Held{at(11, 79)}},
		{Attachment: conf.Attachment{ContainerID: "c6"}, Pod: "ml/p6", Held: []calls.Held{early}},
		{Attachment: conf.Attachment{ContainerID: "c9"}, Pod: "ml/p9"},
	} {
		if err := n.Calls.Append(c); err != nil {
			t.Fatal(err)
		}
	}
	uses, err := n.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range uses {
		got = append(got, fmt.Sprintf("%s %s %v", u.Kind, u.User, u.Held))
	}
	if diff := cmp.Diff([]string{"pod ml/p1 [{rxe0 1 7 77 b 3m20s}]", "gone ml/p2 (gone) [{rxe0 1 6 78 b 3m30s} {rxe0 2 5 78 b 3m20s}]"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if row := rows(uses)[1]; row.Kind != "gone" || row.Pod != "p2" || row.HeldGIDs != 2 {
		t.Errorf("the row is %+v", row)
	}
}

// The rdma controller counts for a pod: in its slice, of which its containers are parts, or for
// a pod without UID in the groups of its processes. It is off in the last case.
func TestChargeIsThatOfTheControlGroupsOfThePod(t *testing.T) {
	t.Parallel()
	const uid = "0a1b2c3d-1111-2222-3333-444455556666"
	const slice = "kubepods.slice/kubepods-pod0a1b2c3d_1111_2222_3333_444455556666.slice"
	current := func(handles int) *fstest.MapFile {
		return &fstest.MapFile{Data: fmt.Appendf(nil, "rxe1 hca_handle=9 hca_object=9\nrxe0 hca_handle=%d hca_object=%d\n", handles, 10*handles)}
	}
	for name, c := range map[string]struct {
		uid    string
		groups [2]string
		sys    fstest.MapFS
		want   *Charge
	}{
		"the slice of the pod":    {uid, [2]string{"0::/" + slice + "/a.scope\n", "0::/" + slice + "/b.scope/inner\n"}, fstest.MapFS{slice + "/rdma.current": current(3), slice + "/a.scope/rdma.current": current(1)}, &Charge{3, 30}},
		"cgroupfs":                {uid, [2]string{"4:rdma:/x\n0::/kubepods/pod" + uid + "/a\n", "0::/kubepods/pod" + uid + "/b\n"}, fstest.MapFS{"kubepods/pod" + uid + "/rdma.current": current(2)}, &Charge{2, 20}},
		"a container has the UID": {uid, [2]string{"0::/" + slice + "/app-" + uid + ".scope\n", ""}, fstest.MapFS{slice + "/rdma.current": current(3), slice + "/app-" + uid + ".scope/rdma.current": current(1)}, &Charge{3, 30}},
		"a pod without UID":       {"", [2]string{"0::/k/a\n", "0::/k/b\n"}, fstest.MapFS{"k/a/rdma.current": current(1), "k/b/rdma.current": current(1), "k/rdma.current": current(9)}, &Charge{2, 20}},
		"programs of no pod":      {"", [2]string{"0::/a\n", "0::/b\n"}, fstest.MapFS{"a/rdma.current": current(1)}, nil},
		"the group of all":        {"", [2]string{"0::/\n", "0::/\n"}, fstest.MapFS{}, nil},
		"the controller is off":   {uid, [2]string{"0::/" + slice + "/a.scope\n", ""}, fstest.MapFS{"kubepods.slice/rdma.current": current(1)}, nil},
		"another device alone":    {"", [2]string{"0::/a\n", ""}, fstest.MapFS{"a/rdma.current": {Data: []byte("rxe1 hca_handle=9 hca_object=9\n")}}, nil},
		"a line that is not read": {"", [2]string{"0::/a\n", ""}, fstest.MapFS{"a/rdma.current": {Data: []byte("rxe0 hca_handle=max\n")}}, nil},
	} {
		n := node(t, fstest.MapFS{
			"189/ns/net": link("net:[77]"), "188/ns/net": link("net:[77]"), "189/cgroup": {Data: []byte(c.groups[0])}, "188/cgroup": {Data: []byte(c.groups[1])},
		})
		n.Records[0].Pod.UID = c.uid
		if name == "programs of no pod" {
			n.Records = nil
		}
		sys := fstest.MapFS{}
		for name, file := range c.sys {
			sys["fs/cgroup/"+name] = file
		}
		n.Sys = sys
		uses, err := n.Read(t.Context())
		if err != nil || len(uses) != 1 {
			t.Fatalf("%s: %+v, error %v", name, uses, err)
		}
		if diff := cmp.Diff(c.want, uses[0].Charged); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

func TestUsesAreReadWithoutTheCallsThatCannotBe(t *testing.T) {
	t.Parallel()
	n := node(t, fstest.MapFS{"189/ns/net": link("net:[77]"), "188/ns/net": link("net:[78]")})
	n.Calls = calls.File{Dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(n.Calls.Dir, "calls"), 0o700); err != nil {
		t.Fatal(err)
	}
	uses, err := n.Read(t.Context())
	if len(uses) != 2 || err == nil || !strings.Contains(err.Error(), n.Calls.Dir) {
		t.Errorf("got %d uses and %v, want 2 and an error that names the file", len(uses), err)
	}
	k := recorded(t)
	delete(k, "qp")
	delete(k, "mr")
	delete(k, "ctx")
	n.Dial = func() (*nldev.Conn, error) { return nldev.New(k), nil }
	if uses, err := n.Read(t.Context()); uses == nil || len(uses) > 0 || err == nil {
		t.Errorf("got %#v and %v, want no user, which is not nil, and that error", uses, err)
	}
}

// A pod has as much on a second device.
func TestEachDeviceOfAPodIsAUseOfItsOwn(t *testing.T) {
	t.Parallel()
	n := node(t, fstest.MapFS{"189/ns/net": link("net:[77]"), "188/ns/net": link("net:[77]")})
	second := n.Records[0] // the pod has another interface on it
	second.IfName, second.Plan.Ops = "net2", plan.OnHost(plan.GID{Device: plan.RDMADevice{Name: "rxe1"}, Targets: []plan.GIDTarget{{Link: "net2"}}})
	n.Records = append(n.Records, second)
	k := recorded(t)
	k["both"] = [][]byte{}
	n.Dial = func() (*nldev.Conn, error) { return nldev.New(k), nil }
	uses, err := n.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range uses {
		got = append(got, fmt.Sprintf("%s %s %s %d %d", u.Device, u.User, u.Interface, u.Total(), len(u.Processes)))
	}
	if diff := cmp.Diff([]string{"rxe0 ml/p1 net1 2 2", "rxe1 ml/p1 net2 2 2"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for i, row := range k["device"] { // in the order of their numbers
		k["device"][i] = bytes.ReplaceAll(bytes.ReplaceAll(row, []byte("rxe0"), []byte("x10\x00")), []byte("rxe1"), []byte("x2\x00\x00"))
	}
	if uses, err := n.Read(t.Context()); err != nil || len(uses) != 2 || uses[0].Device != "x2" || uses[1].Device != "x10" {
		t.Errorf("got %+v, error %v", uses, err)
	}
	if n := (Use{QueuePairs: map[string]int{"RC": 2, "UD": 1}}).Total(); n != 3 {
		t.Errorf("%d queue pairs of two types, want 3", n)
	}
}

// The recorded namespace is gone, and its path may be that of another one, such as the host's.
func TestNamespaceThatIsGoneIsNotRead(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/proc/self/ns/net", filepath.Join(t.TempDir(), "none")} {
		n := node(t, fstest.MapFS{})
		n.Records[0].Netns = path
		n.Records[0].Plan.Ops = plan.OnHost(plan.Move{Device: plan.RDMADevice{Name: "rxe0"}})
		dial, dials := n.Dial, 0
		n.Dial = func() (*nldev.Conn, error) { dials++; return dial() }
		if uses, err := n.Read(t.Context()); err != nil || len(uses) == 0 || dials != 1 {
			t.Errorf("%s: %d namespaces are read, %d uses, error %v, want those of the host alone", path, dials, len(uses), err)
		}
	}
}

// counted is a sysfs in which rxe0 has counted packets, and mlx5_0 words of four bytes on two
// ports.
func counted(packets, words string) fstest.MapFS {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s + "\n")} }
	out := fstest.MapFS{}
	for path, value := range map[string]string{
		"rxe0/ports/1/hw_counters/sent_pkts": packets, "rxe0/ports/1/hw_counters/rcvd_pkts": "7",
		"mlx5_0/ports/1/counters/port_xmit_data": words, "mlx5_0/ports/1/counters/port_rcv_data": "7",
		"mlx5_0/ports/2/counters/port_xmit_data": "7", "mlx5_0/ports/2/counters/port_rcv_data": words,
		"rxe0/ports/1/hw_counters/sent_bytes": "1", "mlx5_0/ports/2/hw_counters/rcvd_bytes": "1", // a pair counts
		"mlx5_0/ports/1/hw_counters/tx_bytes": "1", "mlx5_0/ports/1/hw_counters/rx_bytes": "1", "mlx5_0/ports/3/state": "1: DOWN",
		"mlx5_0/ports/1/hw_counters/sent_pkts": "1", "silent/ports/1/state": "4: ACTIVE",
	} {
		out["class/infiniband/"+path] = file(value)
	}
	return out
}

func TestRatesAreThoseOfTheOnlyUserOfADevice(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	before := Node{Sys: counted("100", "1000")}.Traffic(start)
	after := Node{Sys: counted("3100", "251000")}.Traffic(start.Add(2 * time.Second))
	use := func(device, module string, qps int) Use {
		return Use{Device: device, User: User{Kind: Kernel, Module: module}, QueuePairs: map[string]int{"RC": qps}}
	}
	uses := []Use{use("rxe0", "a", 2), use("rxe0", "b", 0), use("mlx5_0", "a", 1), use("silent", "a", 1)}
	AddRates(uses, before, after)
	for _, port := range []uint32{1, 2} {
		t1, sum := after[Source{Device: "mlx5_0", Port: port}], after[Source{Device: "mlx5_0"}]
		if want := [][2]uint64{{1004000, 28}, {28, 1004000}}[port-1]; t1.Sent != want[0] || t1.Received != want[1] || sum.Sent != 1004028 || sum.Received != 1004028 {
			t.Errorf("port %d has %+v, its device %+v, want %v", port, t1, sum, want)
		}
	}
	var got []string
	for _, u := range uses {
		got = append(got, u.Sent.String(), u.Received.String())
	}
	want := []string{"1.5 kpackets/s", "0 packets/s", "", "", "500 kB/s", "500 kB/s", "", ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	bound := func(sent uint64, at time.Time) []Use {
		uses := []Use{use("rxe0", "a", 2), use("rxe0", "b", 1), use("rxe0", "c", 1)}
		uses[1].Counted = &Traffic{At: at, Sent: sent, Received: 2 * sent, Unit: "bytes"}
		uses[2].Counted = &Traffic{At: at, Sent: sent + 7, Received: 3 * sent, Unit: "bytes"}
		return uses
	}
	AddRates(bound(1000, start), nil, before)
	two := bound(9000, start.Add(2*time.Second))
	AddRates(two, before, after)
	if a, b := two[0], two[1]; a.Sent != nil || b.Sent == nil || b.Sent.String() != "4 kB/s" || b.Received.String() != "8 kB/s" {
		t.Errorf("the user with counters of its own has %v, %v; the other one %v", b.Sent, b.Received, a.Sent)
	}
	if c := two[2]; c.Sent.String() != "4 kB/s" || c.Received.String() != "12 kB/s" {
		t.Errorf("the second user with counters of its own has %v, %v", c.Sent, c.Received)
	}

	shared := []Use{use("rxe0", "a", 2), use("rxe0", "b", 1)}
	again := []Use{use("rxe0", "a", 2)}
	AddRates(shared, before, after)
	AddRates(again, after, before) // the device was made again: it counts from zero
	for _, u := range append(shared, again...) {
		if u.Sent != nil || u.Received != nil {
			t.Errorf("%s has rates: %v, %v", u.Module, u.Sent, u.Received)
		}
	}
}

func TestAUserIsCalledByWhatIsKnownOfIt(t *testing.T) {
	t.Parallel()
	pod := conf.Pod{Namespace: "ml", Name: "p1"}
	for want, u := range map[string]User{
		"ml/p1": {Kind: Pod, Pod: pod, ContainerID: "c1"}, "c1": {Kind: Pod, ContainerID: "c1"},
		"ml/p1 (gone)": {Kind: Gone, Pod: pod, ContainerID: "c1"}, "c1 (gone)": {Kind: Gone, ContainerID: "c1"},
		"the kernel's nvme_rdma": {Kind: Kernel, Module: "nvme_rdma"}, "?": {Kind: Unknown}, "host": {Kind: Host},
	} {
		if got := u.String(); got != want {
			t.Errorf("%+v: got %q, want %q", u, got, want)
		}
	}
}

func TestRatesForPeople(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]Rate{
		"0 B/s": {0, "bytes"}, "999 B/s": {999, "bytes"}, "1 kB/s": {1000, "bytes"}, "1.25 GB/s": {1.25e9, "bytes"}, "50 GB/s": {50e9, "bytes"}, "2.5 Mpackets/s": {2.5e6, "packets"},
	} {
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCountersOfAProgramAreRead(t *testing.T) {
	t.Parallel()
	other := counter(0, "out_of_buffer", 3)[4:]
	short := attribute(81, attribute(attrValueName, []byte("short\x00")), attribute(attrValue, []byte{1, 2, 3, 4}))
	name := attribute(81, attribute(attrValueName, []byte("a long name\x00")))
	pid, values := parseCounter(counter(188, "rdma_tx_bytes", 1<<40, other, short, name))
	want := map[string]uint64{"rdma_tx_bytes": 1 << 40, "out_of_buffer": 3, "short": 0, "a long name": 0}
	if diff := cmp.Diff(want, values); pid != 188 || diff != "" {
		t.Errorf("PID %d (-want +got)\n%s", pid, diff)
	}
	if pid, values := parseCounter(counter(0, "rdma_tx_bytes", 5)); pid != 0 || values["rdma_tx_bytes"] != 5 {
		t.Errorf("bound by hand: PID %d, %v", pid, values)
	}
}
