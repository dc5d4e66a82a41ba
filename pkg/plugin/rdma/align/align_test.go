// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package align

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

var update = flag.Bool("update", false, "rewrite the golden in testdata")

// node is the GID tables of two NICs, and the namespaces with addresses on them: the host's, that of
// a pod with net1 and net2, that of the fillers, and others. A new entry gets the lowest free index.
type node struct {
	tables  map[string][]row // by device
	each    int              // entries of an address: 2 with RoCE v1
	hides   bool             // from a namespace what others have, as NVIDIA's driver does
	fillers bool             // their namespace is there
	taken   netip.Addr       // as a filler: an ipvlan of a pod has it
	failAt  int              // which call from now on ends with an error; 0: none
	ends    func()           // ends the time of ADD, at that call
	did     []string
}

// row is an entry of a table; the zero value is a free one.
type row struct {
	ns, link string
	gid      netip.Addr
	kind     string
}

var errNoAnswer = cnierr.New(cnierr.IO, "x", "y", "", "%w", unix.EIO)

func (n *node) call() error {
	if n.failAt == 0 {
		return nil
	}
	if n.failAt--; n.failAt == 0 {
		n.ends()
		return errNoAnswer
	}
	return nil
}

// device returns the device of a link: net1 and gids-1 are on the first.
func device(link string) string { return "mlx5_" + string(link[len(link)-1]-1) }

// side is a namespace of a node. It implements plan.Executor and Tables.
type side struct {
	*node
	ns string
}

func (s side) Do(_ context.Context, run ...plan.Op) error {
	if err := s.call(); err != nil {
		return err
	}
	for _, op := range run {
		switch k := op.Kind.(type) {
		case plan.Child:
			s.did = append(s.did, fmt.Sprintf("%s: link %s", s.ns, k.Name))
		case plan.Address:
			s.did = append(s.did, fmt.Sprintf("%s: set %s on %s", s.ns, k.Prefix, k.Link))
			if k.Prefix.Addr() == s.taken {
				return cnierr.New(cnierr.AddressTaken, "set address", k.Prefix.String(), "", "an ipvlan has it")
			}
			s.set(s.ns, string(k.Link), k.Prefix.Addr())
		}
	}
	return nil
}

// set adds the entries of an address that is not there.
func (n *node) set(ns, link string, gid netip.Addr) {
	t := n.tables[device(link)]
	if slices.ContainsFunc(t, func(r row) bool { return r.ns == ns && r.link == link && r.gid == gid }) {
		return
	}
	for _, kind := range []string{gidtable.RoCEv1, gidtable.RoCEv2}[2-n.each:] {
		if i := slices.Index(t, row{}); i >= 0 {
			t[i] = row{ns, link, gid, kind}
		}
	}
}

// Undo writes down also what it fails to do. The order of operations is that of a map.
func (s side) Undo(ctx context.Context, run ...plan.Op) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var did []string
	for _, op := range run {
		k := op.Kind.(plan.Address)
		did = append(did, fmt.Sprintf("%s: unset %s on %s", s.ns, k.Prefix, k.Link))
	}
	s.did = append(s.did, slices.Sorted(slices.Values(did))...)
	if err := s.call(); err != nil {
		return err
	}
	for _, op := range run {
		k := op.Kind.(plan.Address)
		for i, r := range s.tables[device(string(k.Link))] {
			if r.ns == s.ns && r.link == string(k.Link) && r.gid == k.Prefix.Addr() {
				s.tables[device(string(k.Link))][i] = row{}
			}
		}
	}
	return nil
}

func (s side) Check(_ context.Context, run ...plan.Op) error {
	k := run[0].Kind.(plan.Address)
	for _, r := range s.tables[device(string(k.Link))] {
		if r.ns == s.ns && r.link == string(k.Link) && r.gid == k.Prefix.Addr() {
			return nil
		}
	}
	return errors.New("no such address")
}

func (s side) Place(_ context.Context, r plan.AlignRail, set, unset []netip.Addr) (map[netip.Addr]int, error) {
	if err := s.call(); err != nil {
		return nil, err
	}
	at := map[netip.Addr]int{}
	for i, is := range s.tables[r.Device.Name] {
		if is.ns != s.ns || is.link != string(r.Link) {
			continue
		}
		if slices.Contains(unset, is.gid) {
			return nil, fmt.Errorf("%s is still there", is.gid)
		}
		if is.kind == gidtable.RoCEv2 {
			at[is.gid] = i
		}
	}
	for _, a := range set {
		if _, has := at[a]; !has {
			return nil, cnierr.New(cnierr.NoGID, "wait for GID of", a.String(), "", "the GID table is full")
		}
	}
	return at, nil
}

