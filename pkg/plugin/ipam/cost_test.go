// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// busy is a node on which pods come and go, one each second. So about 120
// addresses are always in quarantine, and each lease finds an address after its
// quarantine.
type busy struct {
	dir     string
	now     time.Duration
	subnets []ipam.Subnet // a pod has an address of each
	pods    int
}

func newBusy(tb testing.TB, s ...ipam.Subnet) *busy {
	tb.Helper()
	return &busy{dir: tb.TempDir(), now: time.Hour, subnets: s}
}

// book returns a Book that finds every namespace alive. It looks at real files
// for that.
func (b *busy) book() *ipam.Book {
	return ipam.New(ipam.Config{
		Dir: b.dir, BootID: boot1,
		Now: func() time.Duration { return b.now },
		Observe: func() func(netns.Ref) (bool, error) {
			alive := netns.Observe()
			return func(netns.Ref) (bool, error) {
				_, err := alive(netns.Ref{Path: b.dir})
				return true, err
			}
		},
	})
}

// addresses says where in a subnet the address number i lies.
type addresses func(first netip.Addr, i int) netip.Addr

// everyNth returns addresses n apart. For 1 all are one run, otherwise each is
// a run.
func everyNth(n int) addresses {
	return func(first netip.Addr, i int) netip.Addr { return add(first, uint64(1+i*n)) }
}

// random returns random addresses of a /16. Most addresses of the /16 are used.
func random() addresses {
	order := rand.New(rand.NewPCG(1, 2)).Perm(65_534)
	return func(first netip.Addr, i int) netip.Addr { return add(first, uint64(1+order[i])) }
}

