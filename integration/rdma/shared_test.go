// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/cluster/counts"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	tool "github.com/roce-cni/roce-cni/pkg/tool/gids"
)

// places returns where the GIDs of addresses are in a table, each of which must
// be there once.
func places(t *testing.T, in table, addrs []string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, a := range addrs {
		at := in.of(a)
		if len(at) != width() {
			t.Fatalf("the GID of %s is at %v, want it at %d of\n%v", a, at, width(), in)
		}
		out[a] = slices.Max(at)
	}
	return out
}

// takeIndex adds addresses of 10.99.0.0/16 until the entry of one has the index, the lowest
// that no entry has. The kernel may free it a moment after the old entry reads as unused.
func takeIndex(t *testing.T, device string, index int, add func(addr string)) {
	t.Helper()
	for i, taken := 1, false; !taken; i++ {
		addr := fmt.Sprintf("10.99.0.%d", i)
		add(addr)
		cnitest.Await(t, "the GID of "+addr, func() bool {
			at := gids(t, "", device).of(addr)
			taken = len(at) == 1 && at[0] == index
			return len(at) == 1
		})
	}
}

func TestSharedEachOfEightPodsFindsBothItsGIDs(t *testing.T) {
	n := newNode(t, "shared")
	before := gids(t, "", "rxe0")
	var all [8]attachment
	var addrs [8][]string
	for i := range all {
		all[i] = n.attach(dual(n.rail(0), 0), n.pod())
	}
	var wg sync.WaitGroup
	for i, a := range all {
		wg.Go(func() {
			res, err := a.add()
			if err != nil {
				t.Errorf("ADD to %s: %v: %s", a.pod.Name, err, err.Details)
				return
			}
			for _, ip := range res.IPs {
				addrs[i] = append(addrs[i], ip.Address.IP.String())
			}
		})
	}
	wg.Wait()
	now := gids(t, "", "rxe0")
	for i, a := range all {
		if len(addrs[i]) != 2 {
			t.Fatalf("%s has the addresses %q, want one of each family", a.pod.Name, addrs[i])
		}
		if diff := cmp.Diff(places(t, now, addrs[i]), a.indexes()); diff != "" {
			t.Errorf("%s: recorded indexes (-table +record)\n%s", a.pod.Name, diff)
		}
		sees := gids(t, a.pod.Name, "rxe0")
		if diff := cmp.Diff(places(t, sees, addrs[i]), a.indexes()); diff != "" {
			t.Errorf("%s sees its entries elsewhere (-pod +record)\n%s", a.pod.Name, diff)
		}
		if same := cmp.Equal(sees, now); same == hides() {
			t.Errorf("%s sees\n%v\nof the table\n%v\nand the machine hides entries: %v", a.pod.Name, sees, now, hides())
		}
		a.mustCheck()
	}
	for _, a := range all {
		a.mustDel()
	}
	cnitest.Await(t, "the GIDs are gone", func() bool { return cmp.Equal(gids(t, "", "rxe0"), before) })
	n.nothingLeft()
}

func TestSharedPodWithoutIPv6SubnetTakesOneEntryOfTheTable(t *testing.T) {
	n := newNode(t, "shared")
	before := gids(t, "", "rxe0")
	a := n.attach(n.rail(0), n.pod())
	addrs := a.mustAdd()
	after := gids(t, "", "rxe0")
	places(t, after, addrs)
	delete(after, gidOf(addrs[0]))
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("besides the address's own GID (-before +after)\n%s", diff)
	}
	a.mustDel()
}

// fillTable takes every place of the GID table of a rail: a macvlan child with as
// many addresses goes with one command. It is in a namespace, "" for the host's.
func fillTable(t *testing.T, rail int, netns string) {
	t.Helper()
	var script strings.Builder
	fmt.Fprintf(&script, "link set fill up\n")
	for i := range 1024 {
		fmt.Fprintf(&script, "addr add 10.99.%d.%d/32 dev fill\n", i/250, 1+i%250)
	}
	file := t.TempDir() + "/fill"
	if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	at := ""
	if netns != "" {
		at = "-n " + netns
	}
	finally(t, "ip "+at+" link del fill")
	shell(t, fmt.Sprintf("ip link add link r%d name fill type macvlan mode bridge", rail))
	if netns != "" {
		run(t, "ip", "link", "set", "fill", "netns", netns)
	}
	shell(t, "ip "+at+" -batch "+file)
	cnitest.Await(t, "the table is full", func() bool { return gids(t, "", device(rail)).used() == 1024 })
}

// soon returns a value of the key rdma that does not wait long for what will not
// come.
func soon(more map[string]any) map[string]any {
	out := map[string]any{"gidWait": "1s"}
	maps.Copy(out, more)
	return out
}