func (s side) Look(r plan.AlignRail, addrs []netip.Addr, from int) error {
	s.did = append(s.did, fmt.Sprintf("%s: look for %v of %s from %d", s.ns, addrs, r.Link, from))
	return s.call()
}

func (s side) Has(link conf.LinkName, e gidtable.Entry) bool {
	t := s.tables[device(string(link))]
	return e.Index < len(t) && t[e.Index] == row{s.ns, string(link), e.GID, e.Type}
}

func (s side) Before(reader plan.Place, d plan.RDMADevice, limit int) (out []gidtable.Entry, size int, err error) {
	if err := s.call(); err != nil {
		return nil, 0, err
	}
	ns := s.ns
	if reader == plan.Host {
		ns = "host"
	}
	for i, r := range s.tables[d.Name] {
		if size = i + 1; size > limit {
			return out, limit, nil
		}
		if r != (row{}) && (!s.hides || r.ns == ns) {
			out = append(out, gidtable.Entry{Index: i, GID: r.gid, Type: r.kind, Netdev: r.link})
		}
	}
	return out, size, nil
}

// String prints the tables: an entry is NAMESPACE:ADDRESS, with a 1 behind those of RoCE v1.
func (n *node) String() string {
	var out strings.Builder
	for _, name := range []string{"mlx5_0", "mlx5_1"} {
		fmt.Fprintf(&out, "%s:", name)
		t := n.tables[name]
		for len(t) > 0 && t[len(t)-1] == (row{}) {
			t = t[:len(t)-1]
		}
		for _, r := range t {
			switch {
			case r == row{}:
				out.WriteString(" -")
			case r.kind == gidtable.RoCEv1:
				fmt.Fprintf(&out, " %s:%s(1)", r.ns, r.gid)
			default:
				fmt.Fprintf(&out, " %s:%s", r.ns, r.gid)
			}
		}
		out.WriteString("\n")
	}
	return out.String()
}

// scene is a node and what is asked of it.
type scene struct {
	name   string
	size   int // of the tables
	each   int
	hides  bool
	before [2][]string // what is there, in order: "ns" or "ns:address"; "-" is freed again
	taken  string
	own    bool // the fillers are on the links of the pod
	addrs  [2][]string
	others [2][]string
	index  conf.GIDIndex
	at     [2][]int
}

func prefixes(addrs []string) (out []netip.Prefix) {
	for _, a := range addrs {
		out = append(out, netip.MustParsePrefix(a))
	}
	return out
}

// make returns the node after the addresses of the pod were set, and the operation.
func (s scene) make() (*node, plan.Align) {
	n := &node{tables: map[string][]row{}, each: max(1, s.each), hides: s.hides}
	op := plan.Align{Index: s.index}
	for i := range 2 {
		link, gids := fmt.Sprint("net", i+1), fmt.Sprint("gids-", i+1)
		r := plan.AlignRail{
			Link: conf.LinkName(link), Device: plan.RDMADevice{Name: device(link), Port: 1}, Addresses: prefixes(s.addrs[i]), Others: prefixes(s.others[i]), At: s.at[i],
		}
		if !s.own {
			r.Fillers = plan.Child{Name: conf.LinkName(gids)}
		}
		n.tables[device(link)] = make([]row, s.size)
		var free []string
		for j, is := range s.before[i] {
			ns, addr, has := strings.Cut(is, ":")
			if !has {
				addr = fmt.Sprintf("10.%d.0.%d", i, j+1)
			}
			on := link
			if ns == "gids" {
				on, n.fillers = gids, true
			}
			if ns == "liar" { // a pod that gives its link the name of that with fillers
				on = gids
			}
			if n.set(ns, on, netip.MustParseAddr(addr)); ns == "-" {
				free = append(free, addr)
			}
		}
		for j, r := range n.tables[device(link)] {
			if slices.Contains(free, r.gid.String()) {
				n.tables[device(link)][j] = row{}
			}
		}
		op.Rails = append(op.Rails, r)
	}
	for _, r := range op.Rails {
		for _, p := range slices.Concat(r.Addresses, r.Others) {
			n.set("pod", string(r.Link), p.Addr())
		}
	}
	if s.taken != "" {
		n.taken = netip.MustParseAddr(s.taken)
	}
	return n, op
}

func (n *node) aligner() Aligner {
	pod, gids := side{n, "pod"}, side{n, "gids"}
	return Aligner{
		Pod: Side{pod, pod},
		Node: func(make bool) (*Side, error) {
			if err := n.call(); err != nil {
				return nil, err
			}
			if n.fillers = n.fillers || make; !n.fillers {
				return nil, nil
			}
			return &Side{gids, gids}, nil
		},
		Owner: func(a netip.Addr) string { return map[string]string{"10.1.0.3": "pod ml/train-1"}[a.String()] },
	}
}

