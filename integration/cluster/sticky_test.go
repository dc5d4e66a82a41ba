// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent/grant"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	confpool "github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile/nodefiletest"
)

var db0 = nodefile.Key{Namespace: "default", Pod: "db-0", Interface: "net1"}

// asks asks the agent, as ADDs that are tried again do.
func (m *machine) asks(k nodefile.Key) nodefile.Answer {
	m.t.Helper()
	var last string
	for end := time.Now().Add(grant.Patience + 2*time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		a, err := m.files().Ask("kept", k)
		if err == nil && a.Wait == "" {
			return a
		}
		last = fmt.Sprint(a.Wait, err)
	}
	m.t.Fatalf("%s does not answer: %s", m.name, last)
	return nodefile.Answer{}
}

// starts is an ADD that is granted what is kept.
func (m *machine) starts(k nodefile.Key, container string) [][]confpool.Subnet {
	m.t.Helper()
	a := m.asks(k)
	if !a.Granted() {
		m.t.Fatalf("%s: %s", m.name, a.None)
	}
	f, err := m.file("kept")
	must(m.t, err)
	m.leaseOf(f.Only(a), ipam.Owner{Network: "net", ContainerID: container, IfName: k.Interface, PodNamespace: k.Namespace, PodName: k.Pod})
	if late := nodefiletest.Now(m.t) - a.Until; late >= 0 {
		m.t.Fatalf("%s: the grant ended %v before the lease", m.name, late)
	}
	return a.Rails
}

// ends is a DEL.
func (m *machine) ends(container string) {
	m.t.Helper()
	must(m.t, m.book().Release(m.t.Context(), ipam.Key{ContainerID: container, IfName: "net1", Network: "net"}, netns.Ref{}))
}

// holds waits until the API server says that a node holds the slot of a pod.
func (m *machine) holds(k nodefile.Key) sticky.Lease {
	m.t.Helper()
	var out sticky.Lease
	eventually(m.t, m.name+" holds", func(ctx context.Context) error {
		all, err := api(m.t, m.Admin()).Leases().List(ctx, sticky.Query{Pool: "kept", Key: k})
		if err == nil && (len(all) != 1 || all[0].Spec.Holder != block.Owner{NodeName: m.name, MachineID: ground.MachineID(m.name)}) {
			err = fmt.Errorf("there is %+v", all)
		}
		if err == nil {
			out = all[0]
		}
		return err
	})
	return out
}

// TestAPodKeepsItsAddressesWhereverItRuns has two agents with the rights that are
// deployed: a pod goes from one to the other, and then from one that is stopped.
func TestAPodKeepsItsAddressesWhereverItRuns(t *testing.T) {
	t.Parallel()
	c := pooled(t)
	must(t, write(t, c, http.MethodPost, "RailPool", "kept", `spec: {template: {count: 2, subnets: [{subnet: '10.{rail+10}.0.0/22'}]}, sticky: {ttl: 24h, slots: 512-767}}`))
	mark(t, c, "kept")
	a, b := joins(t, c, "a"), joins(t, c, "b")
	for _, m := range []*machine{a, b} {
		m.start()
		m.healthy()
	}
	first := a.starts(db0, "c1")
	held := a.holds(db0)
	a.agent.kill()
	a.start()
	a.healthy()
	if same := a.asks(db0).Rails; !reflect.DeepEqual(same, first) {
		t.Errorf("after a restart of its agent it has %v, not %v", same, first)
	}
	eventually(t, "the agent affirms", func(ctx context.Context) error {
		now, err := api(t, c.Admin()).Leases().Get(ctx, held.Name)
		if err == nil && now.ResourceVersion == held.ResourceVersion {
			err = fmt.Errorf("it was not written")
		}
		return err
	})

	a.ends("c1")
	if moved := b.starts(db0, "c2"); !reflect.DeepEqual(moved, first) {
		t.Errorf("at the other node it has %v, not %v", moved, first)
	}
	if now := b.holds(db0); now.UID != held.UID {
		t.Errorf("it is another lease: %+v", now)
	}

	must(t, b.agent.cmd.Process.Signal(unix.SIGSTOP))
	began := time.Now()
	none := a.asks(db0)
	if none.Granted() || !strings.Contains(none.None, `node "b" holds`) || time.Since(began) < grant.Patience-time.Second {
		t.Errorf("after %v: %+v", time.Since(began), none)
	}
	must(t, b.agent.cmd.Process.Signal(unix.SIGCONT))
	b.healthy()
	b.holds(db0)
	must(t, client(t, c.Admin()).CoreV1().Nodes().Delete(t.Context(), "b", meta.DeleteOptions{}))
	out, err := exec.CommandContext(t.Context(), rocectl, "gc", "--cluster", "--once", "--kubeconfig", account(t, c, "roce-cni-gc", "a")).CombinedOutput()
	must(t, err)
	for _, want := range []string{"LEASE", held.Name, "default/db-0", "gone", "another node may have it when no pod is bound", "FOR PODS OF OTHER NODES"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it lacks %q:\n%s", want, out)
		}
	}
	b.ends("c2")
	eventually(t, "the slot is given back", func(ctx context.Context) error {
		now, err := api(t, c.Admin()).Leases().Get(ctx, held.Name)
		if err == nil && now.Spec.Holder != (block.Owner{}) {
			err = fmt.Errorf("it is %+v", now)
		}
		return err
	})
}