func TestSharedFullTableIsAnErrorUnlessTheConfigurationSaysWarn(t *testing.T) {
	n := newNode(t, "shared")
	fillTable(t, 0, "")
	p := n.pod()
	contains(t, n.attach(n.rail(0).With("rdma", soon(nil)), p).mustFail(108), "roce[108] ", "rxe0/1 is full", "1024 of 1024", "fill has ", "rocectl gids")
	n.nothingLeft()

	warned := n.attach(n.rail(0).With("rdma", soon(map[string]any{"gid": "warn"})), p)
	warned.mustAdd()
	contains(t, warned.stderr.String(), "level=WARN", "1024 of 1024")
	warned.mustCheck()
	warned.mustDel()

	off := n.attach(n.rail(0).With("rdma", map[string]any{"mode": "off"}), p)
	off.mustAdd()
	for _, op := range off.operations() {
		if op.Kind == "port" || op.Kind == "gid" || op.Kind == "move" {
			t.Errorf("rdma is off, and there is the operation %+v", op)
		}
	}
	off.mustCheck()
	off.mustDel()
	n.nothingLeft()
}

func TestSharedCheckNoticesThatThePortWentDown(t *testing.T) {
	n := newNode(t, "shared")
	a := n.attach(n.rail(0), n.pod())
	a.mustAdd()
	finally(t, "ip link set r0 up")
	run(t, "ip", "link", "set", "r0", "down")
	cnitest.Await(t, "the port is down", func() bool { return strings.Contains(run(t, "rdma", "link"), "rxe0/1 state DOWN") })
	contains(t, a.check(), "rxe0/1", "its state is DOWN, want ACTIVE", "rdma link show rxe0/1")
	run(t, "ip", "link", "set", "r0", "up")
	cnitest.Await(t, "CHECK is content again", func() bool { return a.check() == "" })
	a.mustDel()
}

func TestSharedCheckNamesAnAddressOfTwoPods(t *testing.T) {
	n := newNode(t, "shared")
	a, thief := n.attach(n.rail(0), n.pod()), n.pod()
	addr := a.mustAdd()[0]
	shell(t, fmt.Sprintf(`ip link add link r0 name eth7 netns %[1]s type macvlan mode bridge
		ip -n %[1]s link set eth7 up
		ip -n %[1]s addr add %[2]s/24 dev eth7`, thief.Name, addr))
	cnitest.Await(t, "the table has the address twice", func() bool { return len(gids(t, "", "rxe0").of(addr)) == 2 })
	if hides() { // the thief's entry is shown to the thief alone
		a.mustCheck()
	} else {
		contains(t, a.check(), addr, "2 RoCE v2 entries", "of eth7", "of net1")
	}
	a.mustDel()
}

func TestSharedCheckNamesAnAddressThatTheHostHasToo(t *testing.T) {
	n := newNode(t, "shared")
	a := n.attach(n.rail(0), n.pod())
	addr := a.mustAdd()[0]
	finally(t, "ip addr del "+addr+"/32 dev r0")
	run(t, "ip", "addr", "add", addr+"/32", "dev", "r0")
	cnitest.Await(t, "the table has the address twice", func() bool { return len(gids(t, "", "rxe0").of(addr)) == 2 })
	contains(t, a.check(), addr, "2 RoCE v2 entries", "of r0", "of net1")
	a.mustDel()
}

// TestSharedTableThatOthersFilledIsReportedAsFull has a namespace of
// another owner fill the table.
func TestSharedTableThatOthersFilledIsReportedAsFull(t *testing.T) {
	n := newNode(t, "shared")
	other := n.pod()
	fillTable(t, 0, other.Name)
	text := n.attach(n.rail(0).With("rdma", soon(nil)), n.pod()).mustFail(108)
	if hides() {
		contains(t, text, "may be full", "without them 1 of 1024 entries", `"unable to add gid" with error=-28`)
		contains(t, run(t, "dmesg"), "unable to add gid", "error=-28")
	} else {
		contains(t, text, "rxe0/1 is full", "1024 of 1024", "fill has ", "rocectl gids")
	}
	other.Remove(t)
	cnitest.Await(t, "the table is empty again", func() bool { return gids(t, "", "rxe0").used() < 4 })
	n.nothingLeft()
}

func TestSharedCheckSaysFromWhereToWhereAGIDMoved(t *testing.T) {
	n := newNode(t, "shared")
	a := n.attach(n.rail(0), n.pod())
	addr := a.mustAdd()[0]
	was := a.indexes()[addr]
	run(t, "ip", "-n", a.pod.Name, "addr", "del", addr+"/24", "dev", "net1")
	cnitest.Await(t, "the GID is gone", func() bool { return len(gids(t, "", "rxe0").of(addr)) == 0 })
	finally(t, "ip addr flush dev r0 to 10.99.0.0/16")
	takeIndex(t, "rxe0", was, func(other string) { run(t, "ip", "addr", "add", other+"/32", "dev", "r0") })
	contains(t, a.check(), addr)
	// The address comes back, and with it the GID, but not to its place.
	if out, err := n.tryRocectl("repair", "--yes"); err == nil || !strings.Contains(out, "its index changed") {
		t.Errorf("rocectl repair --yes: %v: %s", err, out)
	}
	is := places(t, gids(t, "", "rxe0"), []string{addr})[addr]
	if is == was {
		t.Fatalf("the GID is at %d again", is)
	}
	contains(t, a.check(), addr, fmt.Sprintf("its index changed from %d to %d", was, is), "rocectl env")
	a.mustDel()
}

