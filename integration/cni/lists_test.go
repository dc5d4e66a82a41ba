// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// TestRandomLists calls random lists of plugins that lease, in random order, and kills
// them. After every step, no address is on two pods that run, and every lease that ended
// has ended by its own DEL, or with its pod. LISTS_TIME is how long it runs (20s if it is
// not set), and -seed the first seed. What upstream's plugins make of a list does not
// matter.
func TestRandomLists(t *testing.T) {
	t.Parallel()
	upstream(t)
	long := 20 * time.Second
	if s := os.Getenv("LISTS_TIME"); s != "" {
		var err error
		if long, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	seed := *randomSeed
	if seed == 0 {
		seed = uint64(rand.Uint32())
	}
	total, runs := map[string]int{}, 0
	end := time.Now().Add(long)
	for ; (time.Now().Before(end) || total["leased"] == 0 && runs < 10) && !t.Failed(); runs++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			l := newLists(t, seed)
			for i := 0; i < 60 && (time.Now().Before(end) || l.counts["leased"] == 0); i++ {
				l.step(i)
			}
			l.end()
			for k, n := range l.counts {
				total[k] += n
			}
		})
		seed++
	}
	if total["leased"] == 0 {
		t.Errorf("nothing was leased in %d sequences, so nothing was tested: %v", runs, total)
	}
	t.Logf("%d sequences, the last with seed %d: %v", runs, seed-1, total)
}

// lists is a world with random pods, each attached to the same networks.
type lists struct {
	*world
	t      *testing.T
	rnd    *rand.Rand
	nets   [][]network // the plugins of each network, which is net1, net2 and so on
	pods   []*listed
	gone   []*listed
	leased []lease // at the last look
	story  []string
	counts map[string]int
}

// listed is a pod with an attachment to each network.
type listed struct {
	*pod
	number int
	at     []*listSlot
}

// listSlot is an attachment, and what became of it.
type listSlot struct {
	attachment
	in    *listed
	added *current.Result // of an ADD that succeeded; nil: there is none
	clean bool            // nothing can be there
}

func newLists(t *testing.T, seed uint64) *lists {
	t.Helper()
	l := &lists{
		world: newWorld(t, 2), t: t, rnd: rand.New(rand.NewPCG(seed, 0)), counts: map[string]int{},
		story: []string{fmt.Sprintf("replay: LISTS_TIME=%s go test ./integration/cni -run TestRandomLists -seed %d", os.Getenv("LISTS_TIME"), seed)},
	}
	// A bridge has a carrier only while it has a port.
	l.IP(t, `
		link add br0 type bridge
		link add br0-port type veth peer name br0-peer
		link set dev br0-port master br0
		link set dev br0-port up
		link set dev br0-peer up
		link set dev br0 up`)
	data := t.TempDir()
	for i := range 3 {
		var plugins []network
		for j := range 1 + l.rnd.IntN(4) {
			plugins = append(plugins, l.plugin(i, j, data))
		}
		l.nets = append(l.nets, plugins)
		b, err := json.Marshal(plugins)
		must(t, err)
		l.story = append(l.story, fmt.Sprintf("net%d: %s", i+1, b))
	}
	for range 4 {
		l.pods = append(l.pods, l.newPod())
	}
	return l
}

// plugin returns a random plugin, the j-th of network i. Three lists of four begin with a
// plugin that others can follow.
func (l *lists) plugin(i, j int, data string) network {
	makers := []string{"macvlan", "ptp", "bridge"}
	if hasIPVLAN() {
		makers = append(makers, "ipvlan")
	}
	kinds := slices.Concat(makers, []string{"master", "rails", "rails", "rails", "rails", "adopt", "adopt", "adopt"})
	if j == 0 && l.rnd.IntN(4) > 0 {
		kinds = makers
	}
	kind, rail, silent := kinds[l.rnd.IntN(len(kinds))], fmt.Sprint("rail", l.rnd.IntN(2)), l.rnd.IntN(5) == 0
	c := network{"type": "roce", "rdma": "off", "probe": map[string]any{"gateway": "off"}}
	if silent { // then roce fails after it has leased
		c["probe"] = map[string]any{"gateway": map[string]any{"timeout": "10ms"}}
	}
	switch kind {
	case "adopt":
		return c
	case "master":
		c["master"] = rail
	case "rails":
		c["rails"] = []any{map[string]any{"master": rail, "ifName": fmt.Sprintf("r%d-%d", i, j)}}
		data = "" // no other IPAM plugin gives addresses to rails
	default:
		c = network{"type": kind, "master": rail, "bridge": "br0"}
	}
	c["ipam"] = l.ipam(i, data, c["type"] == "roce")
	return c
}

