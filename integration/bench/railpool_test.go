// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile/nodefiletest"
)

// accidental are calls of the Go runtime, of which it makes as many as it sees
// fit (it looks at the limits of its cgroup now and then, by pread64), and those
// that answer in one piece or in several: what waits for netlink, and getdents64,
// which a signal of the runtime cuts short (filldir64 in the kernel's fs/readdir.c).
var accidental = strings.Fields(`clone clone3 epoll_pwait exit exit_group futex getdents64 getpid gettid madvise mmap mprotect munmap nanosleep pread64
	restart_syscall rt_sigaction rt_sigprocmask rt_sigreturn sched_getaffinity sched_yield sigaltstack tgkill recvfrom recvmsg poll ppoll`)

// TestARailPoolCostsAnADDOneFileMore counts all system calls of an ADD and a DEL
// of eight rails with given ranges, and with the same ranges of a RailPool. The
// names of the pods end as those of a StatefulSet.
func TestARailPoolCostsAnADDOneFileMore(t *testing.T) {
	needStrace(t)
	w := testWorld(t)
	addGiven, delGiven := w.count(t, "subnets", func([]string) {})
	addPooled, delPooled := w.count(t, "railPool", func([]string) { w.own(t, "railPool", false) })
	if addGiven["openat"] == 0 || addGiven["sendto"] == 0 || delGiven["unlinkat"] == 0 {
		t.Fatalf("counted %v of ADD, %v of DEL", addGiven, delGiven)
	}
	for _, one := range []string{"openat2", "read", "close", "close"} { // with given ranges there is no folder of the agent
		addGiven[one]++
	}
	if diff := cmp.Diff(addGiven, addPooled); diff != "" {
		t.Errorf("system calls of ADD, beside one open, one read and two closes (-given ranges +RailPool)\n%s", diff)
	}
	if diff := cmp.Diff(delGiven, delPooled); diff != "" {
		t.Errorf("system calls of DEL (-given ranges +RailPool)\n%s", diff)
	}
}

// TestAStickyAddressCostsAnADDOneConnection does the same for a RailPool that is sticky,
// with an agent that answers at once.
func TestAStickyAddressCostsAnADDOneConnection(t *testing.T) {
	needStrace(t)
	w := testWorld(t)
	addPooled, delPooled := w.count(t, "railPool", func([]string) { w.own(t, "railPool", false) })
	addSticky, delSticky := w.count(t, "sticky", func(pods []string) {
		files, f := w.own(t, "sticky", true)
		nodefiletest.Answer(t, files, func(_ string, k nodefile.Key) nodefile.Answer {
			a := nodefile.Answer{Until: nodefiletest.Now(t) + time.Minute}
			for rail, subnets := range f.Rails {
				one := netip.AddrFrom4([4]byte{10, byte(firstNet + rail), 100, byte(slices.Index(pods, k.Pod) + 1)})
				s := subnets[0]
				s.Ranges = []netrange.Range{{First: one, Last: one}}
				a.Rails = append(a.Rails, []pool.Subnet{s})
			}
			return a
		})
	})
	// How often it reads depends on when the agent answers.
	for _, one := range []string{"openat", "write", "socket", "connect"} {
		if more := addSticky[one] - addPooled[one]; more != 1 {
			t.Errorf("%d more calls of %s, want 1", more, one)
		}
	}
	if diff := cmp.Diff(delPooled, delSticky); diff != "" {
		t.Errorf("system calls of DEL (-RailPool +sticky)\n%s", diff)
	}
}

// poolName is the network's and the pool's, so that the databases are alike.
const poolName = "pool-1"

// state is the state folder of a node with addresses from there.
func (w *world) state(source string) string { return filepath.Join(w.dir, "of-"+source) }

