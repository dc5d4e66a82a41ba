// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// cut loses what is behind the first page after the meta pages and the list of free ones.
func cut(file []byte) []byte { return file[:3*4096+7] }

// lonely returns a rail with addresses that no other test uses, and most probably no
// other run of the tests beside this one: repair looks into every namespace of the machine.
func lonely(i int) int {
	return 20 + 2*(os.Getpid()%110) + i // subnets have numbers up to 255
}

// tenants returns two pods with an address of one pool: one of roce, and one of
// another main plugin with roce-ipam, which keeps no record. The rail is a lonely
// one.
func tenants(t *testing.T, rail int) (w *world, ours, theirs attachment, pods [2]*pod, addrs [2]netip.Addr) {
	t.Helper()
	w = newWorld(t, 0)
	w.wire(t, rail)
	w.number(t, rail)
	pods = [2]*pod{w.pod(t), w.pod(t)}
	ours = w.attach(w.rail(rail).With("ipam.pool", "shared"), pods[0], "net1")
	addrs[0] = addrOfResult(t, ours.mustAdd(t))
	theirs = w.attach(network{
		"cniVersion": "1.0.0", "name": "their-net", "type": "macvlan", "master": fmt.Sprintf("rail%d", rail),
		"ipam": map[string]any{"type": "roce-ipam", "pool": "shared", "subnets": []any{cnitest.Subnet4(rail)}},
	}, pods[1], "net1")
	addrs[1] = addTheirs(t, theirs, pods[1])
	return w, ours, theirs, pods, addrs
}

// addTheirs does what a main plugin does with roce-ipam: it asks for an address
// and gives it to an interface.
func addTheirs(t *testing.T, a attachment, p *pod) netip.Addr {
	t.Helper()
	out, err := a.raw(t, "roce-ipam", "ADD", a.text(t))
	if err != nil {
		t.Fatal(err)
	}
	ips := parse(t, string(out)).(map[string]any)["ips"].([]any)
	prefix := netip.MustParsePrefix(ips[0].(map[string]any)["address"].(string))
	p.IP(t, "link add net1 type veth peer name peer1\nlink set dev net1 up\naddr add "+prefix.String()+" dev net1")
	return prefix.Addr()
}

func TestLeasesAreRebuiltFromWhatTheNodeKnows(t *testing.T) {
	t.Parallel()
	w, ours, theirs, pods, addrs := tenants(t, lonely(0))
	w.damageLeases(t, cut)
	next := w.pod(t)
	other := w.attach(ours.network, next, "net1")
	if err := other.mustFail(t, 107); !strings.Contains(err.Details, "rocectl repair") {
		t.Errorf("the hint is %q, want rocectl repair", err.Details)
	}
	if _, err := theirs.raw(t, "roce-ipam", "CHECK", theirs.text(t)); err == nil || err.Code != 107 {
		t.Errorf("CHECK of roce-ipam: got %v, want 107", err)
	}
	w.repairLeases(t, addrs[:])
	w.mustStand(t, ours, theirs)

	taken := []any{addrs[0].String(), addrs[1].String()}
	other.network = other.network.With("ipam.subnets.0.ranges", taken)
	other.mustFail(t, 101)
	free := netip.MustParseAddr(fmt.Sprintf("172.16.%d.60", 10+lonely(0)))
	other.network = other.network.With("ipam.subnets.0.ranges", append(taken, free.String()))
	if got := addrOfResult(t, other.mustAdd(t)); got != free {
		t.Fatalf("another pod gets %v, want %v", got, free)
	}
	other.mustDel(t)
	other.network = other.network.With("args.cni.ips", []any{addrs[1].String()})
	other.mustFail(t, 11)

	ours.mustDel(t)
	if _, err := theirs.raw(t, "roce-ipam", "DEL", theirs.text(t)); err != nil {
		t.Errorf("DEL of roce-ipam: %v", err)
	}
	pods[1].IP(t, "link del net1")
	w.noneLeased(t, addrs[:])
	if got := addrOfResult(t, other.mustAdd(t)); got != addrs[1] {
		t.Errorf("got %v, want %v, which is given back", got, addrs[1])
	}
	other.mustDel(t)
	w.noneLeased(t, addrs[:])
}

