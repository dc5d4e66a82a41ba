// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// chaos is how long TestChaosConverges damages pods.
var chaos = flag.Duration("chaos", 5*time.Second, "how long pods are damaged")

// faults are what happens to a rail of a pod with addresses ADDR: in the pod, or to the NIC.
var faults = []string{
	"ip -n POD route flush table TABLE", "ip -n POD rule del from ADDR lookup TABLE", "ip -n POD rule del from ADDR unreachable",
	"ip -n POD addr flush dev LINK", "ip -n POD addr del ADDR/24 dev LINK", "ip -n POD link del LINK",
	"ip -n POD link set LINK down", "ip -n POD link set LINK down; ip -n POD link set LINK up",
	"ip link set NIC down; ip link set NIC up",
	"ip link set NIC down; ip link set NIC name away; ip link set away name NIC; ip link set NIC up",
	"kill",
}

// Pods with eight rails lose things at random, NICs go down and get other names for a moment,
// and the healer is killed. In the end all pods are as they were, with what others have made
// in them.
func TestChaosConverges(t *testing.T) {
	const pods = 4
	w := newWorld(t, rails)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	type victim struct {
		*pod
		addrs []string
		whole []string
	}
	var victims []victim
	for range pods {
		p := w.pod(t)
		v := victim{pod: p}
		for _, a := range addrs(w.attach(w.listed(cnitest.Subnet4), p, "net1").mustAdd(t)) {
			v.addrs = append(v.addrs, a.String())
		}
		p.IP(t, "rule add from 192.0.2.1 lookup 4711 priority 32000\nroute add 192.0.2.0/24 dev eth0 table 4711")
		v.whole = sorted(p.snapshot(t))
		victims = append(victims, v)
	}
	h := w.healing(t, "all")
	for began := time.Now(); time.Since(began) < *chaos; {
		v, i, fault := victims[r.IntN(pods)], r.IntN(rails), faults[r.IntN(len(faults))]
		if fault == "kill" {
			h.kill()
			h = w.healing(t, "all")
			continue
		}
		script := strings.NewReplacer("POD", v.namespace.Name, "LINK", railName(i), "NIC", fmt.Sprintf("rail%d", i), "ADDR", v.addrs[i], "TABLE", strconv.Itoa(100+i)).Replace(fault)
		_, _ = w.Run("sh", "-c", script) // it may be lost already
		time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
	}
	h.kill() // the next one knows no pause
	w.healing(t, "all")
	for _, v := range victims {
		for began := time.Now(); time.Since(began) < time.Minute && !slices.Equal(v.whole, sorted(v.look(t))); {
			time.Sleep(100 * time.Millisecond)
		}
		if diff := cmp.Diff(v.whole, sorted(v.look(t))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", v.name, diff)
		}
	}
	w.mustBeIntact(t)
}