// count returns how many system calls of each name an ADD that is not the first of its
// node makes, and its DEL: the fewest of three, since the Go runtime makes a call more
// now and then. prepare is told the pods. The network has the ranges that ourChain gives,
// or, if they come from elsewhere, the RailPool.
func (w *world) count(t *testing.T, source string, prepare func(pods []string)) (add, del map[string]int) {
	t.Helper()
	if err := w.settle(w.state(source)); err != nil {
		t.Fatal(err)
	}
	conf := object{"rails": allNICs()}
	if source != "subnets" {
		conf["ipam"] = object{"type": "roce-ipam", "railPool": poolName}
	}
	c, err := w.ourChain(poolName, false, object{"gateway": object{"timeout": "5s"}}, rails, conf, fmt.Sprintf("{rail+%d}", firstNet))
	if err != nil {
		t.Fatal(err)
	}
	pods, err := w.pods(4)
	if err != nil {
		t.Fatal(err)
	}
	prepare(pods)
	if _, _, err := (player{add: c.add, del: c.del}).play(t.Context(), pods[0]); err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods[1:] {
		add = fewest(add, byName(w.trace(t, "trace=all", c.add, pod)))
		del = fewest(del, byName(w.trace(t, "trace=all", c.del, pod)))
	}
	return add, del
}

// fewest returns the lesser number of each name. Nothing was counted before if a is nil.
func fewest(a, b map[string]int) map[string]int {
	if a == nil {
		return b
	}
	n := map[string]int{}
	for name := range a {
		if least := min(a[name], b[name]); least > 0 {
			n[name] = least
		}
	}
	return n
}

// wakeup is what the Go runtime writes to wake a thread that waits for the network,
// and reads there: 1, in an eventfd.
const wakeup = `, "\1\0\0\0\0\0\0\0", 8`

// begunAgain marks a call that the kernel itself begins again. A write of a setting
// is, as often as another process has the lock that it needs
// (addrconf_sysctl_addr_gen_mode: restart_syscall).
const begunAgain = " = ? ERESTART"

// descriptor is the first argument of a call that has a file descriptor there.
var descriptor = regexp.MustCompile(`^\d+`)

// byName counts system calls, but not the accidental ones and those that read the
// configuration or the mounts, of which there are as many as these are long. The Go
// runtime looks for its cgroup in the mounts, which other programs make and remove.
func byName(lines []string) map[string]int {
	n := map[string]int{}
	mounts := "" // the descriptor of the open list
	for _, line := range lines {
		m := call.FindStringSubmatch(line)
		if m == nil || strings.Contains(line, begunAgain) || slices.Contains(accidental, m[1]) || strings.Contains(m[2], wakeup) {
			continue
		}
		if opened := result.FindStringSubmatch(line); m[1] == "openat" && opened != nil && strings.Contains(m[2], `"/proc/self/mountinfo"`) {
			mounts = opened[1]
		}
		switch of := descriptor.FindString(m[2]); {
		case m[1] == "read" && (of == "0" || of == mounts):
			continue
		case m[1] == "close" && of == mounts:
			mounts = ""
		}
		n[m[1]]++
	}
	return n
}

// TestReadsOfTheMountsAreNotCounted has a list of mounts that is read in one piece, and in two.
func TestReadsOfTheMountsAreNotCounted(t *testing.T) {
	lines := func(reads ...string) []string {
		return slices.Concat(
			[]string{`1.1 openat(AT_FDCWD, "/proc/self/mountinfo", O_RDONLY|O_CLOEXEC) = 3`},
			reads,
			[]string{`1.3 close(3)                          = 0`, `1.4 read(3, "1", 512) = 1`})
	}
	want := map[string]int{"openat": 1, "close": 1, "read": 1}
	for _, got := range []map[string]int{
		byName(lines(`1.20 read(3, "43 42 254:0 / / rw", 65536) = 4000`)),
		byName(lines(`1.20 read(3, "43 42 254:0 / / rw", 65536) = 4000`, `1.21 read(3, "99 42 0:4 net:[1] /run", 61536) = 100`)),
	} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

// own writes the node file of a source.
func (w *world) own(t *testing.T, source string, sticky bool) (nodefile.Store, nodefile.File) {
	t.Helper()
	f := owned(poolName, rails, false)
	f.Sticky = sticky
	files, err := told(w.state(source))
	if err == nil {
		err = files.Write(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return files, f
}
