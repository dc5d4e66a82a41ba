// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// machine is a world with random pods, and what there must be in it.
type machine struct {
	*world
	t      *testing.T
	rnd    *rand.Rand
	nets   []network // they share a pool; the second one is dual-stack
	pods   []*tenant
	gone   []*tenant
	before string // the node
	boots  int
	took   map[string]time.Duration // the last call of each kind
	story  []string
	counts map[string]int
}

// poolSize is smaller than the number of slots, so that the pool runs out.
const poolSize = 6

// tenant is a pod with two interfaces to be.
type tenant struct {
	*pod
	slots  []*slot
	dead   bool
	before string
	rest   string // what is there of others
}

// outcome is what became of an attachment.
type outcome string

const (
	missing outcome = "missing" // nothing of it may be there
	live    outcome = "live"    // it must be whole
	torn    outcome = "torn"    // a call was killed, or it was damaged: anything of it may be there
)

// slot is an interface of a pod.
type slot struct {
	attachment
	in      *tenant
	outcome outcome
	addrs   []netip.Addr // of a live one
	is      string       // what a live one looks like; "" until it was looked at
	// litter says that a killed call may have left the container's lock.
	litter bool
}

func (s *slot) becomes(f outcome) {
	s.outcome, s.addrs, s.is = f, nil, ""
	if f == missing {
		s.litter = false
	}
}

func newMachine(t *testing.T, seed uint64) *machine {
	t.Helper()
	w := newWorld(t, 0)
	w.bridge(t, 2)
	v4, v6 := cnitest.Subnet4(0), cnitest.Subnet6(0)
	v4["ranges"] = []any{fmt.Sprintf("172.16.10.64-172.16.10.%d", 64+poolSize-1)}
	shared := func(i int, subnets ...any) network {
		return w.rail(i).With("ipam.pool", "shared").With("ipam.subnets", subnets)
	}
	m := &machine{
		world: w, t: t, rnd: rand.New(rand.NewPCG(seed, 0)),
		nets:   []network{shared(0, v4), shared(1, v4, v6)},
		took:   map[string]time.Duration{"ADD": 60 * time.Millisecond, "DEL": 20 * time.Millisecond},
		story:  []string{fmt.Sprintf("replay: go test ./integration/cni -run 'TestRandomSequences' -sequences 1 -steps %d -time 10m -seed %d", *randomSteps, seed)},
		counts: map[string]int{},
	}
	// Another program also makes routes on the node.
	w.IP(t, `
		addr add 172.16.10.1/24 dev rail0
		rule add from 172.16.10.64/26 lookup 100 priority 32100
		route add 192.0.2.0/24 dev rail0 table 100`)
	for range 4 {
		m.pods = append(m.pods, m.tenant())
	}
	m.before = m.lookAtNode()
	return m
}

// tenant returns a new pod. It is connected to the leaf, so that the node is not
// changed by pods that come and go, and another program has made routes in it.
func (m *machine) tenant() *tenant {
	m.t.Helper()
	i := m.world.pods.Add(1)
	ns := newNamespace(m.t, fmt.Sprintf("%s-%d", strings.TrimSuffix(m.node.Name, "-node"), i))
	m.leaf.IP(m.t, fmt.Sprintf(`
		link add pod%[1]d type veth peer name eth0 netns %[2]s
		link set dev pod%[1]d addrgenmode none
		link set dev pod%[1]d up`, i, ns.Name))
	m.IP(m.t, "link add link rail0 name theirs netns "+ns.Name+" type macvlan mode bridge")
	ns.IP(m.t, fmt.Sprintf(`
		link set dev lo up
		link set dev eth0 addrgenmode none
		link set dev theirs addrgenmode none
		link set dev theirs alias roce:another/theirs
		addr add 10.244.0.2/24 dev eth0
		addr add 172.16.10.%d/24 dev theirs
		link set dev eth0 up
		link set dev theirs up
		route add default via 10.244.0.1 dev eth0
		route add 192.0.2.0/24 dev eth0 table 100
		rule add from 192.0.2.1 lookup 100 priority 32000
		rule add from 172.16.10.0/24 lookup 100 priority 32500`, 150+i%100))
	ns.AwaitCarrier(m.t)
	p := &tenant{pod: &pod{ns, "sandbox-" + ns.Name, fmt.Sprintf("job-%d", i)}}
	for i, c := range m.nets {
		p.slots = append(p.slots, &slot{attachment: m.attach(c, p.pod, fmt.Sprintf("net%d", i+1)), in: p, outcome: missing})
	}
	p.before = p.snapshot(m.t)
	p.rest = shares(p.before)[""]
	return p
}