// A DEL that found the leases unreadable has taken the interface away; when they
// are rebuilt, the runtime's next one ends.
func TestDelEndsAfterTheLeasesWereRebuilt(t *testing.T) {
	t.Parallel()
	w, ours, theirs, pods, addrs := tenants(t, lonely(1))
	w.damageLeases(t, func(b []byte) []byte { clear(b); return b })
	if err := ours.del(t); err == nil || err.Code != 107 {
		t.Errorf("DEL: got %v, want 107", err)
	}
	if _, err := theirs.raw(t, "roce-ipam", "DEL", theirs.text(t)); err == nil || err.Code != 107 {
		t.Errorf("DEL of roce-ipam: got %v, want 107", err)
	}
	pods[1].Remove(t) // and so is what only its namespace told
	if out, err := w.rocectl("repair", "--yes"); err != nil {
		t.Fatalf("repair --yes: %v\n%s", err, out)
	}
	ours.mustDel(t)
	theirs.netns = ""
	if _, err := theirs.raw(t, "roce-ipam", "DEL", theirs.text(t)); err != nil {
		t.Errorf("DEL of roce-ipam: %v", err)
	}
	w.noneLeased(t, addrs[:])
	for _, name := range w.files(t) {
		if strings.HasPrefix(name, "attachments/") && name != "attachments/" {
			t.Errorf("%s is left", name)
		}
	}
}

// damageLeases damages the lease database.
func (w *world) damageLeases(t *testing.T, damage func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(w.state, "leases.db")
	file, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, damage(file), 0o600))
}

// repairLeases shows what rocectl would do about the leases, and does it.
func (w *world) repairLeases(t *testing.T, addrs []netip.Addr) {
	t.Helper()
	path := filepath.Join(w.state, "leases.db")
	before, err := os.ReadFile(path)
	must(t, err)
	shown, err := w.rocectl("repair")
	if err != nil || !strings.HasPrefix(shown, "# lease database: damaged: ") {
		t.Fatalf("repair: %v\n%s", err, shown)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("looking has changed the database (%v)", err)
	}
	done, err := w.rocectl("repair", "--yes")
	if err != nil || !strings.Contains(done, ": rebuilt\n") || !strings.Contains(done, "net1: intact\n") {
		t.Fatalf("repair --yes: %v\n%s", err, done)
	}
	for _, a := range addrs {
		for _, out := range []string{shown, done} {
			if !strings.Contains(out, " "+a.String()+" ") {
				t.Errorf("repair does not say what becomes of %v:\n%s", a, out)
			}
		}
	}
	if kept, err := os.ReadFile(path + ".damaged"); err != nil || string(kept) != string(before) {
		t.Errorf("the damaged file is not kept (%v)", err)
	}
}

// mustStand checks that both attachments are as they were made.
func (w *world) mustStand(t *testing.T, ours, theirs attachment) {
	t.Helper()
	w.mustRocectl(t, "check")
	ours.mustCheck(t)
	if _, err := theirs.raw(t, "roce-ipam", "CHECK", theirs.text(t)); err != nil {
		t.Errorf("CHECK of roce-ipam: %v", err)
	}
}

// noneLeased checks that none of some addresses is leased. There are others:
// those of the namespaces of other tests.
func (w *world) noneLeased(t *testing.T, addrs []netip.Addr) {
	t.Helper()
	for _, l := range w.leases(t, "leased") {
		_, addr, _ := strings.Cut(l, " ")
		if slices.Contains(addrs, netip.MustParseAddr(addr)) || strings.HasPrefix(l, "shared ") {
			t.Errorf("%s is leased", l)
		}
	}
}