// ipam returns the IPAM plugin of a plugin of network i. It is roce-ipam unless there is a
// folder for host-local. Its pool is common to all networks, or that of the network. Upstream's
// plugins wait for each IPv6 address, so they have one only in a long run.
func (l *lists) ipam(i int, data string, ours bool) map[string]any {
	kind, net, common, dual := l.rnd.IntN(6), 10+l.rnd.IntN(6), l.rnd.IntN(2) == 0, l.rnd.IntN(3) == 0 && (ours || os.Getenv("LISTS_TIME") != "")
	switch {
	case data != "" && kind == 0:
		var sets []any
		for _, subnet := range subnetsOf(30+i, dual) {
			sets = append(sets, []any{map[string]any{
				"subnet": subnet.prefix, "rangeStart": subnet.of(64), "rangeEnd": subnet.of(70), "gateway": subnet.of(253),
			}})
		}
		return map[string]any{"type": "host-local", "dataDir": data, "ranges": sets}
	case data != "" && kind == 1:
		return map[string]any{"type": "static"}
	}
	// The ranges of two pools must not overlap.
	pool, first := "common", 64
	if !common {
		pool, first = fmt.Sprint("net", i), 80+10*i
	}
	var subnets []any
	for _, subnet := range subnetsOf(net, dual) {
		subnets = append(subnets, map[string]any{
			"subnet": subnet.prefix, "gateway": subnet.of(253), "ranges": []any{subnet.of(first) + "-" + subnet.of(first+7)},
		})
	}
	return map[string]any{"type": "roce-ipam", "pool": pool, "quarantine": "0s", "subnets": subnets}
}

// listSubnet is a subnet of one family, with the same last numbers as that of the other.
type listSubnet struct{ net, prefix string }

func (f listSubnet) of(n int) string { return fmt.Sprint(f.net, n) }

// subnetsOf returns the IPv4 subnet with a number, and the IPv6 subnet.
func subnetsOf(n int, dual bool) []listSubnet {
	out := []listSubnet{{fmt.Sprintf("172.16.%d.", n), fmt.Sprintf("172.16.%d.0/24", n)}}
	if dual {
		out = append(out, listSubnet{fmt.Sprintf("fd00:16:%d::", n), fmt.Sprintf("fd00:16:%d::/64", n)})
	}
	return out
}

var hasIPVLAN = sync.OnceValue(func() bool {
	name := cnitest.UniqueName(prefix)
	ns, err := cnitest.MakeNetns(name)
	if err != nil {
		return false
	}
	defer func() { _ = ns.Delete() }()
	_, err = ns.Run("ip", "link", "add", "ipvl", "link", "lo", "type", "ipvlan")
	return err == nil
})

// newPod returns a pod. Some have the name of a pod that is gone.
func (l *lists) newPod() *listed {
	l.t.Helper()
	n := l.rnd.IntN(2)
	p := &listed{number: len(l.pods) + len(l.gone)}
	name := fmt.Sprint("job-", p.number)
	if n == 0 && len(l.gone) > 0 {
		name = l.gone[len(l.gone)-1].name
	}
	ns := newNamespace(l.t, fmt.Sprintf("%s-%d", strings.TrimSuffix(l.node.Name, "-node"), p.number))
	ns.IP(l.t, "link set dev lo up")
	p.pod = &pod{ns, "sandbox-" + ns.Name, name}
	for i, plugins := range l.nets {
		var all []any
		for j, c := range plugins {
			if c["ipam"] != nil && c["ipam"].(map[string]any)["type"] == "static" {
				// An operator gives each pod its own address.
				address := netip.AddrFrom4([4]byte{172, 16, 10, 0}).As4()
				address[2], address[3] = 20+byte(i*4+j), byte(p.number+1)
				c = c.With("ipam.addresses", []any{map[string]any{
					"address": netip.AddrFrom4(address).String() + "/24", "gateway": fmt.Sprintf("172.16.%d.253", address[2]),
				}})
			}
			all = append(all, map[string]any(c))
		}
		last := network(all[len(all)-1].(map[string]any)).With("name", fmt.Sprint("list", i)).With("cniVersion", "1.0.0")
		a := l.attach(last, p.pod, fmt.Sprint("net", i+1))
		a.path = append(a.path, upstream(l.t))
		a.before = all[:len(all)-1]
		p.at = append(p.at, &listSlot{attachment: a, in: p, clean: true})
	}
	return p
}

