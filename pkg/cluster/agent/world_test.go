// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// cluster is what the agents of a test share. Its clock is the bubble's.
type cluster struct {
	store *blocktest.Mem
	kept  *stickytest.Mem
	start time.Time

	mu      sync.Mutex
	view    agent.View
	changed chan struct{}   // closed when view changes
	mute    bool            // there is no answer to Stands
	behind  bool            // agents do not see that all pools were deleted
	fault   blocktest.Fault // of all requests
	reports []report
	idling  atomic.Bool // agents look every idleTick
}

type report struct {
	block string
	at    time.Duration
	block.Usage
}

func newCluster(pools ...block.Pool) *cluster {
	c := &cluster{store: blocktest.NewMem(), kept: stickytest.NewMem(), start: time.Now(), changed: make(chan struct{}), view: agent.View{Pools: pools}}
	c.store.Fault = func(blocktest.Op, string) blocktest.Fault {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.fault
	}
	c.kept.Fault, c.kept.Now = c.store.Fault, time.Now
	return c
}

// poolOf makes a pool of what an operator writes; age is in seconds.
func poolOf(t *testing.T, name string, created int, spec string) block.Pool {
	t.Helper()
	p := block.Pool{Name: name, UID: "uid-of-" + name, Created: time.Unix(int64(created), 0), InUse: true}
	d := json.NewDecoder(strings.NewReader(spec))
	d.DisallowUnknownFields()
	must(t, d.Decode(&p.Spec))
	return p
}

// compute is a pool of two rails with 64 blocks of 16 slots.
func compute(t *testing.T) block.Pool {
	t.Helper()
	return poolOf(t, "compute", 1, `{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/22"}]}}`)
}

// goAway makes the API server answer nothing, or answer again.
func (c *cluster) goAway(away bool) {
	c.fail(blocktest.None)
	if away {
		c.fail(blocktest.Lost)
	}
}

// fail has all requests go wrong in this way.
func (c *cluster) fail(f blocktest.Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = f
}

// change changes what agents see, and waits until they have seen it.
func (c *cluster) change(do func(v *agent.View)) {
	c.mu.Lock()
	do(&c.view)
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
	synctest.Wait()
}

