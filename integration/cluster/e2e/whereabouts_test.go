// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
)

// whereabouts installs what its DaemonSet installs, but its reconciler.
func (n *node) whereabouts(t *testing.T) {
	t.Helper()
	const folder = "/etc/cni/net.d/whereabouts.d"
	must(t, os.MkdirAll(folder, 0o755))
	must(t, n.WriteKubeconfig(folder+"/whereabouts.kubeconfig", n.Admin().BearerToken))
	config := `{"datastore": "kubernetes", "kubernetes": {"kubeconfig": "` + folder + `/whereabouts.kubeconfig"}, "reconciler_cron_expression": "@every 1s"}`
	must(t, os.WriteFile(folder+"/whereabouts.conf", []byte(config), 0o600))
	n.kubectl(t, "", "apply", "-f", filepath.Join(bin, "whereabouts-crds"))
	n.kubectl(t, "", "wait", "--for=condition=Established", "crd/ippools.whereabouts.cni.cncf.io", "crd/overlappingrangeipreservations.whereabouts.cni.cncf.io")
}

// reconciler starts that of whereabouts, which looks each second.
func (n *node) reconciler(t *testing.T) {
	t.Helper()
	n.writeAccount(t)
	_, err := ground.MakeNode(t.Context(), n.admin, "by-hand", ground.MachineID("by-hand"), nil)
	must(t, err)
	t.Cleanup(func() {
		must(t, n.admin.CoreV1().Nodes().Delete(context.Background(), "by-hand", meta.DeleteOptions{}))
	})
	cmd := exec.Command(filepath.Join(bin, "whereabouts-controlloop"))
	cmd.Env = append(os.Environ(), "NODENAME=by-hand", "KUBERNETES_SERVICE_HOST="+service.Addr().String(), fmt.Sprintf("KUBERNETES_SERVICE_PORT=%d", service.Port()))
	p, err := ground.StartProcess(t.Context(), "/var/log/whereabouts.log", cmd, func(context.Context) error {
		text, err := os.ReadFile("/var/log/whereabouts.log")
		if err == nil && !strings.Contains(string(text), "reconciler success") {
			return errors.New("it has not looked yet")
		}
		return err
	})
	must(t, err)
	t.Cleanup(func() { must(t, p.Kill()) })
}

// reserved returns the pods that have an address of whereabouts, each once for an address.
func (n *node) reserved(t *testing.T) []string {
	t.Helper()
	var all struct {
		Items []struct {
			Kind string
			Spec struct {
				PodRef      string
				Allocations map[string]struct{ PodRef string }
			}
		}
	}
	must(t, json.Unmarshal([]byte(n.kubectl(t, "", "get", "ippools.whereabouts.cni.cncf.io,overlappingrangeipreservations.whereabouts.cni.cncf.io", "-A", "-o", "json")), &all))
	pods, inCluster := []string{}, []string{}
	for _, i := range all.Items {
		for _, a := range i.Spec.Allocations {
			pods = append(pods, strings.TrimPrefix(a.PodRef, "default/"))
		}
		if i.Spec.PodRef != "" {
			inCluster = append(inCluster, strings.TrimPrefix(i.Spec.PodRef, "default/"))
		}
	}
	slices.Sort(pods)
	slices.Sort(inCluster)
	if diff := cmp.Diff(pods, inCluster); diff != "" {
		t.Errorf("whereabouts has other reservations in the cluster than in its pools (-pools +cluster)\n%s", diff)
	}
	return pods
}

func (n *node) mustReserve(t *testing.T, when string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), n.reserved(t)); diff != "" {
		t.Errorf("%s, whereabouts has addresses of (-want +got)\n%s", when, diff)
	}
}

// address returns the address of net1, which network-status and the namespace must agree on.
func (s *sandbox) address(t *testing.T) netip.Addr {
	t.Helper()
	for _, i := range s.node.statuses(t, s.Name) {
		if i.Interface == "net1" && len(i.IPs) == 1 && strings.Contains(s.inside(t, "ip", "-o", "addr", "show", "dev", "net1"), " "+i.IPs[0]+"/24 ") {
			return netip.MustParseAddr(i.IPs[0])
		}
	}
	t.Fatalf("%s has no net1 with an address:\n%s", s.Name, s.inside(t, "ip", "addr"))
	return netip.Addr{}
}

// direct returns the sandbox with a network that is called without Multus. What Multus has
// cached of it counts.
func (s *sandbox) direct(t *testing.T, config map[string]any) *sandbox {
	t.Helper()
	if config["plugins"] == nil {
		config = map[string]any{"cniVersion": "1.0.0", "name": config["name"], "plugins": []any{config}}
	}
	text, err := json.Marshal(config)
	must(t, err)
	out, conf := *s, *s.conf
	conf.IfName = "net1"
	out.conf, out.cni = &conf, libcni.NewCNIConfigWithCacheDir([]string{programs, plugins}, "/var/lib/cni", nil)
	out.list, err = libcni.ConfListFromBytes(text)
	must(t, err)
	return &out
}

