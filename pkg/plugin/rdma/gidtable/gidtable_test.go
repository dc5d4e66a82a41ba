// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gidtable

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
)

const dir = "class/infiniband/mlx5_0/ports/2/"

// rows returns sysfs with a table: "GID type netdev" for each index, where the type is "1" or "2",
// and "" for an unused one.
func rows(entries ...string) fstest.MapFS {
	sys := fstest.MapFS{}
	for i, e := range entries {
		put := func(name, text string) {
			sys[dir+name+"/"+strconv.Itoa(i)] = &fstest.MapFile{Data: []byte(text + "\n")}
		}
		if e == "" {
			put("gids", "0000:0000:0000:0000:0000:0000:0000:0000")
			continue
		}
		words := strings.Split(e, " ")
		a := netip.MustParseAddr(words[0])
		put("gids", netip.AddrFrom16(a.As16()).StringExpanded())
		put("gid_attrs/types", map[string]string{"1": RoCEv1, "2": RoCEv2}[words[1]])
		if len(words) > 2 {
			put("gid_attrs/ndevs", words[2])
		}
	}
	return sys
}

func entry(index int, gid, typ, netdev string) Entry {
	return Entry{Index: index, GID: netip.MustParseAddr(gid), Type: typ, Netdev: netdev}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func values() cmp.Option { return cmpopts.EquateComparable(netip.Addr{}) }

// opened counts what is open.
type opened struct {
	fs.FS
	n *int
}

func (o opened) Open(name string) (fs.File, error) {
	f, err := o.FS.Open(name)
	if err != nil {
		return nil, err
	}
	*o.n++
	return closing{f, o.n}, nil
}

type closing struct {
	fs.File
	n *int
}

func (c closing) Close() error { *c.n--; return c.File.Close() }

func TestEntriesAreWhatTheFilesOfAPortSay(t *testing.T) {
	t.Parallel()
	memory := rows("fe80::1 1 net1", "fe80::1 2 net1", "", "172.16.0.11 2", "172.16.0.12 2 net2")
	want := []Entry{
		entry(0, "fe80::1", RoCEv1, "net1"), entry(1, "fe80::1", RoCEv2, "net1"), entry(3, "172.16.0.11", RoCEv2, ""), entry(4, "172.16.0.12", RoCEv2, "net2"),
	}
	files := t.TempDir()
	if err := os.CopyFS(files, memory); err != nil {
		t.Fatal(err)
	}
	open := 0
	for _, sys := range []fs.FS{opened{memory, &open}, os.DirFS(files)} {
		table := New(sys, "mlx5_0", 2)
		got, size, err := table.Entries()
		if diff := cmp.Diff(want, got, values()); diff != "" || size != 5 || err != nil {
			t.Errorf("%d, %v (-want +got)\n%s", size, err, diff)
		}
		for limit, part := range map[int]int{1: 1, 3: 2, 4: 3, 5: 4, 9: 4} {
			got, size, err := table.Before(limit)
			if diff := cmp.Diff(want[:part], got, values()); diff != "" || size != min(limit, 5) || err != nil {
				t.Errorf("before %d: %d, %v (-want +got)\n%s", limit, size, err, diff)
			}
		}
		for _, none := range []Table{New(sys, "mlx5_1", 2), New(sys, "mlx5_0", 1)} {
			if _, _, err := none.Entries(); !errors.Is(err, ErrNone) {
				t.Errorf("got %v, want %v", err, ErrNone)
			}
		}
	}
	bad := files + "/" + dir + "gids/3"
	loop := files + "/class/infiniband/mlx5_3/ports"
	if err := errors.Join(os.Remove(bad), os.Mkdir(bad, 0o700), os.MkdirAll(loop, 0o700), os.Symlink("1", loop+"/1")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := New(os.DirFS(files), "mlx5_0", 2).Entries(); !errors.Is(err, unix.EISDIR) || !strings.HasPrefix(err.Error(), "index 3: read "+bad) {
		t.Errorf("a file cannot be read: got %v", err)
	}
	if _, _, err := New(os.DirFS(files), "mlx5_3", 1).Entries(); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a folder cannot be opened: got %v", err)
	}
	memory[dir+"gids/4"].Data = []byte("?\n")
	if _, _, err := New(opened{memory, &open}, "mlx5_0", 2).Entries(); err == nil || errors.Is(err, ErrNone) || !strings.HasPrefix(err.Error(), "index 4: ") {
		t.Errorf("got %v, want the index", err)
	}
	delete(memory, dir+"gids/0")
	if _, _, err := New(opened{memory, &open}, "mlx5_0", 2).Entries(); !errors.Is(err, ErrNone) || open != 0 {
		t.Errorf("a table without a first index: %v; %d files are open", err, open)
	}
	for full, c := range map[bool][][]string{
		true:  {{"fe80::1 2 net1"}, {"fe80::1 2 net1", ""}, {""}},
		false: {{"", ""}, {"fe80::1 2 net1", "", "fe80::2 2 net1", ""}},
	} {
		for _, entries := range c {
			if got, err := New(rows(entries...), "mlx5_0", 2).Full(); got != full || err != nil {
				t.Errorf("%q is full: %t, %v", entries, got, err)
			}
		}
	}
	if _, err := New(memory, "mlx5_0", 2).Full(); !errors.Is(err, ErrNone) {
		t.Errorf("got %v, want %v", err, ErrNone)
	}
}

func TestTwoViewsAreMerged(t *testing.T) {
	t.Parallel()
	a, b, c := entry(0, "fe80::1", RoCEv2, "net1"), entry(2, "fe80::2", RoCEv2, "net2"), entry(4, "fe80::3", RoCEv2, "net3")
	removed := entry(2, "fe80::2", "", "")
	for name, tt := range map[string]struct {
		a, b, want []Entry
		differ     bool
	}{
		"the same":          {[]Entry{a, b}, []Entry{a, b}, []Entry{a, b}, false},
		"one is hidden":     {[]Entry{a, b}, []Entry{a}, []Entry{a, b}, true},
		"the other is":      {[]Entry{a}, []Entry{a, b}, []Entry{a, b}, true},
		"each hides one":    {[]Entry{b}, []Entry{a, c}, []Entry{a, b, c}, true},
		"it is being added": {[]Entry{a, removed}, []Entry{a, b}, []Entry{a, b}, false},
		"it is going":       {[]Entry{a, b}, []Entry{a, removed}, []Entry{a, b}, false},
		"none":              {nil, nil, nil, false},
	} {
		got, differ := Merge(tt.a, tt.b)
		if diff := cmp.Diff(tt.want, got, values()); diff != "" || differ != tt.differ {
			t.Errorf("%s: differ %t (-want +got)\n%s", name, differ, diff)
		}
	}
}

func TestWhatEntriesAreFor(t *testing.T) {
	t.Parallel()
	v1, v2 := entry(0, "172.16.0.11", RoCEv1, "net1"), entry(1, "172.16.0.11", RoCEv2, "net1")
	all := []Entry{v1, v2, entry(2, "172.16.0.12", RoCEv2, "net1"), entry(3, "172.16.0.11", RoCEv2, ""), entry(4, "172.16.0.11", RoCEv2, "net9")}
	if diff := cmp.Diff([]Entry{v2, all[4]}, Of(all, v2.GID), values()); diff != "" || len(all) != 5 || all[0] != v1 {
		t.Errorf("of %s (-want +got)\n%s", v2.GID, diff)
	}
	for width, entries := range map[int][][]Entry{1: {{v2}, {v2, all[2]}}, 2: {nil, {v1}, {v2, v1}}} {
		for _, e := range entries {
			if got := Width(e); got != width {
				t.Errorf("%v: width %d, want %d", e, got, width)
			}
		}
	}
	if got, want := Room(13, 2), "room for 6 more pods with one IPv4 address, or for 2 with an IPv6 address too"; got != want {
		t.Errorf("got %s", got)
	}
	owners := map[netip.Addr]string{addr("172.16.0.11"): "pod a"}
	each := func(netdevs ...string) (out []Entry) {
		for i, name := range netdevs {
			out = append(out, entry(i, "fe80::1", RoCEv2, name))
		}
		return out
	}
	for want, entries := range map[string][]Entry{
		"0 of 16 entries are used, 0 by IPv4 addresses":                                             nil,
		"5 of 16 entries are used, 5 by IPv4 addresses: pod a has 4, net1 has 1":                    all,
		"2 of 16 entries are used, 0 by IPv4 addresses: net1 has 1, no interface has 1":             each("", "net1"),
		"3 of 16 entries are used, 1 by IPv4 addresses: net1 has 1, net2 has 1, pod a has 1":        append(each("net2", "net1"), v2),
		"6 of 16 entries are used, 0 by IPv4 addresses: d has 2, a has 1, b has 1, 2 others have 2": each("d", "d", "a", "b", "c", "e"),
	} {
		if got := Fill(entries, 16, owners); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	one, four, nine := 1, 4, 9
	for _, c := range []struct {
		name string
		was  *int
		want string
	}{
		{"net1", nil, "[0 1 2]"}, {"net1", &one, "[1]"}, {"net1", &nine, "[0 1 2]"}, {"net1", &four, "[0 1 2]"}, {"net9", nil, "[4]"}, {"other", &one, "[1]"}, {"other", nil, "[0 1 2 3 4]"}, {"other", &nine, "[0 1 2 3 4]"},
	} {
		var got []int
		for _, e := range Own(all, c.name, c.was) {
			got = append(got, e.Index)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: the entries that may be its own are %v, want %s", c.name, got, c.want)
		}
	}
}

// TestALookNotesWhereAddressesWereAlready also says where it ends.
func TestALookNotesWhereAddressesWereAlready(t *testing.T) {
	t.Parallel()
	ours, other := "172.16.0.11", "172.16.0.12"
	free := func(n int) []string { return make([]string, n) }
	table := func(parts ...[]string) Table {
		var all []string
		for _, p := range parts {
			all = append(all, p...)
		}
		return New(rows(all...), "mlx5_0", 2)
	}
	first := []string{"fe80::1 2 eth0"}
	for name, c := range map[string]struct {
		table  Table
		from   int
		others []int
		read   int // 0: the whole table
	}{
		"none":                         {table(first, free(3)), 0, nil, 0},
		"two":                          {table(first, []string{ours + " 2 net1", other + " 2 net1", ours + " 1 net1"}), 0, []int{1, 3}, 0},
		"one before a run":             {table(first, free(UnusedRun-1), []string{ours + " 2 net1"}, free(UnusedRun+9)), 0, []int{UnusedRun}, 2*UnusedRun + 1},
		"one behind a run":             {table(first, free(UnusedRun), []string{ours + " 2 net1"}), 0, nil, UnusedRun + 1},
		"one behind a run, and asked":  {table(first, free(UnusedRun), []string{ours + " 2 net1"}), 2, []int{UnusedRun + 1}, 0},
		"one behind a run, and hidden": {table([]string{""}, free(UnusedRun), []string{ours + " 2 net1"}), 0, []int{UnusedRun + 1}, 0},
	} {
		got, err := c.table.Look([]netip.Addr{addr(ours)}, c.from)
		if err != nil || !cmp.Equal(got.Others(addr(ours)), c.others) || got.Others(addr(other)) != nil {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, c.others)
		}
		of := Interface{Name: "net1", Before: got}
		for _, index := range []int{c.read - 1, c.read} {
			if behind := c.read > 0 && index == c.read; index >= 0 && of.behind(index) != behind {
				t.Errorf("%s: the index %d is behind what was read: %t", name, index, !behind)
			}
		}
	}
	before, err := table(first, []string{ours + " 2 net1", other + " 2 net1"}).Look([]netip.Addr{addr(ours), addr(other)}, 0)
	again, err2 := table(first, []string{"", other + " 2 net1", "", ours + " 2 net1"}).Again(before, []netip.Addr{addr(ours)}, 0)
	if !cmp.Equal(again.Others(addr(ours)), []int{4}) || !cmp.Equal(again.Others(addr(other)), []int{2}) || errors.Join(err, err2) != nil {
		t.Errorf("got %v, %v", again, errors.Join(err, err2))
	}
	if _, err := New(fstest.MapFS{}, "mlx5_0", 2).Look(nil, 0); !errors.Is(err, ErrNone) {
		t.Errorf("got %v, want %v", err, ErrNone)
	}
	if _, err := New(fstest.MapFS{}, "mlx5_0", 2).Again(before, nil, 0); !errors.Is(err, ErrNone) {
		t.Errorf("got %v, want %v", err, ErrNone)
	}
	again.Own(4)
	if len(again.Others(addr(ours))) != 0 {
		t.Errorf("its own entry is that of another: %v", again)
	}
	of := Interface{Name: "net1", Before: again}
	for e, want := range map[Entry]bool{
		entry(4, ours, RoCEv2, "net1"): true, entry(4, ours, RoCEv2, "net2"): false, entry(2, other, RoCEv2, "net1"): false, entry(3, other, RoCEv2, "net1"): true,
	} {
		if of.Has(e) != want || of.Had(e) != (e.Index == 2) {
			t.Errorf("%v: has %t, had %t", e, of.Has(e), of.Had(e))
		}
	}
}

// TestNoMoreIsReadThanDecides counts the files of GIDs that are opened.
func TestNoMoreIsReadThanDecides(t *testing.T) {
	t.Parallel()
	const a, b = "172.16.0.11", "172.16.0.12"
	long := append([]string{"fe80::1 2 eth0", a + " 2 net1", b + " 2 net1"}, make([]string, 3*UnusedRun)...)
	look := func(all []string) Before {
		out, err := New(rows(all...), "mlx5_0", 2).Look([]netip.Addr{addr(a), addr(b)}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	some, short := []netip.Addr{addr(a)}, append([]string{"fe80::1 2 eth0"}, make([]string, 2*UnusedRun)...)
	for name, c := range map[string]struct {
		entries []string
		of      Interface
		want    []netip.Addr
		gone    []netip.Addr
		reads   int
		says    string
	}{
		"up to the last one":        {long, Interface{Name: "net1", Alone: true}, some, nil, 2, "map[172.16.0.11:1] true"},
		"none is looked for":        {long, Interface{Name: "net1", Alone: true}, nil, nil, 3 + UnusedRun, "map[] true"},
		"an old one ends it":        {long, Interface{Name: "net1", Alone: true}, nil, some, 2, "map[] false"},
		"an old one before the new": {long, Interface{Name: "net1", Alone: true}, []netip.Addr{addr(b)}, some, 2, "map[] false"},
		"nothing is known":          {long, Interface{Name: "net1"}, some, nil, len(long) + 1, "map[172.16.0.11:1] true"},
		"what was not read":         {append(slices.Clone(short), a+" 2 net1"), Interface{Name: "net1", Before: look(short)}, some, nil, UnusedRun + 1, "map[] false"},
	} {
		reads := 0
		sys := reading{rows(c.entries...), &reads}
		found, settled, err := New(sys, "mlx5_0", 2).Settled(c.of, c.want, c.gone)
		if says := fmt.Sprint(found, settled); says != c.says || err != nil || reads != c.reads {
			t.Errorf("%s: got %s, %v in %d reads, want %s in %d", name, says, err, reads, c.says, c.reads)
		}
	}
	reads := 0
	if full, err := New(reading{rows("", "", ""), &reads}, "mlx5_0", 2).Full(); full || err != nil || reads != 2 {
		t.Errorf("full %t, %v in %d reads", full, err, reads)
	}
	// An entry behind what was read counts as there before, once and for its own address.
	before := look(short)
	for range 2 {
		before.see(UnusedRun+1, addr(a))
		before.see(UnusedRun-1, addr(b))
	}
	before.see(UnusedRun+8, netip.Addr{})
	if diff := cmp.Diff(map[netip.Addr][]int{addr(a): {UnusedRun + 1}}, before.others, values()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	Before{}.see(3, addr(a)) // knows nothing
	if of := (Interface{Name: "net1", Before: before}); of.Has(entry(UnusedRun+3, a, RoCEv2, "net1")) || !of.Has(entry(UnusedRun, a, RoCEv2, "net1")) {
		t.Error("an entry is new behind what was read, or old before it")
	}
}

// reading counts the files of GIDs that are opened.
type reading struct {
	fs.FS
	n *int
}

func (r reading) Open(name string) (fs.File, error) {
	if strings.HasPrefix(name, dir+"gids/") {
		*r.n++
	}
	return r.FS.Open(name)
}

func TestTheEntriesOfAnInterfaceAreFound(t *testing.T) {
	t.Parallel()
	const a, b, old = "172.16.0.11", "172.16.0.12", "172.16.0.13"
	two := []netip.Addr{addr(a), addr(b)}
	before := func(entries ...string) Before {
		out, err := New(rows(entries...), "mlx5_0", 2).Look([]netip.Addr{addr(a), addr(b), addr(old)}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	none := before("fe80::1 2 eth0")
	for name, c := range map[string]struct {
		entries    []string
		before     Before
		alone      bool
		want, gone []netip.Addr
		found      map[netip.Addr]int
		settled    bool
		err        string
	}{
		"all": {
			entries: []string{"", a + " 2 net1", b + " 2 net1"}, before: none, want: two,
			found: map[netip.Addr]int{addr(a): 1, addr(b): 2}, settled: true,
		},
		"one is missing": {
			entries: []string{"", a + " 2 net1"}, before: none, want: two,
			found: map[netip.Addr]int{addr(a): 1},
		},
		"of another link": {
			entries: []string{"", a + " 2 net2", a + " 2 net1"}, before: none, want: two[:1],
			found: map[netip.Addr]int{addr(a): 2}, settled: true,
		},
		"RoCE v1 before it": {
			entries: []string{"", a + " 1 net1", a + " 2 net1"}, before: none, want: two[:1],
			found: map[netip.Addr]int{addr(a): 2}, settled: true,
		},
		"one was there": {
			entries: []string{a + " 2 net1", a + " 2 net1"}, before: before(a+" 2 net1", ""), want: two[:1],
			found: map[netip.Addr]int{addr(a): 1}, settled: true,
		},
		"the first of two": {
			entries: []string{a + " 2 net1", a + " 2 net1"}, before: none, want: two[:1],
			found: map[netip.Addr]int{addr(a): 0}, settled: true,
		},
		"the pod's alone": {
			entries: []string{a + " 2 net1", a + " 2 net1"}, alone: true, want: two[:1],
			found: map[netip.Addr]int{addr(a): 0}, settled: true,
		},
		"nothing is known": {
			entries: []string{a + " 2 net2", a + " 2 net1"}, want: two[:1],
			found: map[netip.Addr]int{addr(a): 1}, settled: true,
		},
		"two may be it": {
			entries: []string{a + " 2 net1", "", a + " 2 net1"}, want: two[:1],
			found: map[netip.Addr]int{}, err: "there are several RoCE v2 entries for 172.16.0.11, at the indexes 0 and 2, and each is of an interface called net1",
		},
		"an old one is there": {
			entries: []string{old + " 1 net1", a + " 2 net1"}, before: none, want: two[:1], gone: []netip.Addr{addr(old)},
			found: map[netip.Addr]int{},
		},
		"another's old one": {
			entries: []string{old + " 2 net2", a + " 2 net1"}, before: none, want: two[:1], gone: []netip.Addr{addr(old)},
			found: map[netip.Addr]int{addr(a): 1}, settled: true,
		},
		"only old ones": {
			entries: []string{"fe80::1 2 eth0", "", old + " 2 net1"}, before: none, gone: []netip.Addr{addr(old)},
			found: map[netip.Addr]int{},
		},
		"none are old": {
			entries: []string{"fe80::1 2 eth0", ""}, before: none, gone: []netip.Addr{addr(old)},
			found: map[netip.Addr]int{}, settled: true,
		},
		"old ones of others": {
			entries: []string{old + " 2 net1"}, before: before(old + " 2 net1"), gone: []netip.Addr{addr(old)},
			found: map[netip.Addr]int{}, settled: true,
		},
	} {
		of := Interface{Name: "net1", Before: c.before, Alone: c.alone}
		found, settled, err := New(rows(c.entries...), "mlx5_0", 2).Settled(of, c.want, c.gone)
		if diff := cmp.Diff(c.found, found, values()); diff != "" || settled != c.settled || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: settled %t, %v (-want +got)\n%s", name, settled, err, diff)
		}
	}
	if _, settled, err := New(fstest.MapFS{}, "mlx5_0", 2).Settled(Interface{Name: "net1"}, nil, nil); settled || !errors.Is(err, ErrNone) {
		t.Errorf("settled %t, %v", settled, err)
	}
	var several *SeveralError
	_, _, err := New(rows(a+" 2 net1", a+" 2 net1"), "mlx5_0", 2).Settled(Interface{Name: "net1"}, two[:1], nil)
	if !errors.As(err, &several) || several.Addr != addr(a) || !cmp.Equal(several.Places, []int{0, 1}) || several.Name != "net1" {
		t.Errorf("got %v", err)
	}
}

// TestAnEntryThatWentMakesRoomForANewOne: an index that had another's entry is new once it was seen
// without it.
func TestAnEntryThatWentMakesRoomForANewOne(t *testing.T) {
	t.Parallel()
	a := addr("172.16.0.11")
	before, err := New(rows("fe80::1 2 eth0", "172.16.0.11 2 net1"), "mlx5_0", 2).Look([]netip.Addr{a}, 0)
	if err != nil {
		t.Fatal(err)
	}
	of := Interface{Name: "net1", Before: before}
	for i, c := range []struct {
		entries []string
		settled bool
	}{
		{[]string{"fe80::1 2 eth0", "172.16.0.11 2 net1"}, false},
		{[]string{"fe80::1 2 eth0", ""}, false},
		{[]string{"fe80::1 2 eth0", "172.16.0.11 2 net1"}, true},
	} {
		found, settled, err := New(rows(c.entries...), "mlx5_0", 2).Settled(of, []netip.Addr{a}, nil)
		if settled != c.settled || err != nil || settled && found[a] != 1 {
			t.Errorf("look %d: %v, %t, %v", i, found, settled, err)
		}
	}
}