// listSteps are what can happen, and how often it does.
var listSteps = []struct {
	weight int
	name   string
	do     func(*lists, *listSlot)
}{
	{30, "ADD", (*lists).add},
	{8, "ADD of two pods at once", (*lists).addTwo},
	{12, "ADD, killed", (*lists).addKilled},
	{6, "ADD again", (*lists).addAgain},
	{6, "ADD of a roce again", (*lists).roceAgain},
	{10, "DEL", (*lists).del},
	{6, "DEL, killed", (*lists).delKilled},
	{6, "DEL of a roce alone", (*lists).roceDel},
	{4, "DEL of a roce without record", (*lists).unrecorded},
	{6, "CHECK", (*lists).check},
	{6, "GC", (*lists).gc},
	{1, "rebuild", (*lists).rebuild},
	{4, "the pod vanishes", (*lists).vanish},
}

func (l *lists) step(i int) {
	l.t.Helper()
	p := l.pods[l.rnd.IntN(len(l.pods))]
	s := p.at[l.rnd.IntN(len(p.at))]
	n := 0
	for _, step := range listSteps {
		n += step.weight
	}
	n = l.rnd.IntN(n)
	for _, step := range listSteps {
		if n -= step.weight; n >= 0 {
			continue
		}
		l.tell("%2d %s of %s: %s", i, s.ifName, p.name, step.name)
		step.do(l, s)
		l.counts[step.name]++
		break
	}
	l.compare()
}

func (l *lists) tell(format string, args ...any) {
	l.story = append(l.story, fmt.Sprintf(format, args...))
}

func (l *lists) fail(format string, args ...any) {
	l.t.Helper()
	l.t.Fatalf("%s\nwhat happened:\n%s", fmt.Sprintf(format, args...), strings.Join(l.story, "\n"))
}

// leases returns what is leased or set aside.
func (l *lists) leases() []lease {
	l.t.Helper()
	return slices.DeleteFunc(l.rows(l.t), func(r lease) bool { return r.State != "leased" && r.State != "set-aside" })
}

// ipamNets have the addresses of roce-ipam: of subnets 10 to 15.
var ipamNets = []netip.Prefix{netip.MustParsePrefix("172.16.0.0/20"), netip.MustParsePrefix("fd00:16:10::/44")}

// compare looks at all pods that run, and at what is leased to them.
func (l *lists) compare() {
	l.t.Helper()
	now := l.leases()
	l.counts["leased"] += len(now)
	on := map[netip.Addr]*listed{}
	for _, p := range l.pods {
		for _, a := range p.all(l.t) {
			if other := on[a]; other != nil && other != p {
				l.fail("%s and %s, which run, both have %s", other.name, p.name, a)
			}
			on[a] = p
			if !slices.ContainsFunc(ipamNets, func(n netip.Prefix) bool { return n.Contains(a) }) {
				continue // of host-local or static
			}
			if !slices.ContainsFunc(now, func(r lease) bool {
				return r.Address == a && (r.ContainerID == p.id || r.State == "set-aside")
			}) {
				l.fail("%s runs with %s, which has no lease, or a lease of another pod:\n%v", p.name, a, now)
			}
		}
	}
}

// all returns the addresses that plugins gave a pod.
func (p *listed) all(t testing.TB) []netip.Addr {
	t.Helper()
	var out []netip.Addr
	for line := range strings.Lines(p.MustRun(t, "ip", "-oneline", "addr", "show", "scope", "global")) {
		out = append(out, netip.MustParsePrefix(strings.Fields(line)[3]).Addr())
	}
	return out
}