func add(a netip.Addr, n uint64) netip.Addr {
	b := a.AsSlice()
	for i := len(b) - 1; n > 0; i-- {
		n += uint64(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	sum, _ := netip.AddrFromSlice(b)
	return sum
}

// fill gives count pods their addresses.
func (b *busy) fill(tb testing.TB, count int, at addresses) {
	tb.Helper()
	store := ledger.Store{Dir: b.dir, BootID: boot1, Now: func() time.Duration { return b.now }}
	err := store.Update(ctx, func(l *ledger.Ledger) error {
		for i := range count {
			o := ask(fmt.Sprintf("filled-with-a-pod-%d", i)).Owner
			for _, s := range b.subnets {
				l.Give(o, ledger.Spot{Pool: "rail", Addr: at(s.Prefix.Addr(), i)})
			}
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// cost is what a call has taken, in counts that do not depend on how busy the
// machine is.
type cost struct {
	written int64 // bytes given to write calls
	calls   int64 // read and write calls
	allocs  int64 // objects on the heap
	faults  int64 // of memory, most of them windows of 64 kB of the file that were touched for the first time
}

// names are those of the counts, as list has them.
func (cost) names() [4]string {
	return [...]string{"bytes written", "read and write calls", "allocations", "page faults"}
}

func (c cost) list() [4]int64 { return [...]int64{c.written, c.calls, c.allocs, c.faults} }

// spent returns what this thread has spent until now, and the process's
// allocations. The kernel counts reading and writing for each thread
// (Documentation/filesystems/proc.rst, 3.3 /proc/<pid>/io).
func spent(t *testing.T) cost {
	t.Helper()
	var usage unix.Rusage
	must(t, unix.Getrusage(unix.RUSAGE_THREAD, &usage))
	text, err := os.ReadFile("/proc/thread-self/io")
	if err != nil {
		t.Skip("the kernel does not count what threads read and write (CONFIG_TASK_IO_ACCOUNTING): ", err)
	}
	io := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if io[name], err = strconv.ParseInt(value, 10, 64); err != nil {
			t.Fatalf("/proc/thread-self/io: %v", err)
		}
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return cost{written: io["wchar"], calls: io["syscr"] + io["syscw"], allocs: int64(mem.Mallocs), faults: usage.Minflt}
}

// pod leases addresses for a new pod and releases them.
func (b *busy) pod(tb testing.TB) {
	tb.Helper()
	b.pods++
	b.now += time.Second
	a := ask(fmt.Sprintf("job-%d", b.pods), b.subnets...)
	if _, err := b.book().Acquire(ctx, a); err != nil {
		tb.Fatal(err)
	}
	if err := b.book().Release(ctx, a.Owner.Key(), a.Owner.Netns); err != nil {
		tb.Fatal(err)
	}
}

// costOf returns the median of each count over some calls of fn. A call now
// and then pays for the collector, or for a page that is split.
func costOf(t *testing.T, fn func()) (out [4]int64) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all [4][]int64
	for range 51 {
		before := spent(t).list()
		fn()
		for i, v := range spent(t).list() {
			all[i] = append(all[i], v-before[i])
		}
	}
	for i := range out {
		slices.Sort(all[i])
		out[i] = all[i][len(all[i])/2]
	}
	return out
}

// costOfPods returns what a pod costs on a node that has count leases, once the
// first addresses come back from quarantine.
func costOfPods(t *testing.T, count int, at addresses, s ...ipam.Subnet) [4]int64 {
	t.Helper()
	b := newBusy(t, s...)
	b.fill(t, count, at)
	for range 150 {
		b.pod(t)
	}
	return costOf(t, func() { b.pod(t) })
}

// atMost fails the test for each count that is more than factor times another.
// For page faults the factor is twice that, because they depend on where in the
// file the pages are.
func atMost(t *testing.T, factor float64, got, of [4]int64) {
	t.Helper()
	for i, name := range (cost{}).names() {
		t.Logf("%s: %d against %d", name, got[i], of[i])
		limit := factor * float64(of[i])
		if name == "page faults" {
			limit *= 2
		}
		if float64(got[i]) > limit {
			t.Errorf("%s: %d, want at most %.0f", name, got[i], limit)
		}
	}
}

// full skips what makes a database of 10,000 leases.
func full(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("makes 10,000 leases, which -short excludes")
	}
}

// TestCostOfALeaseDoesNotGrowWithTheLeases compares what a lease and its
// release read, write and allocate beside 10,000 leases and beside 500. The
// first may be at most 1.5 times the second: a tree is one page deeper, and all
// else is the same. Code that looks at each lease costs many times as much.
// make bench measures the time of a lease.
func TestCostOfALeaseDoesNotGrowWithTheLeases(t *testing.T) {
	full(t)
	for _, tc := range []struct {
		name, subnet string
		at           addresses
	}{
		{"a /16 at random", "10.1.0.0/16", random()},
		{"a /8, each address alone", "10.0.0.0/8", everyNth(2)},
		{"a /64, each address alone", "2001:db8::/64", everyNth(2)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := subnet(tc.subnet)
			atMost(t, 1.5, costOfPods(t, 10_000, tc.at, s), costOfPods(t, 500, tc.at, s))
		})
	}
}

// eight is eight rails, a /16 each.
func eight() []ipam.Subnet {
	out := make([]ipam.Subnet, 8)
	for i := range out {
		out[i] = subnet(fmt.Sprintf("10.%d.0.0/16", i))
	}
	return group(out...)
}

// TestCostOfRailsDoesNotGrowWithTheLeases does the same for eight rails at
// once, with 60 and 1,250 leases on each rail.
func TestCostOfRailsDoesNotGrowWithTheLeases(t *testing.T) {
	full(t)
	for name, at := range map[string]addresses{"one run": everyNth(1), "each slot alone": everyNth(2)} {
		t.Run(name, func(t *testing.T) {
			atMost(t, 1.5, costOfPods(t, 10_000/8, at, eight()...), costOfPods(t, 500/8, at, eight()...))
		})
	}
}

// TestEightRailsAtOnceCostLessThanOneByOne compares one transaction with eight.
func TestEightRailsAtOnceCostLessThanOneByOne(t *testing.T) {
	together, shared := newBusy(t, eight()...), t.TempDir()
	var each []*busy // as eight network attachments of a pod: one database
	for _, s := range eight() {
		each = append(each, &busy{dir: shared, now: time.Hour, subnets: []ipam.Subnet{s}})
	}
	// The larger is first, because the heap grows with it, which is page faults too.
	one := costOf(t, func() {
		for _, b := range each {
			b.pod(t)
		}
	})
	once := costOf(t, func() { together.pod(t) })
	atMost(t, 0.7, once, one)
}