func scenes() []scene {
	one := [2][]string{{"172.16.1.5/16"}, {"172.17.1.5/16"}}
	two := [2][]string{{"172.16.1.5/16", "fd00::5/64"}, {"172.17.1.5/16", "fd01::5/64"}}
	return []scene{
		{
			name: "equal already", size: 16,
			before: [2][]string{{"host", "host"}, {"host", "host"}},
			addrs:  one, index: conf.EqualIndex,
		},
		{
			name: "one is behind", size: 16,
			before: [2][]string{{"host"}, {"host", "host", "other"}},
			addrs:  one, index: conf.EqualIndex,
		},
		{
			name: "the first is behind, with others", size: 16,
			before: [2][]string{{"host", "host", "other"}, {"host"}},
			addrs:  one, others: [2][]string{{"fe80::1/64"}, {"fe80::2/64"}}, index: conf.EqualIndex,
		},
		{
			name: "two addresses", size: 16,
			before: [2][]string{{"host"}, {"host", "host", "-", "other"}},
			addrs:  two, index: conf.EqualIndex,
		},
		{
			name: "two addresses on one rail", size: 16,
			before: [2][]string{{"host"}, {"host", "host", "other"}},
			addrs:  [2][]string{two[0], one[1]}, index: conf.EqualIndex,
		},
		{name: "a number", size: 16, before: [2][]string{{"host"}, {"host", "host"}}, addrs: one, index: 4},
		{
			name: "a number that they have", size: 16,
			before: [2][]string{{"host", "host"}, {"host", "host"}},
			addrs:  one, index: 2,
		},
		{
			name: "a number that a pod has", size: 16,
			before: [2][]string{{"host"}, {"host", "host", "other", "other"}},
			addrs:  one, index: 2,
		},
		{
			name: "a number that the host has", size: 16,
			before: [2][]string{{"host"}, {"host", "host", "host:10.9.9.9"}},
			addrs:  one, index: 2,
		},
		{
			name: "a number that a filler has", size: 16,
			before: [2][]string{{"host"}, {"host", "gids:169.254.64.0", "gids:169.254.64.1", "gids:169.254.64.2"}},
			addrs:  one, index: 2,
		},
		{
			name: "a number that a pod has as if it were a filler", size: 16,
			before: [2][]string{{"host", "gids:169.254.64.0"}, {"host", "host", "liar:169.254.64.5"}},
			addrs:  one, index: 2,
		},
		{
			name: "fillers where the others are", size: 16,
			before: [2][]string{{"host", "host"}, {"host", "gids:169.254.64.0", "gids:169.254.64.1", "gids:169.254.64.2"}},
			addrs:  one, index: conf.EqualIndex,
		},
		{
			name: "a number that a filler has, behind a free one", size: 16,
			before: [2][]string{{"host", "-", "gids:169.254.64.5"}, {"host", "-", "gids:169.254.64.5"}},
			addrs:  one, index: 2,
		},
		{
			name: "more fillers", size: 16,
			before: [2][]string{{"host", "gids:169.254.64.0"}, {"host", "host", "other", "other"}},
			addrs:  one, index: conf.EqualIndex,
		},
		{
			name: "hidden, others between", size: 40, hides: true,
			before: [2][]string{{"host", "-", "other", "other"}, {"host", "host", "other", "other", "other"}},
			addrs:  one, index: conf.EqualIndex,
		},
		{name: "a table that is too small", size: 4, before: [2][]string{{"host"}, {"host"}}, addrs: one, index: 6},
		{
			name: "a table that is full", size: 4,
			before: [2][]string{{"host", "host", "-", "host"}, {"host"}},
			addrs:  two, index: conf.EqualIndex,
		},
		{
			name: "RoCE v1 too", size: 24, each: 2,
			before: [2][]string{{"host"}, {"host", "host", "other"}},
			addrs:  one, index: conf.EqualIndex,
		},
		{name: "RoCE v1 has the number", size: 24, each: 2, before: [2][]string{{"host"}, {"host"}}, addrs: one, index: 2},
		{
			name: "hidden", size: 40, hides: true,
			before: [2][]string{{"host"}, {"host", "host", "other", "other", "other"}},
			addrs:  one, index: conf.EqualIndex,
		},
		{
			name: "hidden, far behind", size: 64, hides: true,
			before: [2][]string{{"host", "other"}, slices.Concat([]string{"host"}, slices.Repeat([]string{"other"}, 24))},
			addrs:  one, index: conf.EqualIndex,
		},
		{
			name: "hidden, a number", size: 40, hides: true,
			before: [2][]string{{"host", "other"}, {"host", "host", "other"}},
			addrs:  one, index: 3,
		},
		{
			name: "hidden, a number that a pod has", size: 40, hides: true,
			before: [2][]string{{"host", "other"}, {"host", "host", "other"}},
			addrs:  one, index: 2,
		},
		{
			name: "a filler that an ipvlan has", size: 16,
			before: [2][]string{{"host"}, {"host", "host", "other"}}, taken: "169.254.64.0",
			addrs: one, index: conf.EqualIndex,
		},
		{
			name: "fillers of its own", size: 16, own: true,
			before: [2][]string{{"host"}, {"host", "host", "other", "other"}},
			addrs:  two, index: conf.EqualIndex,
		},
		{
			name: "again, at free indexes", size: 16,
			before: [2][]string{{"host"}, {"host", "host"}},
			addrs:  one, index: conf.EqualIndex, at: [2][]int{{4}, {4}},
		},
		{
			name: "again, at those of fillers", size: 16,
			before: [2][]string{{"host", "gids:169.254.64.0", "gids:169.254.64.1"}, {"host", "host"}},
			addrs:  one, index: conf.EqualIndex, at: [2][]int{{1}, {2}},
		},
		{
			name: "again, at one that a pod has", size: 16,
			before: [2][]string{{"host", "other", "host"}, {"host"}},
			addrs:  two, others: [2][]string{{"fe80::1/64"}, nil}, index: conf.EqualIndex, at: [2][]int{{1, 5}, {1, 2}},
		},
		{
			name: "again, at one behind the table", size: 6,
			before: [2][]string{{"host"}, {"host"}},
			addrs:  one, index: conf.EqualIndex, at: [2][]int{{9}, {2}},
		},
	}
}