// bury removes the namespace of a pod and waits until its links are gone.
func (m *machine) bury(p *tenant) {
	m.t.Helper()
	link := "pod" + p.namespace.Name[strings.LastIndex(p.namespace.Name, "-")+1:]
	p.Remove(m.t)
	cnitest.Await(m.t, "the links of the pod are gone", func() bool {
		_, err := m.leaf.Run("ip", "link", "show", "dev", link)
		return err != nil
	})
	p.dead = true
	m.gone = append(m.gone, p)
	for _, s := range p.slots {
		if s.outcome == live {
			s.becomes(torn)
		}
	}
}

// slots returns all slots that there have ever been.
func (m *machine) slots() []*slot {
	var out []*slot
	for _, p := range slices.Concat(m.pods, m.gone) {
		out = append(out, p.slots...)
	}
	return out
}

// stands notes that an ADD succeeded. What stood before must stand unchanged.
func (m *machine) stands(s *slot, res *current.Result) {
	m.t.Helper()
	got := addrs(res)
	if s.outcome == live {
		if !slices.Equal(got, s.addrs) {
			m.t.Errorf("ADD of what stands with %v: got %v", s.addrs, got)
		}
		return
	}
	s.becomes(live)
	s.addrs, s.litter = got, false
}

// collected notes that a GC of a network succeeded.
func (m *machine) collected(c network, known []attachment) {
	for _, s := range m.slots() {
		isKnown := slices.ContainsFunc(known, func(a attachment) bool { return a.id == s.id && a.ifName == s.ifName })
		if s.outcome != missing && s.network["name"] == c["name"] && !isKnown {
			litter := s.litter
			s.becomes(missing)
			s.litter = litter
		}
	}
}

// mayBeFull says whether the others may hold all addresses.
func (m *machine) mayBeFull(s *slot) bool {
	held := 0
	for _, o := range m.slots() {
		if o != s && o.outcome != missing {
			held++
		}
	}
	return held >= poolSize
}

func (m *machine) tell(format string, args ...any) {
	m.story = append(m.story, fmt.Sprintf(format, args...))
}

func (m *machine) stopIfFailed() {
	m.t.Helper()
	if m.t.Failed() {
		m.t.Fatalf("what happened:\n%s", strings.Join(m.story, "\n"))
	}
}

// compare compares the machine with what must be there. Of the pods it looks at
// some.
func (m *machine) compare(pods []*tenant) {
	m.t.Helper()
	if diff := cmp.Diff(strings.Split(m.before, "\n"), strings.Split(m.lookAtNode(), "\n")); diff != "" {
		m.t.Errorf("the node is not as it was (-before +after)\n%s", diff)
	}
	for _, p := range pods {
		if !p.dead {
			m.comparePod(p)
		}
	}
	m.compareLeases()
	m.compareFiles()
	m.compareChecks()
}

var promiscuity = regexp.MustCompile(` (promiscuity|allmulti) \d+`)

// lookAtNode returns a snapshot of the node. A master that cannot filter by
// address is promiscuous while it has children (__dev_set_rx_mode).
func (m *machine) lookAtNode() string {
	m.t.Helper()
	return promiscuity.ReplaceAllString(m.snapshot(m.t), "")
}

// comparePod compares links, addresses, rules, routes and settings of a pod.
func (m *machine) comparePod(p *tenant) {
	m.t.Helper()
	var got map[string]string
	cnitest.Await(m.t, "every IPv6 address has its local route", func() bool {
		got = shares(p.look(m.t))
		standing := "\n" + got[""]
		for _, s := range p.slots {
			if s.outcome == live {
				standing += got[s.ifName]
			}
		}
		return routed(standing)
	})
	if diff := cmp.Diff(strings.Split(p.rest, "\n"), strings.Split(got[""], "\n")); diff != "" {
		m.t.Errorf("what others have in %s is not as it was (-before +after)\n%s", p.pod.name, diff)
	}
	rules, exact := 0, true
	for _, s := range p.slots {
		is := got[s.ifName]
		switch {
		case s.outcome == missing && is != "":
			m.t.Errorf("%s of %s is gone, but has left\n%s", s.ifName, p.pod.name, is)
		case s.outcome == live && s.is == "":
			s.is = is
		case s.outcome == live && is != s.is:
			m.t.Errorf("%s of %s is not as ADD made it (-want +got)\n%s", s.ifName, p.pod.name, cmp.Diff(s.is, is))
		}
		for _, a := range s.addrs {
			if n := strings.Count(got["rules"], fmt.Sprintf("from %s ", a)); n != 2 {
				m.t.Errorf("%s has %d rules, want two:\n%s", a, n, got["rules"])
			}
		}
		rules, exact = rules+2*len(s.addrs), exact && s.outcome != torn
	}
	if n := strings.Count(got["rules"], "\n"); exact && n != rules {
		m.t.Errorf("%s has %d rules, want %d:\n%s", p.pod.name, n, rules, got["rules"])
	}
}