// TestSharedIndexOfADeletedPodIsHeldByItsProgram has a program of the pod wait with a queue
// pair when the pod is deleted. For the kernel its index reads as a free one, but the next pod
// gets another one until the program ends.
func TestSharedIndexOfADeletedPodIsHeldByItsProgram(t *testing.T) {
	n := newNode(t, "shared")
	a := n.attach(n.rail(0), n.pod())
	addr := a.mustAdd()[0]
	index := a.indexes()[addr]
	run(t, "ip", "-n", a.pod.Name, "link", "set", "lo", "up")
	var pids []int // the second one is the client, which may end with the address
	var stops []func()
	for _, peer := range []string{"", " 127.0.0.1"} {
		pid, stop := background(t, "ip", strings.Fields(fmt.Sprintf("netns exec %s ibv_rc_pingpong -d rxe0 -g %d -n 1000000000%s", a.pod.Name, index, peer))...)
		cnitest.Await(t, "the server listens", func() bool {
			return strings.Contains(run(t, "ip", "netns", "exec", a.pod.Name, "ss", "-ltn"), ":18515 ") || peer != ""
		})
		pids, stops = append(pids, pid), append(stops, stop)
	}
	server := func(p rdma.Process) bool { return int(p.PID) == pids[0] }
	cnitest.Await(t, "the queue pair is connected", func() bool {
		_, err := try("sh", "-c", fmt.Sprintf("rdma resource show qp | grep 'state RTS.* pid %d '", pids[0])) // those of the kernel are in this state, too
		return err == nil
	})
	if err := unix.Kill(pids[0], unix.SIGSTOP); err != nil { // it would end when its transfer fails
		t.Fatal(err)
	}
	table := func() tool.Table {
		t.Helper()
		var out []tool.Table
		if err := json.Unmarshal([]byte(n.rocectl("gids", "-o", "json")), &out); err != nil {
			t.Fatal(err)
		}
		return out[slices.IndexFunc(out, func(t tool.Table) bool { return t.Device == "rxe0" })]
	}
	if held := table().Held; len(held) > 0 {
		t.Errorf("before DEL there is %+v", held)
	}
	a.mustDel()
	contains(t, a.stderr.String(), "hold its GID indexes", fmt.Sprintf("process %d (ibv_rc_pingpong) uses rxe0/1", pids[0]))
	for _, file := range []string{"gids", "gid_attrs/types", "gid_attrs/ndevs"} {
		read := func(index int) string {
			b, err := os.ReadFile(fmt.Sprintf("/sys/class/infiniband/rxe0/ports/1/%s/%d", file, index))
			return fmt.Sprintf("%s %v", b, errors.Unwrap(err))
		}
		if free, held := read(1000), read(index); free != held {
			t.Errorf("%s: the kernel tells a held index, %q, from a free one, %q", file, held, free)
		}
	}
	is := table()
	if len(is.Held) != 1 || is.Held[0].Index != index || is.Held[0].Pod.Name != a.pod.Name || !slices.ContainsFunc(is.Held[0].Processes, server) {
		t.Errorf("held are %+v, want index %d of %s by process %d", is.Held, index, a.pod.Name, pids[0])
	}
	contains(t, n.rocectl("gids"), fmt.Sprintf("%d of %d entries used, 1 perhaps held, %d free", len(is.Entries), is.Size, is.Size-len(is.Entries)-1),
		fmt.Sprintf("index %d, which ", index), a.pod.Name+" has lost")
	contains(t, n.rocectl("top", "--once"), a.pod.Name+" (gone)")
	h := n.watching(`"counts": "pods"`, "healing")
	cnitest.Await(t, "the healer has counted", func() bool {
		c, err := counts.File{Dir: n.state}.Read()
		return err == nil && slices.ContainsFunc(c.Rows, func(r counts.Row) bool { return r.Kind == "gone" && r.Pod == a.pod.Name && r.HeldGIDs == 1 })
	})
	h.end(unix.SIGTERM)

	next := func() int {
		t.Helper()
		b := n.attach(n.rail(0), n.pod())
		addr := b.mustAdd()[0]
		defer b.mustDel()
		return b.indexes()[addr]
	}
	if got := next(); got == index {
		t.Errorf("the next pod has the index %d too", got)
	}
	for _, stop := range stops {
		stop()
	}
	cnitest.Await(t, "the index is free", func() bool { return len(table().Held) == 0 })
	if got := next(); got != index {
		t.Errorf("after the program has ended the next pod has index %d, want %d", got, index)
	}
	n.nothingLeft()
}