// TestTablesAfterAnAlignmentAreAsInTheGolden has, for each node, its tables before and after, what
// was done, and the error.
func TestTablesAfterAnAlignmentAreAsInTheGolden(t *testing.T) {
	t.Parallel()
	const file = "testdata/tables.txt"
	var got strings.Builder
	for _, s := range scenes() {
		n, op := s.make()
		fmt.Fprintf(&got, "# %s\n%s", s.name, n)
		err := n.aligner().Do(t.Context(), plan.Op{Kind: op})
		for _, d := range n.did {
			fmt.Fprintf(&got, "    %s\n", d)
		}
		if got.WriteString(n.String()); err != nil {
			var e *cnierr.Error
			errors.As(err, &e)
			fmt.Fprintf(&got, "error %d: %v\nhint: %s\n", cnierr.CodeOf(err), err, e.Hint)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if diff := cmp.Diff(string(want), got.String()); err != nil || diff != "" {
		t.Errorf("%v; if an alignment should differ, run make golden (-want +got)\n%s", err, diff)
	}
}

// TestNoFillerStaysAfterAFailure lets each call fail in turn.
func TestNoFillerStaysAfterAFailure(t *testing.T) {
	t.Parallel()
	for _, s := range scenes() {
		for at, failed := 1, true; failed; at++ {
			n, op := s.make()
			before := fillersOf(n)
			var ctx context.Context
			ctx, n.ends = context.WithCancel(t.Context())
			n.failAt = at
			err := n.aligner().Do(ctx, plan.Op{Kind: op})
			if failed = n.failAt == 0; failed != errors.Is(err, unix.EIO) {
				t.Errorf("%s, failure at call %d: got %v", s.name, at, err)
			}
			for _, f := range fillersOf(n) {
				if failed && !slices.Contains(before, f) && !strings.Contains(strings.Join(n.did, "\n"), ": unset "+f) {
					t.Errorf("%s, failure at call %d: the filler %s was left", s.name, at, f)
				}
			}
		}
	}
}

func fillersOf(n *node) (out []string) {
	for _, t := range n.tables {
		for _, r := range t {
			if plan.FillerRange.Contains(r.gid) {
				out = append(out, r.gid.String())
			}
		}
	}
	return out
}

func TestOnlyAnAlignmentIsDone(t *testing.T) {
	t.Parallel()
	n, op := scenes()[1].make()
	a := n.aligner()
	if err := a.Do(t.Context(), plan.Op{Kind: plan.Up{}}); cnierr.CodeOf(err) != cnierr.Bug || !strings.Contains(err.Error(), "plan.Up") {
		t.Errorf("got %v, want a bug that names the operation", err)
	}
	if err := errors.Join(a.Undo(t.Context(), plan.Op{Kind: op}), a.Check(t.Context(), plan.Op{Kind: op})); err != nil || len(n.did) != 0 {
		t.Errorf("got %v, and it did %q", err, n.did)
	}
}
