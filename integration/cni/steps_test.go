// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// tried calls ADD, again while it says so.
func (m *machine) tried(a attachment) (*current.Result, uint) {
	m.t.Helper()
	for end := time.Now().Add(cnitest.Patience); ; {
		start := time.Now()
		res, err := a.add(m.t)
		switch {
		case err == nil:
			m.took["ADD"] = max(m.took["ADD"], time.Since(start))
			return res, 0
		case err.Code != 11 || time.Now().After(end):
			m.tell("    %v", err)
			return nil, err.Code
		}
	}
}

func (m *machine) add(s *slot) {
	m.t.Helper()
	res, code := m.tried(s.attachment)
	m.added(s, res, code)
}

// added judges the outcome of an ADD that may succeed.
func (m *machine) added(s *slot, res *current.Result, code uint) {
	m.t.Helper()
	switch {
	case s.in.dead && code == 8:
	case s.in.dead:
		m.t.Errorf("ADD in a pod that is gone: got error %d, want 8", code)
	case code == 0:
		m.stands(s, res)
	case code == 101 && s.outcome != live && m.mayBeFull(s):
		s.becomes(missing)
	default:
		m.t.Errorf("ADD of what was %s: error %d", s.outcome, code)
	}
}

// addBoth adds both interfaces of a pod at once, as no runtime should.
func (m *machine) addBoth(s *slot) {
	m.t.Helper()
	var calls sync.WaitGroup
	results, errs := make([]*current.Result, 2), make([]*types.Error, 2)
	for i, o := range s.in.slots {
		calls.Go(func() { results[i], errs[i] = o.attachment.add(m.t) })
	}
	calls.Wait()
	for _, failed := range []bool{false, true} { // what failed may have lost an address to the other one
		for i, o := range s.in.slots {
			switch {
			case failed != (errs[i] != nil):
			case !failed:
				m.added(o, results[i], 0)
			case errs[i].Code == 11:
				m.add(o)
			default:
				m.tell("    %v", errs[i])
				m.added(o, nil, errs[i].Code)
			}
		}
	}
}

// addDuringDel has a runtime that gave an ADD up, but did not kill it. Either
// call may come last.
func (m *machine) addDuringDel(s *slot) {
	m.t.Helper()
	var calls sync.WaitGroup
	calls.Go(func() {
		if err := s.attachment.del(m.t); err != nil {
			m.t.Errorf("DEL beside ADD: %v", err)
		}
	})
	_, code := m.tried(s.attachment)
	calls.Wait()
	switch {
	case code == 0 && slices.Contains(m.files(m.t), filepath.Join("attachments", s.id, s.ifName+".json")):
		if _, err := s.raw(m.t, "roce", "CHECK", s.text(m.t)); err != nil {
			m.t.Errorf("CHECK after an ADD beside a DEL: %v", err)
		}
		s.becomes(torn) // its addresses may be new
		m.add(s)        // again; now there is a result in libcni's cache, too
	case code == 0, code == 8 && s.in.dead, code == 101 && m.mayBeFull(s):
		s.becomes(missing)
	default:
		m.t.Errorf("ADD beside a DEL: error %d", code)
	}
}

// addElsewhere adds what stands to another network, which must fail and change
// nothing, and anything else after a DEL.
func (m *machine) addElsewhere(s *slot) {
	m.t.Helper()
	a := s.attachment
	a.network = m.nets[1-slices.IndexFunc(m.nets, func(c network) bool { return c["name"] == a.network["name"] })]
	if s.outcome == live {
		if _, code := m.tried(a); code != 4 {
			m.t.Errorf("ADD to another network: got error %d, want 4", code)
		}
		return
	}
	m.del(s)
	s.attachment = a
	m.add(s)
}

// addInVain adds with a configuration with which it cannot succeed. What
// stands whole already is left alone.
func (m *machine) addInVain(s *slot) {
	m.t.Helper()
	a := s.attachment
	switch m.rnd.IntN(3) {
	case 0:
		a.network = a.network.With("ipam.subnets.0.gateway", "172.16.10.253").With("probe.gateway.timeout", "5ms")
	case 1:
		a.network = a.network.With("sysctl", map[string]any{"net.ipv4.conf.IFNAME.arp_ignore": "many"})
	case 2:
		a.network = a.network.With("master", "rail9")
	}
	res, code := m.tried(a)
	switch {
	case s.outcome != missing && code == 0: // a DEL may have been killed before it did anything
		m.stands(s, res)
	case s.outcome == live, code == 0, code == 199, s.in.dead && code != 8:
		m.t.Errorf("ADD that cannot succeed, of what was %s: error %d", s.outcome, code)
	case !s.in.dead:
		s.becomes(missing)
	}
}

