// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// healer is a rocectl heal that runs on a node.
type healer struct {
	*exec.Cmd
	mu  sync.Mutex
	log bytes.Buffer
}

func (h *healer) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.Write(b)
}

func (h *healer) said() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.String()
}

// contained runs a command with /proc/sys read-only, as in a container.
const contained = `mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec "$@"`

// healing starts rocectl heal with a level and the rights that its container has, and waits until
// it works. It ends with the test, or with kill.
func (n *node) healing(t testing.TB, level string) *healer {
	t.Helper()
	n.heal = level
	command := append([]string{"--mount", "--propagation", "slave", "sh", "-ec", contained, "sh"}, cnitest.AsHealer(t, "../..")...)
	h := &healer{Cmd: exec.Command("unshare", append(command, filepath.Join(programs, "rocectl"), "heal")...)}
	h.Stderr = h
	must(t, n.enter(h.Start))
	t.Cleanup(func() {
		h.kill()
		if t.Failed() {
			t.Logf("rocectl heal said\n%s", h.said())
		}
	})
	cnitest.Await(t, "rocectl heal runs", func() bool { return strings.Contains(h.said(), "heal="+level) })
	return h
}

func (h *healer) kill() {
	if h.ProcessState == nil {
		_ = h.Process.Kill() // it may have ended
		_ = h.Wait()         // with whatever status
	}
}

// TestHealingBeginsOnlyWithRights: without CAP_SYS_ADMIN it cannot write settings of the kernel, and says so at once.
func TestHealingBeginsOnlyWithRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.heal = "all"
	cmd := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-ec", contained, "sh",
		"setpriv", "--inh-caps", "-all", "--bounding-set", "-sys_admin", filepath.Join(programs, "rocectl"), "heal")
	var said bytes.Buffer
	cmd.Stderr = &said
	must(t, w.enter(cmd.Start))
	end := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer end.Stop()
	if err := cmd.Wait(); err == nil || !strings.Contains(said.String(), `make writable "/proc/sys"`) || !strings.Contains(said.String(), "CAP_SYS_ADMIN") {
		t.Errorf("got %v and\n%s", err, &said)
	}
}

// steersOnly are the losses that leave all addresses and links.
func steersOnly(name string) bool {
	return name == "the routes are gone" || name == "the rules are gone"
}

// Each loss is made up for at once, also one that came while no healer ran.
func TestLossesAreHealed(t *testing.T) {
	t.Parallel()
	for i, l := range losses {
		first := i%2 == 0 // or the healer starts then
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			a := w.attach(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}), p, "net1")
			level := "all"
			if steersOnly(l.name) {
				level = "routes"
			}
			if first {
				w.healing(t, level)
			}
			res := a.mustAdd(t)
			p.IP(t, "rule add from 192.0.2.1 lookup 100 priority 32000\nroute add 192.0.2.0/24 dev eth0 table 4711")
			whole := sorted(p.snapshot(t))
			p.IP(t, strings.NewReplacer("ADDR4", addrs(res)[0].String(), "ADDR6", addrs(res)[1].String()).Replace(l.script))
			if !first {
				w.healing(t, level)
			}
			cnitest.Await(t, "the pod is as it was", func() bool { return slices.Equal(whole, sorted(p.look(t))) })
			out, err := w.rocectl("trace", p.name)
			if err != nil || !strings.Contains(out, "HEAL") {
				t.Errorf("trace: %v\n%s\nwant a call HEAL", err, out)
			}
		})
	}
}

// With heal "routes", what needs more than routes stays as it is. The reason is told once.
func TestHealingOfRoutesChangesNoAddressAndNoLink(t *testing.T) {
	t.Parallel()
	for _, l := range losses {
		if l.name != "the link is gone" && l.name != "all addresses are gone" {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			a := w.attach(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}), p, "net1")
			res := a.mustAdd(t)
			h := w.healing(t, "routes")
			p.IP(t, strings.NewReplacer("ADDR4", addrs(res)[0].String(), "ADDR6", addrs(res)[1].String()).Replace(l.script))
			damaged := sorted(p.look(t))
			cnitest.Await(t, "the reason is told", func() bool { return strings.Contains(h.said(), "it misses more than routes and rules") })
			if diff := cmp.Diff(damaged, sorted(p.look(t))); diff != "" {
				t.Errorf("the pod was changed (-before +after)\n%s", diff)
			}
			p.IP(t, "link set dev eth0 down") // another look
			out, err := w.rocectl("trace", p.name)
			if err != nil || strings.Count(out, "misses more") != 1 {
				t.Errorf("trace: %v\n%s\nwant the reason once", err, out)
			}
			a.mustDel(t)
		})
	}
}