func (c *cluster) watch(ctx context.Context, see func(agent.View)) error {
	for {
		c.mu.Lock()
		v, changed := c.view, c.changed
		v.Pools = slices.Clone(v.Pools)
		c.mu.Unlock()
		see(v)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// stands asks the API server, which knows what agents may not have seen yet.
func (c *cluster) stands(_ context.Context, pool, uid string) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mute || c.fault == blocktest.Lost {
		return false, block.ErrUnknown
	}
	return slices.ContainsFunc(c.view.Pools, func(p block.Pool) bool {
		return p.Name == pool && p.UID == uid && p.InUse && !p.Deleted && !c.behind
	}), nil
}

// node is a node of the cluster, with one state folder for all its boots.
type node struct {
	*cluster
	t    *testing.T
	name string
	dir  string
	boot string
	hint netip.Addr // an address of its own
	log  logbook    // of the agent

	healed []calls.Call // what was told

	*agent.Agent
	kill func() // ends what it does, and does not wait for that
	stop func()
}

func (c *cluster) node(t *testing.T, name string) *node {
	return &node{cluster: c, t: t, name: name, dir: t.TempDir(), boot: "11111111-1111-4111-8111-111111111111"}
}

func (n *node) files() nodefile.Store { return nodefile.Store{Dir: n.dir, BootID: n.boot} }

func (n *node) now() time.Duration { return time.Since(n.start) + time.Hour }

func (n *node) book() *ipam.Book {
	return ipam.New(ipam.Config{Dir: n.dir, BootID: n.boot, Now: n.now, Observe: everyNetnsLives})
}

func (c *cluster) wait(ctx context.Context, d time.Duration) error {
	if c.idling.Load() {
		d = max(d, idleTick)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (n *node) config() agent.Config {
	log := slog.New(slog.NewTextHandler(&n.log, nil))
	return agent.Config{
		Node:      block.Node{Name: n.name, MachineID: "machine-of-" + n.name},
		Addresses: func(context.Context) ([]netip.Addr, error) { return []netip.Addr{n.hint}, nil },
		Store:     n.store,
		Requests:  agent.NewRequests(log),
		Machine:   func(_ context.Context, name string) (string, error) { return "machine-of-" + name, nil },
		Watch:     n.watch,
		Report: func(ctx context.Context, b block.Block, u block.Usage) error {
			if _, err := n.store.Touch(ctx, b.Name, b.UID); err != nil {
				return err
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			n.reports = append(n.reports, report{b.Name, n.now(), u})
			return nil
		},
		Tell: func(_ context.Context, node string, c calls.Call) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			if node != n.name {
				n.t.Errorf("it tells of node %q", node)
			}
			n.healed = append(n.healed, c)
			return nil
		},
		Stands: n.stands,
		Services: func(_ context.Context, see func([]netip.Prefix, error)) {
			see([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, nil)
		},
		Rails: func() []agent.Rail {
			return []agent.Rail{{Number: 0, Netdev: "ens1", Device: "mlx5_0", Up: true, Ready: true, GIDs: 4, GIDTable: 256, Sent: 1500, Received: 7, Unit: "bytes"}, {Number: 1, Netdev: "ens2", Device: "mlx5_1", Up: true, GIDs: 2, GIDTable: 32, Sent: 3, Received: 4, Unit: "packets"}, {Number: 2}}
		},
		RailLeases: n.kept,
		Ranges:     n.files(),
		Leases:     n.book(),
		Clock:      pace.Clock{Wait: n.wait, Rand: rand.Float64, Now: n.now},
		Log:        log,
	}
}

// run starts the agent, until the test stops it or ends, and waits until it has
// nothing more to do than to wait.
func (n *node) run() {
	n.t.Helper()
	n.runWith(n.config())
}

func (n *node) runWith(c agent.Config) {
	n.t.Helper()
	n.begin(c)
	synctest.Wait()
}

func (n *node) begin(c agent.Config) {
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan struct{})
	a := agent.New(c)
	n.mu.Lock()
	n.Agent = a
	n.mu.Unlock()
	n.kill = cancel
	n.stop = sync.OnceFunc(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		_ = a.Run(ctx) // the context's error
	}()
	n.t.Cleanup(n.stop)
}

// hours skips a test with -short. It simulates hours of many nodes or leases, which takes
// seconds of processor time.
func hours(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("simulates hours, which -short excludes")
	}
}

// pass lets time pass, and waits until all is done that was due.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

const idleTick = 5 * time.Second

// idle is pass for a long time in which little happens. Agents that look five times a second
// would take most of the time of all tests.
func (c *cluster) idle(d time.Duration) {
	c.idling.Store(true)
	pass(d - idleTick)
	c.idling.Store(false)
	pass(idleTick)
}

// blockNamed returns a block as it is now.
func (c *cluster) blockNamed(name string) block.Block {
	for _, b := range c.store.Snapshot() {
		if b.Name == name {
			return b
		}
	}
	return block.Block{}
}

// netips compares addresses by their values.
func netips() cmp.Option { return cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}) }

// blocks returns the names of the blocks that the store says are the node's.
func (n *node) blocks() []string {
	var out []string
	for _, b := range n.store.Snapshot() {
		if b.Spec.NodeName == n.name {
			out = append(out, b.Name)
		}
	}
	slices.Sort(out)
	return out
}