// kept wants every lease that was there at its last call, but for those of ended.
func (l *lists) kept(ended func(lease) bool) {
	l.t.Helper()
	now := l.leases()
	for _, r := range l.leased {
		if r.State == "leased" && !ended(r) && l.runs(r.ContainerID) && !slices.Contains(now, r) {
			l.fail("the lease of %s ended: %+v", r.Address, r)
		}
	}
	l.leased = now
}

func (l *lists) runs(id string) bool {
	return slices.ContainsFunc(l.pods, func(p *listed) bool { return p.id == id })
}

// of says whether a lease is that of an attachment.
func (s *listSlot) of(r lease) bool { return r.ContainerID == s.id && r.IfName == s.ifName }

func none(lease) bool { return false }

// add calls ADD where nothing is. When it fails, the runtime calls DEL, at once or later.
func (l *lists) add(s *listSlot) {
	if !s.clean {
		l.del(s)
	}
	later := l.rnd.IntN(3) == 0
	s.clean = false
	res, err := l.call(s)
	l.kept(none)
	l.added(s, res, err, later)
}

// call calls ADD. An error that is not a plugin's ends the test.
func (l *lists) call(s *listSlot) (*current.Result, *types.Error) {
	l.t.Helper()
	return s.attachment.add(l.t)
}

func (l *lists) added(s *listSlot, res *current.Result, err *types.Error, later bool) {
	l.t.Helper()
	if err == nil {
		s.added = res
		l.counts["ADD succeeded"]++
		return
	}
	l.tell("   ADD: %v", err)
	if strings.Contains(err.Msg, "[199]") {
		l.fail("a bug: %v", err)
	}
	// Upstream's ptp releases its lease when it fails, and leaves its interface.
	if strings.HasPrefix(err.Msg, "roce") {
		l.compare()
		if later {
			return
		}
	}
	l.del(s)
}

func (l *lists) addTwo(s *listSlot) {
	i := slices.Index(l.pods, s.in)
	other := l.pods[(i+1)%len(l.pods)].at[slices.Index(s.in.at, s)]
	both := []*listSlot{s, other}
	for _, x := range both {
		l.del(x)
		x.clean = false
	}
	var results [2]*current.Result
	var errs [2]*types.Error
	var wg sync.WaitGroup
	for i, x := range both {
		wg.Go(func() { results[i], errs[i] = x.attachment.add(l.t) })
	}
	wg.Wait()
	l.kept(none)
	for i, x := range both { // no look between them, because both may have failed
		if x.added = results[i]; errs[i] != nil {
			l.tell("   ADD: %v", errs[i])
			l.del(x)
		}
	}
}

// killing calls a verb of the list and kills the plugin that runs after a time. It returns
// when the plugins that this one called have ended, too: they have its standard error.
func (l *lists) killing(call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Duration(l.rnd.IntN(120))*time.Millisecond)
	defer cancel()
	return call(ctx)
}

func (l *lists) addKilled(s *listSlot) {
	if !s.clean {
		l.del(s)
	}
	s.clean = false
	err := l.killing(func(ctx context.Context) error { _, err := s.call().AddContext(ctx); return err })
	l.tell("   ADD: %v", err)
	l.kept(none)
	if err != nil && !strings.Contains(err.Error(), `type="roce" `) { // as in added
		l.del(s)
	}
}

// addAgain calls ADD of what may be there already. Upstream's plugins then fail, and the
// runtime must call DEL before anything else. Of an ADD that succeeded, they keep the lease.
func (l *lists) addAgain(s *listSlot) {
	s.clean = false
	res, err := l.call(s)
	l.kept(func(r lease) bool { return s.of(r) && (s.added == nil || r.Program == "roce") })
	l.added(s, res, err, false)
}

// roces returns the plugins of a list that are roce, as a runtime calls them alone. An ADD
// gets the result of the plugins before it.
func (s *listSlot) roces(t testing.TB, prev any) []attachment {
	t.Helper()
	var out []attachment
	for _, c := range append(slices.Clone(s.before), any(map[string]any(s.network))) {
		if c.(map[string]any)["type"] != "roce" {
			continue
		}
		a := s.attachment
		a.network = network(c.(map[string]any)).With("name", s.network["name"]).With("cniVersion", "1.0.0").With("prevResult", prev)
		out = append(out, a)
	}
	return out
}

