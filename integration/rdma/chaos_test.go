// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// inPod and onNode are what happens to a rail of a pod with the address ADDR, and to the NIC
// and the RDMA device of all pods. WHILE is up to three seconds.
var (
	inPod = []string{
		"ip -n POD route flush table TABLE", "ip -n POD rule del from ADDR lookup TABLE", "ip -n POD rule del from ADDR unreachable",
		"ip -n POD addr flush dev LINK", "ip -n POD addr del ADDR/24 dev LINK", "ip -n POD link del LINK",
		"ip -n POD link set LINK down", "ip -n POD link set LINK down; sleep WHILE; ip -n POD link set LINK up",
	}
	onNode = []string{
		"ip link set NIC down; sleep WHILE; ip link set NIC up",
		"ip link set NIC down; ip link set NIC name away; sleep WHILE; ip link set away name NIC; ip link set NIC up",
		"rdma link del DEV; rdma link add DEV type rxe netdev NIC",
		"rdma link del DEV; sleep WHILE; rdma link add DEV type rxe netdev NIC; ip link set NIC down; ip link set NIC up",
	}
)

// Objects of other programs in a pod, and on the node.
const (
	othersInPod  = "link add other type dummy\naddr add 192.0.2.9/24 dev other\nlink set other up\n" + othersSteer
	othersOnNode = "link add other type dummy\naddr add 192.0.2.8/24 dev other\nlink set other up\n" + othersSteer
	othersSteer  = "rule add from 192.0.2.1 lookup 4711 priority 32000\nroute add 198.51.100.0/24 dev other table 4711"
)

