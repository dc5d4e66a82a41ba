// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// TestLongHealerCost measures what a healer of HEAL_PODS pods with eight rails needs, idle and
// while pods and NICs lose things, for HEAL_TIME each, and how long ADD takes beside it.
func TestLongHealerCost(t *testing.T) {
	pods, err := strconv.Atoi(os.Getenv("HEAL_PODS"))
	if err != nil {
		t.Skip("it measures, and is started by hand with HEAL_PODS=200")
	}
	phase, err := time.ParseDuration(os.Getenv("HEAL_TIME"))
	if err != nil {
		phase = time.Minute
	}
	w := newWorld(t, rails)
	c := w.listed(func(i int) map[string]any {
		return map[string]any{"subnet": fmt.Sprintf("172.16.%d.0/24", 10+i), "ranges": []any{fmt.Sprintf("172.16.%[1]d.2-172.16.%[1]d.250", 10+i)}}
	}).With("ipam.quarantine", "0s")
	var all []*pod
	for range pods {
		p := w.pod(t)
		w.attach(c, p, "net1").mustAdd(t)
		all = append(all, p)
	}
	t.Logf("%d pods with %d rails", pods, rails)
	extra := w.attach(c, w.pod(t), "net1")
	took := map[string][]time.Duration{}
	add := func(beside string) {
		for range 5 {
			began := time.Now()
			extra.mustAdd(t)
			took[beside] = append(took[beside], time.Since(began))
			extra.mustDel(t)
		}
	}
	const ofPod, ofNIC = "ip -n POD route flush table TABLE; ip -n POD link set LINK down; ip -n POD link set LINK up", "ip link set NIC down; ip link set NIC up"
	damage := func(scripts ...string) {
		p, i := all[rand.IntN(pods)], rand.IntN(rails)
		for _, script := range scripts {
			_, _ = w.Run("sh", "-c", strings.NewReplacer("POD", p.namespace.Name, "LINK", railName(i), "NIC", fmt.Sprintf("rail%d", i), "TABLE", strconv.Itoa(100+i)).Replace(script))
		}
	}
	for range 3 {
		add("no healer")
		h := w.healing(t, "all")
		cpu, _, most := cnitest.Spent(t, h.Process)
		cnitest.Await(t, "the first look at all is over", func() bool {
			before := cpu
			time.Sleep(2 * time.Second)
			cpu, _, most = cnitest.Spent(t, h.Process)
			return cpu-before < 20*time.Millisecond
		})
		t.Logf("the first look at all: %v of processor time, %d MiB at most", cpu, most)
		add("an idle healer")
		stop, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Second):
					damage(ofPod) // ADD refuses a NIC that is down
				}
			}
		}()
		add("a working healer")
		close(stop)
		<-over
		h.kill()
	}
	for _, beside := range []string{"no healer", "an idle healer", "a working healer"} {
		slices.Sort(took[beside])
		t.Logf("ADD beside %s: best %v, median %v", beside, took[beside][0], took[beside][len(took[beside])/2])
	}
	h := w.healing(t, "all")
	time.Sleep(30 * time.Second)
	for _, name := range []string{"idle", "chaos"} {
		before, _, _ := cnitest.Spent(t, h.Process)
		began, losses := time.Now(), 0
		for time.Since(began) < phase {
			time.Sleep(time.Second)
			if name == "chaos" {
				damage(ofPod, ofNIC)
				losses++
			}
		}
		after, now, most := cnitest.Spent(t, h.Process)
		t.Logf("%s, %v, %d losses: %v of processor time, %d MiB, %d MiB at most, %d healed", name, time.Since(began).Round(time.Second), losses, after-before, now, most, strings.Count(h.said(), "msg=healed"))
	}
}

// A pod can fill a table that is looked at. The healer, which has a limit of memory for all
// pods, heals the others.
func TestAPodWithManyRoutesDoesNotEndTheHealer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	attacker, other := w.pod(t), w.pod(t)
	a := w.attach(w.rail(0), attacker, "net1")
	a.mustAdd(t)
	w.attach(w.rail(0), other, "net1").mustAdd(t)
	const n = 200_000
	var script strings.Builder
	for i := range n {
		fmt.Fprintf(&script, "route add 10.%d.%d.%d/32 dev net1 table 100\n", i>>16, i>>8&255, i&255)
	}
	attacker.IP(t, script.String())
	h := w.healing(t, "all")
	other.IP(t, "route flush table 100")
	cnitest.Await(t, "the other pod is healed", func() bool { return strings.Contains(h.said(), "msg=healed") })
	cnitest.Await(t, "the reason is told", func() bool { return strings.Contains(h.said(), "more than 64 MiB of memory") })
	if _, _, most := cnitest.Spent(t, h.Process); most > 128 {
		t.Errorf("the healer took %d MiB", most)
	}
	a.mustDel(t)
}