// A healer that is off opens no socket: nothing of the kernel reaches it.
func TestHealingThatIsOffHasNoSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	h := w.healing(t, "off")
	links, err := filepath.Glob("/proc/" + strconv.Itoa(h.Process.Pid) + "/fd/*")
	must(t, err)
	out, err := exec.Command("readlink", links...).Output()
	if err != nil || strings.Contains(string(out), "socket:") || strings.Contains(string(out), "inotify") {
		t.Errorf("readlink: %v\n%s\nwant no socket", err, out)
	}
}

// A healer that is told to stop does, and needs no SIGKILL.
func TestHealingEndsWithSIGTERM(t *testing.T) {
	t.Parallel()
	h := newWorld(t, 1).healing(t, "routes")
	must(t, h.Process.Signal(unix.SIGTERM))
	late := time.AfterFunc(cnitest.Patience, func() { _ = h.Process.Kill() })
	defer late.Stop()
	if err := h.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v, want success", err)
	}
}

// What another program has put in the place of ours stays, however often it is looked at.
func TestHealingLeavesAloneWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ pod, leaf, says string }{
		"an interface that is different":     {pod: "link set dev net1 type macvlan mode private\nlink set dev net1 down", says: "macvlan"},
		"a route that leads elsewhere":       {pod: "route del default table 100\nroute add default via 172.16.10.253 dev net1 table 100 proto 4", says: "172.16.10.253"},
		"an address that another host took":  {pod: "addr del ADDR/24 dev net1", leaf: "addr add ADDR/24 dev leaf0", says: "ADDR"},
		"an address of the pod's own":        {pod: "addr add 172.16.10.99/24 dev net1\nrule del from ADDR lookup 100"},
		"a rule with the priority of ours":   {pod: "rule del from ADDR unreachable\nrule add from 192.0.2.7 unreachable priority 32001"},
		"a table that the pod's program has": {pod: "route add 198.51.100.0/24 dev eth0 table 100\nrule del from ADDR lookup 100"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			fill := strings.NewReplacer("ADDR", addrOfResult(t, w.attach(w.rail(0), p, "net1").mustAdd(t)).String())
			h := w.healing(t, "all")
			if tt.leaf != "" {
				w.leaf.IP(t, fill.Replace(tt.leaf))
			}
			p.IP(t, fill.Replace(tt.pod))
			damaged := sorted(p.look(t))
			if tt.says == "" { // ours is made again beside it
				cnitest.Await(t, "it is healed", func() bool { return strings.Contains(h.said(), "msg=healed") })
				for _, line := range damaged {
					if !slices.Contains(sorted(p.look(t)), line) {
						t.Errorf("%q is gone", line)
					}
				}
				return
			}
			cnitest.Await(t, "the reason is told", func() bool { return strings.Contains(h.said(), fill.Replace(tt.says)) })
			if diff := cmp.Diff(damaged, sorted(p.look(t))); diff != "" {
				t.Errorf("the pod was changed (-before +after)\n%s", diff)
			}
		})
	}
}

// A pod that is deleted while it is healed leaves nothing: DEL waits for the repair, or the
// repair finds no record.
func TestDELDuringHealing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.healing(t, "all")
	for i := range 6 {
		p := w.pod(t)
		before := p.snapshot(t)
		a := w.attach(w.rail(0), p, "net1")
		addr := addrOfResult(t, a.mustAdd(t)).String()
		p.IP(t, "addr del "+addr+"/24 dev net1")
		if i%2 == 0 { // the conflict probe runs, with the link up again
			cnitest.Await(t, "it is being healed", func() bool { return w.busy(a) })
		}
		a.mustDel(t)
		p.unchanged(t, before)
	}
	w.mustBeClean(t)
}

// busy says whether a process has the lock of an attachment's container.
func (n *node) busy(a attachment) bool {
	f, err := os.Open(filepath.Join(n.state, "attachments", a.id, "lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK
}

// mustBeIntact checks all attachments of the node.
func (n *node) mustBeIntact(t *testing.T) {
	t.Helper()
	n.mustRocectl(t, "check")
}