// setting returns a number of the environment of the command in the machine, or another one.
func setting(t *testing.T, name string, other uint64) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(cmp.Or(os.Getenv(name), fmt.Sprint(other)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s=%d", name, n)
	return n
}

// victim is a pod that loses things.
type victim struct {
	attachment
	addrs [][]string
	whole string
}

// state returns the links, addresses, routes and rules of a pod, or of the node for "".
func state(t *testing.T, netns string) string {
	t.Helper()
	ip := "ip "
	if netns != "" {
		ip += "-n " + netns
	}
	var script strings.Builder
	for _, what := range []string{"-br link", "-br addr", "rule", "-6 rule", "route show table all", "-6 route show table all"} {
		fmt.Fprintln(&script, ip, what)
	}
	lines := strings.Split(shell(t, script.String()), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// wounds returns what is not as it was: of the pods, and then of their GIDs.
func wounds(t *testing.T, victims []victim) (out []string) {
	t.Helper()
	for _, v := range victims {
		if is := state(t, v.pod.Name); is != v.whole {
			out = append(out, fmt.Sprintf("%s is\n%s\nand was\n%s", v.pod.Name, is, v.whole))
		}
	}
	if len(out) > 0 {
		return out
	}
	now := allGIDs(t, "")
	for _, v := range victims {
		at := v.indexes()
		for rail, on := range v.addrs {
			for _, addr := range on {
				if is := now[rail].of(addr); !slices.Contains(is, at[addr]) {
					out = append(out, fmt.Sprintf("%s has %s at %v of %s, want it at %d", v.pod.Name, addr, is, device(rail), at[addr]))
				}
			}
		}
	}
	return out
}

// TestLongChaosConverges has pods on all rails lose things in storms of a few faults: in the
// pods, of their NICs and of the RDMA devices. The healer is killed at times. After each storm
// all pods become as they were, with what others have made in them and on the node. It runs
// for CHAOS_SECONDS with CHAOS_PODS; CHAOS_SEED repeats the faults of a run.
func TestLongChaosConverges(t *testing.T) {
	n := newNode(t, "shared")
	shell(t, "modprobe dummy numdummies=0") // else the first one that is made leaves another one
	seed := setting(t, "CHAOS_SEED", rand.Uint64())
	r := rand.New(rand.NewPCG(seed, 0))
	victims := make([]victim, setting(t, "CHAOS_PODS", 20))
	long := time.Duration(setting(t, "CHAOS_SECONDS", 120)) * time.Second
	for i := range victims {
		v := victim{attachment: n.attach(promising(n.allRails(), "equal"), n.pod())}
		v.pod.IP(t, othersInPod)
		v.addrs = v.addRails()
		victims[i] = v
	}
	finally(t, "ip rule del priority 32000; ip link del other")
	shell(t, "ip -batch - <<END\n"+othersOnNode+"\nEND")
	var before string
	cnitest.Await(t, "all is there, and stays", func() bool {
		was := before
		before = state(t, "")
		same := was == before
		for i, v := range victims {
			victims[i].whole = state(t, v.pod.Name)
			same = same && victims[i].whole == v.whole
		}
		return same && !strings.Contains(before, "tentative") && len(wounds(t, victims)) == 0
	})
	t.Logf("%d pods on %d rails", len(victims), rails())
	h := n.healer(`"heal": "all"`, "heal=all")
	var took []time.Duration
	var cpu time.Duration
	most := 0
	counts := map[string]int{}
	ends := func(by unix.Signal) {
		used, _, peak := cnitest.Spent(t, h.Process)
		cpu, most = cpu+used, max(most, peak)
		h.end(by)
	}
	for began := time.Now(); time.Since(began) < long && !t.Failed(); {
		killed := r.IntN(3) == 0
		if killed {
			ends(unix.SIGKILL)
		}
		scripts := storm(r, victims)
		t.Logf("%s: storm %d, healer killed: %t, %v", time.Since(began).Round(time.Second), len(took)+1, killed, scripts)
		var all sync.WaitGroup
		for _, s := range scripts {
			all.Go(func() { _, _ = try("sh", "-c", s.line) }) // it may be lost already
			counts[s.kind]++
		}
		if killed && r.IntN(2) == 0 { // while it storms, or after it
			h = n.healer(`"heal": "all"`, "heal=all")
			killed = false
		}
		all.Wait()
		if killed {
			h = n.healer(`"heal": "all"`, "heal=all")
		}
		over := time.Now()
		for {
			left := wounds(t, victims)
			if len(left) == 0 {
				break
			}
			if time.Since(over) > converges {
				t.Errorf("not whole %v after\n%v\n%s\n%s", converges, scripts, strings.Join(left, "\n"), n.rocectl("trace"))
				break
			}
			time.Sleep(time.Second)
		}
		took = append(took, time.Since(over))
		if out, err := n.tryRocectl("check"); err != nil {
			t.Errorf("check: %v after\n%v\n%s", err, scripts, out)
		}
		if is := state(t, ""); is != before {
			t.Errorf("the node is\n%s\nand was\n%s\nbefore\n%v", is, before, scripts)
		}
		t.Logf("%s: whole after %s", time.Since(began).Round(time.Second), took[len(took)-1].Round(100*time.Millisecond))
	}
	ends(unix.SIGTERM)
	slices.Sort(took)
	for kind, times := range counts {
		t.Logf("%3d times %s", times, kind)
	}
	t.Logf("%d pods, %d storms: whole after %v (median), %v (nine of ten), %v (all); the healers took %v of processor time, and %d MiB at most",
		len(victims), len(took), took[len(took)/2], took[len(took)*9/10], took[len(took)-1], cpu, most)
	for _, v := range victims {
		v.mustDel()
	}
	n.nothingLeft()
}

// converges is how long pods may stay damaged after a storm: the longest pause of an attachment
// that was damaged often is five minutes, and 30 attachments are repaired in a minute.
const converges = 8 * time.Minute

// blow is what happens to a rail or a pod in a storm.
type blow struct{ kind, line string }

// storm chooses up to six faults. A NIC has one of them.
func storm(r *rand.Rand, victims []victim) (out []blow) {
	free := r.Perm(rails())
	for range 1 + r.IntN(6) {
		v, rail := victims[r.IntN(len(victims))], r.IntN(rails())
		f := inPod[r.IntN(len(inPod))]
		if len(free) > 0 && r.IntN(3) == 0 {
			f, rail, free = onNode[r.IntN(len(onNode))], free[0], free[1:]
		}
		out = append(out, blow{f, strings.NewReplacer("POD", v.pod.Name, "LINK", ifName(rail), "NIC", fmt.Sprintf("r%d", rail),
			"DEV", device(rail), "ADDR", v.addrs[rail][0], "TABLE", strconv.Itoa(100+rail), "away", fmt.Sprintf("away%d", rail),
			"WHILE", fmt.Sprintf("%.1f", 3*r.Float64())).Replace(f)})
	}
	return out
}