// holds fails the test unless the file of a pool is of this boot and has the
// addresses of so many blocks on each rail.
func (n *node) holds(pool string, blocks int) nodefile.File {
	n.t.Helper()
	f, err := n.files().Read(pool)
	if err != nil {
		n.t.Fatalf("%s: %v\n%s", n.name, err, n.log.String())
	}
	for _, subnets := range f.Rails {
		count := 0
		for _, r := range subnets[0].Ranges {
			for a := r.First; r.Contains(a); a = a.Next() {
				count++
			}
		}
		if count != 16*blocks {
			n.t.Errorf("%s: %d addresses on a rail, want those of %d blocks", n.name, count, blocks)
		}
	}
	return f
}

// lease leases an address of each rail to a container, as an ADD does.
func (n *node) lease(pool, container string) error {
	f, err := n.files().Read(pool)
	if err != nil {
		return err
	}
	return n.leaseOf(f, container)
}

// leaseOf is lease with a file that was read before.
func (n *node) leaseOf(f nodefile.File, container string) error {
	return n.leaseTo(f, ipam.Owner{Network: "net", ContainerID: container, IfName: "net1"})
}

func (n *node) leaseTo(f nodefile.File, owner ipam.Owner) error {
	ask := ipam.Ask{Pool: pool.OfRailPool(f.Pool), Quarantine: f.Quarantine, Owner: owner}
	for _, subnets := range f.Subnets() {
		for _, s := range subnets {
			ask.Subnets = append(ask.Subnets, ipam.Subnet{Prefix: s.Prefix, Ranges: s.Ranges, Exclude: s.Exclude, Gateway: s.Gateway, Group: 1})
		}
	}
	_, err := n.book().Acquire(n.t.Context(), ask)
	return err
}

// mustLease leases to the containers first to last.
func (n *node) mustLease(pool string, first, last int) {
	n.t.Helper()
	for i := first; i <= last; i++ {
		if err := n.lease(pool, fmt.Sprintf("c%d", i)); err != nil {
			n.t.Fatalf("container %d: %v", i, err)
		}
	}
}

// release gives the addresses of a container back, to rest.
func (n *node) release(container string) {
	n.t.Helper()
	must(n.t, n.book().Release(n.t.Context(), ipam.Key{ContainerID: container, IfName: "net1", Network: "net"}, netns.Ref{}))
}

// get asks the agent over HTTP.
func (n *node) get(path string) (int, string) {
	w := httptest.NewRecorder()
	n.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w.Code, w.Body.String()
}

// healthy fails the test unless /healthz says so.
func (n *node) healthy() {
	n.t.Helper()
	if code, body := n.get("/healthz"); code != 200 || body != "ok\n" {
		n.t.Errorf("%s: /healthz says %d\n%s", n.name, code, body)
	}
}

// says fails the test unless /healthz has this status and says all of that.
func (n *node) says(code int, words ...string) {
	n.t.Helper()
	got, body := n.get("/healthz")
	for _, w := range words {
		if got != code || !strings.Contains(body, w) {
			n.t.Errorf("%s: /healthz says %d, want %d and %q\n%s", n.name, got, code, w, body)
		}
	}
}

// counts fails the test unless /metrics has these lines.
func (n *node) counts(lines ...string) {
	n.t.Helper()
	_, body := n.get("/metrics")
	for _, line := range lines {
		if !strings.Contains(body, line+"\n") {
			n.t.Errorf("/metrics lacks %q\n%s", line, body)
		}
	}
}

// logbook is a log that a test reads while the agent writes it.
type logbook struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (l *logbook) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(line)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}

// logs fails the test unless the agent has logged that.
func (n *node) logs(text string) {
	n.t.Helper()
	synctest.Wait() // it has written all that was due
	if !strings.Contains(n.log.String(), text) {
		n.t.Errorf("the log lacks %q:\n%s", text, n.log.String())
	}
}

// everyNetnsLives is an observation of a node on which no namespace ends.
func everyNetnsLives() func(netns.Ref) (bool, error) {
	return func(netns.Ref) (bool, error) { return true, nil }
}

// must is for what a test needs and does not test.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