// kill starts a call and kills it somewhere on its way. It returns whether the
// call came to its end before, and with what status. then runs while the
// process may still be in a system call.
func (m *machine) kill(s *slot, command string, then func()) (done, ok bool) {
	m.t.Helper()
	after := time.Duration(m.rnd.Float64() * float64(m.took[command]))
	cmd := s.start(m.t, command)
	<-time.After(after)
	_ = cmd.Process.Kill() // it may be done already
	then()
	_ = cmd.Wait()
	m.tell("    killed after %v: %v", after.Round(100*time.Microsecond), cmd.ProcessState)
	done = cmd.ProcessState.Exited()
	if done {
		m.took[command] = m.took[command] * 4 / 5
	}
	return done, cmd.ProcessState.Success()
}

func (m *machine) addKilled(s *slot) {
	m.t.Helper()
	done, ok := m.kill(s, "ADD", func() {})
	switch {
	case done && ok:
		m.add(s) // again
	case done && s.outcome == live:
		m.t.Error("ADD of what stands: it failed")
	case done && !s.in.dead:
		s.becomes(missing)
	case !done && s.outcome == missing:
		s.becomes(torn)
	}
	s.litter = s.litter || !done
}

func (m *machine) addOvertaken(s *slot) {
	m.t.Helper()
	m.kill(s, "ADD", func() { m.del(s) })
}

func (m *machine) del(s *slot) {
	m.t.Helper()
	start := time.Now()
	if err := s.attachment.del(m.t); err != nil {
		m.t.Errorf("DEL of what was %s: %v", s.outcome, err)
	}
	m.took["DEL"] = max(m.took["DEL"], time.Since(start))
	s.becomes(missing)
}

func (m *machine) delTwice(s *slot) {
	m.t.Helper()
	m.del(s)
	m.del(s)
}

func (m *machine) delKilled(s *slot) {
	m.t.Helper()
	done, ok := m.kill(s, "DEL", func() {})
	switch {
	case done && !ok:
		m.t.Errorf("DEL of what was %s failed", s.outcome)
	case done:
		m.del(s) // again
	case s.outcome == live:
		s.becomes(torn)
	}
	s.litter = s.litter || !done
}

// delUnrecorded has lost the record of what stands.
func (m *machine) delUnrecorded(s *slot) {
	m.t.Helper()
	if s.outcome == live {
		must(m.t, os.Remove(filepath.Join(m.state, "attachments", s.id, s.ifName+".json")))
	}
	m.del(s)
}

func (m *machine) check(s *slot) {
	m.t.Helper()
	_, err := s.raw(m.t, "roce", "CHECK", s.text(m.t))
	switch {
	case s.outcome == live:
		if err := s.attachment.check(m.t); err != nil {
			m.t.Errorf("CHECK of what stands: %v", err)
		}
	case s.outcome == missing && err == nil:
		m.t.Error("CHECK of what is not there: no error")
	}
}

// gc calls GC of the slot's network for a runtime that remembers most of what
// it added.
func (m *machine) gc(s *slot) {
	m.t.Helper()
	var known []attachment
	for _, o := range m.slots() {
		if m.rnd.IntN(6) > 0 && o.outcome != missing && o.network["name"] == s.network["name"] {
			known = append(known, o.attachment)
		}
	}
	if err := s.attachment.gc(m.t, "roce", valid(known...)); err != nil {
		m.t.Errorf("GC: %v", err)
	}
	m.collected(s.network, known)
}

// damage breaks what stands. CHECK must see it.
func (m *machine) damage(s *slot) {
	m.t.Helper()
	script := []string{"link del IF", "addr flush dev IF", "link set dev IF down", "rule del from ADDR priority 32000"}[m.rnd.IntN(4)]
	if s.outcome != live || s.in.dead {
		return
	}
	s.in.IP(m.t, strings.NewReplacer("IF", s.ifName, "ADDR", s.addrs[0].String()).Replace(script))
	s.becomes(torn)
	if err := s.attachment.check(m.t); err == nil {
		m.t.Errorf("CHECK after %q: no error", script)
	}
}

// vanish takes a pod away without a DEL. Another one comes in its place.
func (m *machine) vanish(s *slot) {
	m.t.Helper()
	if i := slices.Index(m.pods, s.in); i >= 0 {
		m.bury(s.in)
		m.pods[i] = m.tenant()
	}
}

// reboot takes all pods away and begins another boot. The state folder is on a
// disk.
func (m *machine) reboot(*slot) {
	m.t.Helper()
	for i, p := range m.pods {
		m.bury(p)
		m.pods[i] = m.tenant()
	}
	m.boots++
	m.boot = filepath.Join(m.t.TempDir(), "boot_id")
	must(m.t, os.WriteFile(m.boot, fmt.Appendf(nil, "00000000-0000-4000-8000-%012d\n", m.boots), 0o600))
}