// roceAgain repeats the ADD of each roce with the final result, and with none.
func (l *lists) roceAgain(s *listSlot) {
	if s.added == nil {
		return
	}
	b, err := json.Marshal(s.added)
	must(l.t, err)
	var prev any
	must(l.t, json.Unmarshal(b, &prev))
	for _, a := range s.roces(l.t, prev) {
		_, err := a.raw(l.t, "roce", "ADD", a.text(l.t))
		l.tell("   ADD of roce: %v", err)
		l.kept(func(r lease) bool { return s.of(r) && r.Program == "roce" })
		l.compare()
	}
}

func (l *lists) del(s *listSlot) {
	l.t.Helper()
	err := s.attachment.del(l.t)
	if err != nil {
		l.tell("   DEL: %v", err)
		if strings.HasPrefix(err.Msg, "roce") {
			l.fail("DEL: %v", err)
		}
	}
	l.kept(s.of)
	s.added, s.clean = nil, err == nil
}

// delKilled kills DEL. The runtime calls it again before anything else: upstream's plugins
// release an address before they remove it.
func (l *lists) delKilled(s *listSlot) {
	s.added = nil
	err := l.killing(func(ctx context.Context) error {
		list, err := s.call().List()
		if err != nil {
			return err
		}
		return s.libcni().DelNetworkList(ctx, list, s.runtime())
	})
	l.tell("   DEL: %v", err)
	l.del(s)
}

func (l *lists) roceDel(s *listSlot) {
	s.added, s.clean = nil, false
	for _, a := range s.roces(l.t, nil) {
		if _, err := a.raw(l.t, "roce", "DEL", a.text(l.t)); err != nil {
			l.fail("DEL of roce: %v", err)
		}
		l.kept(func(r lease) bool { return s.of(r) && r.Program == "roce" })
	}
}

func (l *lists) unrecorded(s *listSlot) {
	file := filepath.Join(l.state, "attachments", s.id, s.ifName+".json")
	if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
		l.t.Fatal(err)
	}
	l.roceDel(s)
}

func (l *lists) check(s *listSlot) {
	if s.added != nil {
		l.tell("   CHECK: %v", s.attachment.check(l.t))
	}
	l.kept(none)
}

// gc calls GC of each plugin that has it, with everything that may be there.
func (l *lists) gc(s *listSlot) {
	valid := []any{}
	for _, p := range l.pods {
		for _, x := range p.at {
			valid = append(valid, map[string]any{"containerID": x.id, "ifname": x.ifName})
		}
	}
	for _, c := range append(slices.Clone(s.before), any(map[string]any(s.network))) {
		program := "roce-ipam"
		c := network(c.(map[string]any)).With("name", s.network["name"]).With("cniVersion", "1.1.0")
		if c["type"] == "roce" {
			program = "roce"
		}
		c["cni.dev/valid-attachments"] = valid
		a := s.attachment
		a.network = c
		if _, err := a.raw(l.t, program, "GC", a.text(l.t)); err != nil {
			l.fail("GC of %s: %v", program, err)
		}
	}
	l.kept(none)
}

// rebuild loses the lease database, and rebuilds it.
func (l *lists) rebuild(*listSlot) {
	db := filepath.Join(l.state, "leases.db")
	if _, err := os.Stat(db); err != nil {
		return // nothing was leased yet
	}
	must(l.t, os.WriteFile(db, []byte("lost"), 0o600))
	if out, err := l.Run(filepath.Join(programs, "rocectl"), "--state-dir", l.state, "repair", "--yes"); err != nil {
		l.tell("   repair: %v: %s", err, out) // it repairs the pods, too
	}
	l.leased = l.leases()
}

// vanish removes the namespace of a pod without DEL.
func (l *lists) vanish(s *listSlot) {
	p := s.in
	p.Remove(l.t)
	l.gone = append(l.gone, p)
	i := slices.Index(l.pods, p)
	l.pods[i] = nil
	l.pods[i] = l.newPod()
	l.kept(none)
}

// end takes everything away, and wants nothing left.
func (l *lists) end() {
	l.t.Helper()
	l.tell("the end")
	for _, p := range slices.Concat(l.pods, l.gone) {
		for _, s := range p.at {
			l.del(s)
		}
	}
	l.compare()
	if left := l.leases(); len(left) > 0 && l.counts["rebuild"] == 0 {
		l.fail("leases are left: %+v", left)
	}
}