var (
	linkLine    = regexp.MustCompile(`^\d+: ([^:@]+)[^:]*: <`)
	deviceField = regexp.MustCompile(` dev (\S+)`)
	settingLine = regexp.MustCompile(`^ipv[46]/conf/([^/]+)/`)
)

// shares splits a snapshot by the owner of each line: net1's, net2's, "rules" with
// our protocol number, and "", which is others'.
func shares(snapshot string) map[string]string {
	out := map[string]string{}
	link := ""
	for line := range strings.Lines(snapshot) {
		owner := link
		if m := linkLine.FindStringSubmatch(line); m != nil {
			link, owner = m[1], m[1]
		} else if !strings.HasPrefix(line, " ") {
			link, owner = "", ""
			for _, re := range []*regexp.Regexp{deviceField, settingLine} {
				if m := re.FindStringSubmatch(line); m != nil {
					owner = m[1]
				}
			}
		}
		switch {
		case owner == "net1" || owner == "net2":
		case strings.Contains(line, "proto 82"):
			owner = "rules"
		default:
			owner = ""
		}
		out[owner] += line
	}
	return out
}

// compareLeases compares the pool with what the attachments hold.
func (m *machine) compareLeases() {
	m.t.Helper()
	held, owner := map[string][]netip.Addr{}, map[netip.Addr]string{}
	for _, r := range m.rows(m.t) {
		if r.State == "leased" {
			at := r.ContainerID + " " + r.IfName
			held[at] = append(held[at], r.Address)
			if owner[r.Address] != "" {
				m.t.Errorf("%s is leased to %s and to %s", r.Address, owner[r.Address], at)
			}
			owner[r.Address] = at
		}
	}
	used := map[netip.Addr]string{}
	for _, s := range m.slots() {
		at := s.id + " " + s.ifName
		got := held[at]
		slices.SortFunc(got, netip.Addr.Compare)
		delete(held, at)
		if s.outcome != torn && !slices.Equal(got, s.addrs) {
			m.t.Errorf("%s %s is %s, with addresses %v, and holds leases of %v", s.in.pod.name, s.ifName, s.outcome, s.addrs, got)
		}
		for _, a := range s.addrs {
			if used[a] != "" {
				m.t.Errorf("%s and %s both have %s", used[a], at, a)
			}
			used[a] = at
		}
	}
	if len(held) > 0 {
		m.t.Errorf("leases of no attachment: %v", held)
	}
}

// compareFiles wants no file of an attachment that is gone.
func (m *machine) compareFiles() {
	m.t.Helper()
	// The next lease replaces a database of which a killed call has made a part.
	allowed := []string{"leases.db", "leases.lock", "attachments/"}
	for _, s := range m.slots() {
		folder := filepath.Join("attachments", s.id)
		if s.outcome != missing || s.litter {
			allowed = append(allowed, folder+"/", folder+"/lock")
		}
		if s.outcome != missing {
			allowed = append(allowed, folder+"/"+s.ifName+".json")
		}
	}
	for _, name := range m.files(m.t) {
		whole, _, _ := strings.Cut(name, ".new-") // a killed call may leave what was not complete
		if !slices.Contains(allowed, whole) {
			m.t.Errorf("the state folder has %s", name)
		}
	}
}

// compareChecks wants every attachment that stands to be whole, and checked.
func (m *machine) compareChecks() {
	m.t.Helper()
	cmd := exec.Command(filepath.Join(programs, "rocectl"), "--state-dir", m.state, "check")
	var found []byte
	_ = m.enter(func() (err error) { found, err = cmd.Output(); return err }) // it fails if anything is torn
	for _, s := range m.slots() {
		if line := fmt.Sprintf("train/%s %s: ok\n", s.in.pod.name, s.ifName); s.outcome == live && !strings.Contains(string(found), line) {
			m.t.Errorf("check does not say %q but\n%s", line, found)
		}
	}
}