func (s *sandbox) tryDel() error {
	return s.on(func() error { return s.cni.DelNetworkList(context.Background(), s.list, s.conf) })
}

func (s *sandbox) check() error {
	return s.on(func() error { return s.cni.CheckNetworkList(context.Background(), s.list, s.conf) })
}

// atOnce does something with each of several pods, and fails the test for each error.
func atOnce(t *testing.T, pods []*sandbox, do func(*sandbox) error) {
	t.Helper()
	var all sync.WaitGroup
	for _, s := range pods {
		all.Go(func() {
			if err := do(s); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// fromWhereabouts is a network of roce with addresses of whereabouts, behindMacvlan one of
// macvlan with these addresses in front of roce.
var (
	fromWhereabouts = map[string]any{
		"cniVersion": "1.0.0", "type": "roce", "name": "wa", "rdma": map[string]any{"mode": "off"}, "master": "rail0", "ipam": rangeOfWhereabouts,
	}
	behindMacvlan = map[string]any{"cniVersion": "1.0.0", "name": "wa-chained", "plugins": []any{
		map[string]any{"type": "macvlan", "master": "rail0", "ipam": rangeOfWhereabouts},
		map[string]any{"type": "roce", "rdma": map[string]any{"mode": "off"}},
	}}
	rangeOfWhereabouts = map[string]any{
		"type": "whereabouts", "range": "172.16.10.0/24", "range_start": "172.16.10.64", "range_end": "172.16.10.127", "gateway": "172.16.10.254",
	}
)

func TestTenPodsAtOnceGetAddressesOfWhereabouts(t *testing.T) {
	n := theNode(t)
	n.whereabouts(t)
	n.network(t, "wa", fromWhereabouts)
	n.network(t, "wa-chained", behindMacvlan)
	var pods []*sandbox
	var names []string
	for i := range 10 {
		s := n.sandbox(t, fmt.Sprintf("wa-%d", i), []string{"wa", "wa-chained"}[i%2])
		pods, names = append(pods, s), append(names, s.Name)
	}
	atOnce(t, pods, func(s *sandbox) error { return s.tryAdd(t) })
	n.mustReserve(t, "after ADD", names...)
	owner := map[netip.Addr]string{}
	for _, s := range pods {
		if other := owner[s.address(t)]; other != "" {
			t.Errorf("%s and %s have %v", other, s.Name, s.address(t))
		}
		owner[s.address(t)] = s.Name
		if s != pods[0] { // its own lo is down
			pods[0].inside(t, "ping", "-n", "-c1", "-w20", s.address(t).String())
		}
	}

	// whereabouts cannot check. That is an error of macvlan, and none of roce.
	roce, macvlan := pods[0].direct(t, fromWhereabouts), pods[1].direct(t, behindMacvlan)
	if err := roce.check(); err != nil {
		t.Errorf("CHECK of a healthy pod: %v", err)
	}
	if err := macvlan.check(); err == nil || !strings.Contains(err.Error(), "CHECK method is not implemented") {
		t.Errorf("CHECK of macvlan: got %v, want what whereabouts says", err)
	}
	n.rocectl(t, "check")
	roce.inside(t, "ip", "route", "flush", "table", "100")
	if err := roce.check(); err == nil || !strings.Contains(err.Error(), "roce[110]") {
		t.Errorf("CHECK of a pod without its routes: %v", err)
	}

	atOnce(t, pods, (*sandbox).tryDel)
	for _, s := range pods {
		s.isBare(t)
	}
	n.mustReserve(t, "after DEL")
}

// TestWhereaboutsLosesNoAddressOfRoceWithoutTheAPIServer calls ADD without Multus, which
// would itself wait for the API server.
func TestWhereaboutsLosesNoAddressOfRoceWithoutTheAPIServer(t *testing.T) {
	n := theNode(t)
	n.whereabouts(t)
	n.network(t, "wa", fromWhereabouts)
	n.network(t, "wa-chained", behindMacvlan)
	living, deleted, chained := n.sandbox(t, "wa-living", "wa"), n.sandbox(t, "wa-deleted", "wa"), n.sandbox(t, "wa-deleted-chained", "wa-chained")
	for _, s := range []*sandbox{living, deleted, chained} {
		s.add(t)
	}
	late := n.sandbox(t, "wa-late", "wa").direct(t, fromWhereabouts)

	must(t, n.KillServer())
	back := sync.OnceValue(func() error { return n.StartServer(context.Background()) })
	t.Cleanup(func() { must(t, back()) })
	errs := map[*sandbox]error{}
	var all sync.WaitGroup
	var lock sync.Mutex
	for s, do := range map[*sandbox]func() error{late: func() error { return late.tryAdd(t) }, deleted: deleted.tryDel, chained: chained.tryDel} {
		all.Go(func() {
			err := do()
			lock.Lock()
			defer lock.Unlock()
			errs[s] = err
		})
	}
	all.Wait()
	for s, verb := range map[*sandbox]string{late: "ADD", deleted: "DEL"} {
		for _, want := range []string{"roce[11]", `IPAM plugin "whereabouts": its ` + verb + " did not end in ", service.String()} {
			if errs[s] == nil || !strings.Contains(errs[s].Error(), want) {
				t.Errorf("%s of %s: got %v, want %q", verb, s.Name, errs[s], want)
			}
		}
	}
	if errs[chained] != nil {
		t.Errorf("DEL of macvlan, when whereabouts releases nothing and says that it did: %v", errs[chained])
	}
	late.isBare(t)
	if left := deleted.inside(t, "ip", "-o", "addr", "show", "dev", "net1"); strings.Contains(left, "172.16.10.") {
		t.Errorf("the address that is not released is still there:\n%s", left)
	}

	must(t, back())
	must(t, late.tryDel())
	must(t, deleted.tryDel())
	deleted.isBare(t)
	n.mustReserve(t, "after DEL", chained.Name, living.Name)

	// Its reconciler finds what macvlan has lost, and leaves the living pod alone.
	chained.remove(t)
	n.reconciler(t)
	eventually(t, "the reconciler of whereabouts", func(context.Context) error {
		if got := n.reserved(t); !slices.Equal(got, []string{living.Name}) {
			return fmt.Errorf("%v have addresses", got)
		}
		return nil
	})
	living.inside(t, "ping", "-n", "-c1", "-w20", "172.16.10.254")
	living.del(t)
	n.mustReserve(t, "in the end")
}

// TestLivingPodsMoveFromWhereaboutsInTwoStages applies what docs/migrating.md has, under
// the name of the network that pods have. As the page says, the pool has none of the
// addresses that whereabouts gives.
func TestLivingPodsMoveFromWhereaboutsInTwoStages(t *testing.T) {
	n := theNode(t)
	n.deploy(t)
	n.reaper(t)
	n.whereabouts(t)
	p := n.peer(t, "mover", 3)
	run(t, "ip", "-n", "leaf", "addr", "add", "172.16.40.254/24", "dev", "leaf")
	page, err := os.ReadFile("../../../docs/migrating.md")
	must(t, err)
	_, section, _ := strings.Cut(string(page), "## macvlan with whereabouts\n")
	_, before, _ := strings.Cut(section, "```yaml\n")
	before, _, _ = strings.Cut(before, "```\n")
	here := strings.NewReplacer("ens1f0np0", "rail0", "192.168.2.", "172.16.40.", `"type": "roce",`, `"type": "roce", "rdma": {"mode": "off"},`)
	apply := func(text string) { n.kubectl(t, here.Replace(text), "apply", "-f", "-") }
	t.Cleanup(func() { n.kubectl(t, "", "delete", "net-attach-def/storage") })

	apply(before)
	var old []*sandbox
	for i := range 5 {
		s := p.pod(t, fmt.Sprintf("stage0-%d", i), "storage")
		s.add(t)
		old = append(old, s)
	}

	first, _, _ := strings.Cut(before, `,
        {"type": "sbr"}`)
	apply(strings.ReplaceAll(first, `"type": "macvlan"`, `"type": "roce"`) + "\n      ]\n    }\n")
	between := p.pod(t, "stage1", "storage")
	between.add(t)
	must(t, between.check())
	between.inside(t, "ping", "-n", "-c1", "-w20", old[0].address(t).String())
	must(t, old[4].tryDel())
	old[4].isBare(t)
	n.mustReserve(t, "in the first stage", "stage0-0", "stage0-1", "stage0-2", "stage0-3", "stage1")

	second, err := os.ReadFile("../../../conf-examples/migrate-whereabouts.yaml")
	must(t, err)
	apply(strings.ReplaceAll(string(second), "192.168.2.128-192.168.2.251", "172.16.40.1-172.16.40.127"))
	t.Cleanup(func() { n.kubectl(t, "", "delete", "railpool", "storage", "--wait=false") })
	eventually(t, "a block of the node", func(context.Context) error {
		_, err := os.Stat(filepath.Join(p.state, "pools", "storage", "ranges"))
		return err
	})
	after := p.pod(t, "stage2", "storage")
	eventually(t, "a pod of the second stage", func(context.Context) error { return after.tryAdd(t) })
	must(t, after.check())
	for _, s := range append(old[:4:4], between) {
		if s.address(t) == after.address(t) {
			t.Errorf("%s and %s have %v", s.Name, after.Name, after.address(t))
		}
		after.inside(t, "ping", "-n", "-c1", "-w20", s.address(t).String())
		must(t, s.tryDel())
		s.isBare(t)
	}
	n.mustReserve(t, "in the end")
	after.holds(t, 1)
	after.del(t)
	after.isBare(t)
}
