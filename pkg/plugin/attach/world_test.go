// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/probe"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
)

var (
	errFault = errors.New("fault injected")
	nicMAC   = conf.MAC{0x52, 0x54, 0, 0, 0, 1}
)

// world is a node on the fake kernel with real records and a real lease
// database, and the wire that it is plugged into.
type world struct {
	t    *testing.T
	fake *kerneltest.Fake
	pod  *kerneltest.Space // c1's, in the tests that damage it
	wire *wire
	hca  hca
	mode conf.RDMAMode
	dir  string        // the state folder
	now  time.Duration // since boot
	boot string
	keep bool // the fillers of the node
	// stuck is why the namespace of the fillers cannot be made or removed.
	stuck error
	// config is the network's, for a mode of RDMA, a folder and more members.
	config string
	log    *slog.Logger
	// plugins is CNI_PATH, for networks with another IPAM plugin; "": there is none.
	plugins string
	stderr  bytes.Buffer // what such a plugin says there
	// crash panics at the n-th operation from now, as a process that is killed
	// does nothing any more; 0 never.
	crash int
	// before is called before each operation of the kernel and of the RDMA device, and may
	// make it fail; nil: nothing is.
	before func(op plan.Op, undo bool) error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, config: config, fake: kerneltest.NewFake(t), wire: &wire{}, hca: hca{name: device.Name}, mode: conf.RDMAOff, dir: filepath.Join(t.TempDir(), "state"), boot: "5f0c2d1e-8a3b-4c6d-9e7f-000000000001", log: slog.New(slog.DiscardHandler)}
	w.fake.NIC("ens1", nicMAC)
	w.fake.NIC("ens2", conf.MAC{0x52, 0x54, 0, 0, 0, 2})
	return w
}

// newRailsWorld returns a node with networks of three rails.
func newRailsWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.config = railsConfig
	w.fake.NIC("ens3", conf.MAC{0x52, 0x54, 0, 0, 0, 3})
	return w
}

// newLinkedWorld returns a node with networks that link their pods with the node, and
// with the CIDRs of the cluster's Services.
func newLinkedWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.config = strings.TrimSuffix(config, "%s}") + `, "hostLink": {"routes": ["auto", "10.244.0.0/16"]}%s}`
	w.services("10.96.0.0/12", "fd00:96::/108")
	w.fake.Host().IP("addr add 10.0.0.7/24 dev ens2")
	return w
}

// newIpvlanWorld returns a node with networks of ipvlans.
func newIpvlanWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.config = strings.TrimSuffix(config, "%s}") + `, "child": "ipvlan"%s}`
	return w
}

// worlds are the nodes that every failure is tried on. Those of -short have operations of
// every kind but those of GID indexes.
func worlds() map[string]func(*testing.T) *world {
	all := map[string]func(*testing.T) *world{
		"another IPAM plugin": func(t *testing.T) *world { return newForeign(t).world }, "an RDMA device": exclusive,
		"one rail": newWorld, "three rails": newRailsWorld, "promised GID indexes": newPromisedWorld, "host link": newLinkedWorld, "ipvlan": newIpvlanWorld, "a link on VLANs": newLinkedVLANWorld,
	}
	if testing.Short() {
		delete(all, "three rails")
		delete(all, "promised GID indexes")
		delete(all, "ipvlan")
		delete(all, "a link on VLANs")
	}
	return all
}

// inEachWorld runs a test for each of worlds.
func inEachWorld(t *testing.T, fn func(t *testing.T, fresh func(*testing.T) *world)) {
	t.Helper()
	t.Parallel()
	for name, fresh := range worlds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(t, fresh)
		})
	}
}

// node returns the node as a new process sees it that was called with environ.
func (w *world) node(environ ...string) attach.Node {
	n := attach.Node{
		ID:      "machine/host",
		Machine: machine{w},
		Fillers: plan.FillerNetns, RemoveFillers: !w.keep,
		Now:       func() time.Duration { return w.now },
		Services:  w.ranges().Services,
		Addresses: w.allocator(),
		Records:   record.Store{Dir: w.dir, BootID: w.boot},
		Log:       w.log,
	}
	if w.plugins != "" {
		n.Addresses.Plugins = lease.Plugins{
			Path:    []string{"", "/nowhere", w.plugins},
			Environ: append([]string{"PATH=" + os.Getenv("PATH")}, environ...),
			Stderr:  &w.stderr,
			Guard:   n.Records.Guard,
		}
	}
	return n
}

// repairs returns the attachments of the node, to be repaired.
func (w *world) repairs() repair.Attachments { return repair.Attachments{Node: w.node()} }

// machine is what the node of a world runs on.
type machine struct{ w *world }

func (m machine) Open(netns string) (attach.Kernel, error) {
	k, err := m.w.fake.Open(netns)
	if err != nil {
		return nil, err
	}
	m.w.hca.open.Add(1)
	return mortal{k, m.w, netns}, nil
}

func (m machine) OpenHost() (attach.Kernel, error) {
	k, err := m.w.fake.OpenHost()
	if err != nil {
		return nil, err
	}
	m.w.hca.open.Add(1)
	return mortal{k, m.w, ""}, nil
}

func (m machine) MakeNetns(path string) error {
	m.w.step()
	if m.w.stuck != nil {
		return m.w.stuck
	}
	m.w.fake.Pod(path)
	return nil
}

func (m machine) RemoveNetns(path string) error {
	if m.w.stuck != nil {
		return m.w.stuck
	}
	m.w.fake.RemovePod(path)
	m.w.hca.tables.undone(path, plan.Op{})
	return nil
}

func (m machine) Facts(ctx context.Context, req conf.Request) ([]plan.RailFacts, error) {
	m.w.fake.Pod("/an/empty/pod")
	defer m.w.fake.RemovePod("/an/empty/pod")
	k, err := m.w.fake.Open("/an/empty/pod")
	if err != nil {
		return nil, err
	}
	defer k.Close()
	return k.Facts(ctx, req)
}

func (m machine) Wire(attach.Kernel) plan.Single {
	m.w.hca.open.Add(1)
	return mortalSteps{m.w.wire, m.w}
}

func (m machine) RDMA(netns string, _ func(fn func() error) error) attach.RDMA {
	m.w.hca.open.Add(1)
	return handle{hca: &m.w.hca, w: m.w, netns: netns, located: map[netip.Addr]int{}}
}

// services does what the agent does when these are the CIDRs of the cluster's Services.
func (w *world) services(cidrs ...string) {
	w.t.Helper()
	var list []netip.Prefix
	for _, c := range cidrs {
		list = append(list, netip.MustParsePrefix(c))
	}
	if _, err := w.ranges().WriteServices(list); err != nil {
		w.t.Fatal(err)
	}
}

// allocator returns the node's addresses as a new process sees them.
func (w *world) allocator() lease.Allocator {
	return lease.Allocator{Book: w.book(), Program: conf.PluginType, Agent: w.ranges(), Now: func() time.Duration { return w.now }, Log: w.log}
}

func (w *world) ranges() nodefile.Store { return nodefile.Store{Dir: w.dir, BootID: w.boot} }

func (w *world) book() *ipam.Book {
	return ipam.New(ipam.Config{
		Dir: w.dir, BootID: w.boot,
		Now:     func() time.Duration { return w.now },
		Observe: everyNetnsLives,
		Log:     slog.New(slog.DiscardHandler),
	})
}

// killed is what a crash panics with.
type killed struct{}

func (w *world) step() {
	if w.crash == 0 {
		return
	}
	if w.crash--; w.crash == 0 {
		panic(killed{})
	}
}

func (w *world) about(op plan.Op, undo bool) error {
	if w.before == nil {
		return nil
	}
	return w.before(op, undo)
}

// mortal is a kernel for a process that may die before each operation.
type mortal struct {
	*kerneltest.FakeKernel
	w     *world
	netns string
}

func (m mortal) Close() {
	m.w.hca.open.Add(-1)
	m.FakeKernel.Close()
}

func (m mortal) Do(ctx context.Context, run ...plan.Op) error {
	for _, op := range run {
		m.w.step()
		if err := m.w.about(op, false); err != nil {
			return err
		}
		if err := m.FakeKernel.Do(ctx, op); err != nil {
			return err
		}
		m.w.hca.tables.done(m.netns, op)
	}
	return nil
}

func (m mortal) Undo(ctx context.Context, run ...plan.Op) error {
	var errs []error
	for _, op := range slices.Backward(run) {
		m.w.step()
		err := m.w.about(op, true)
		if err == nil {
			err = m.FakeKernel.Undo(ctx, op)
		}
		if err == nil {
			m.w.hca.tables.undone(m.netns, op)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// mortalSteps is the same for the wire.
type mortalSteps struct {
	plan.Single
	w *world
}

func (m mortalSteps) Close() { m.w.hca.open.Add(-1) }

func (m mortalSteps) Do(ctx context.Context, op plan.Op) error {
	m.w.step()
	return m.Single.Do(ctx, op)
}

// run runs a verb in a process that may die: it returns whether it did.
func (w *world) run(verb func(attach.Node)) (died bool) {
	defer func() {
		switch r := recover(); r {
		case nil:
		case killed{}:
			died = true
		default:
			panic(r)
		}
	}()
	verb(w.node())
	return false
}

// wire is a segment on which another host has the first addresses that we ask for, or
// the gateway is silent.
type wire struct {
	refuse int      // how many more
	by     conf.MAC // who refuses; zero: another host each time
	asked  []string // the first address of each question
	silent bool
	undone int // how many questions
}

// Do implements plan.Executor.
func (w *wire) Do(_ context.Context, op plan.Op) error {
	switch kind := op.Kind.(type) {
	case plan.Conflict:
		w.asked = append(w.asked, kind.Targets[0].Addr.String())
		if w.refuse > 0 {
			w.refuse--
			by := w.by
			if by.IsZero() {
				by = conf.MAC{2, 0xff, 0, 0, 0, byte(len(w.asked))}
			}
			err := &probe.TakenError{Taken: []probe.Taken{{Target: kind.Targets[0], By: by, What: "ARP reply"}}}
			return &cnierr.Error{Code: cnierr.AddressTaken, Op: "probe address", Subject: kind.Targets[0].Addr.String(), Err: err}
		}
	case plan.Gateway:
		if w.silent {
			return cnierr.New(cnierr.GatewaySilent, "ask gateway", kind.Targets[0].Gateway.String(), "", "silent")
		}
	}
	return nil
}

// Undo implements plan.Executor.
func (w *wire) Undo(context.Context, plan.Op) error {
	w.undone++
	return nil
}

// Check implements plan.Executor.
func (w *wire) Check(context.Context, plan.Op) error { return nil }

const (
	config = `{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "master": "ens1", "rdma": %q, "ipam": {"type": "roce-ipam",
	"subnets": [{"subnet": "172.16.11.0/29", "gateway": "172.16.11.6"}, {"subnet": "fd00:11::/64", "gateway": "fd00:11::fffe"}]}%s}`
	railsConfig = `{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "rails": {"match": {"ifNames": ["ens*"]}, "count": 3},
	"rdma": %q, "ipam": {"type": "roce-ipam",
	"subnets": [{"subnet": "172.16.{rail+11}.0/29", "gateway": "172.16.{rail+11}.6"}, {"subnet": "fd00:{rail+11}::/64", "gateway": "fd00:{rail+11}::fffe"}]}%s}`
)

func podPath(id string) string { return "/run/netns/" + id }

// request returns the request of an attachment; extra is more JSON members.
func (w *world) request(id, ifName, extra string) conf.Request {
	w.t.Helper()
	r, err := conf.Parse(conf.Input{
		ContainerID: id, IfName: ifName, Netns: podPath(id),
		Stdin: fmt.Appendf(nil, w.config, w.mode, extra),
	})
	must(w.t, err)
	return r
}

func (w *world) del(id, ifName string) conf.Del {
	w.t.Helper()
	d, err := conf.ParseDel(conf.Input{
		ContainerID: id, IfName: ifName, Netns: podPath(id),
		Stdin: fmt.Appendf(nil, w.config, w.mode, ""),
	})
	must(w.t, err)
	return d
}

// file returns the path of a file that the node keeps of a container.
func (w *world) file(id, name string) string {
	return filepath.Join(w.dir, "attachments", id, name)
}

// mustCome is an ADD of net1 to a pod that is new. The pod is the one that tests damage.
func (w *world) mustCome(id string) *current.Result {
	w.t.Helper()
	w.pod = w.fake.Pod(podPath(id))
	return w.mustAdd(w.request(id, "net1", ""))
}

func (w *world) mustAdd(req conf.Request) *current.Result {
	w.t.Helper()
	res, err := w.node().Add(ctx, req)
	if err != nil {
		w.t.Fatalf("ADD of %v: %v", req.Attachment, err)
	}
	return res
}

// mustBeWhole is a CHECK of net1 of a pod.
func (w *world) mustBeWhole(id string) {
	w.t.Helper()
	w.mustCheck(w.request(id, "net1", ""))
}

func (w *world) mustCheck(req conf.Request) {
	w.t.Helper()
	if err := w.node().Check(ctx, req); err != nil {
		w.t.Errorf("CHECK of %v: %v", req.Attachment, err)
	}
}

// mustLeave is a DEL of net1 of a pod.
func (w *world) mustLeave(id string, when ...string) {
	w.t.Helper()
	w.mustDel(w.del(id, "net1"), when...)
}

func (w *world) mustDel(d conf.Del, when ...string) {
	w.t.Helper()
	if err := w.node().Del(ctx, d); err != nil {
		w.t.Errorf("DEL of %v %v: %v", d.Attachment, when, err)
	}
}

func (w *world) mustGC(network string, valid ...conf.Attachment) {
	w.t.Helper()
	if err := w.node().GC(ctx, w.gc(network, valid...)); err != nil {
		w.t.Errorf("GC: %v", err)
	}
}

// leases returns the leased addresses, as address and owner, and the files of another plugin.
func (w *world) leases() []string {
	w.t.Helper()
	entries, err := w.book().List(context.Background(), "")
	must(w.t, err)
	var out []string
	for _, e := range entries {
		if e.State == ledger.Leased {
			out = append(out, fmt.Sprintf("%s %s/%s", e.Addr, e.Owner.ContainerID, e.Owner.IfName))
		}
	}
	for _, f := range w.held() {
		out = append(out, filepath.Base(f))
	}
	return out
}

// held returns the leases of another IPAM plugin.
func (w *world) held() []string {
	w.t.Helper()
	l, err := filepath.Glob(filepath.Join(w.plugins, "lease-*"))
	must(w.t, err)
	return l
}

// unreadable makes a record of another container that cannot be read. The function that it returns removes it.
func (w *world) unreadable(id string) (forget func()) {
	w.t.Helper()
	must(w.t, os.MkdirAll(filepath.Join(w.dir, "attachments", id), 0o700))
	write(w.t, w.file(id, "net1.json"), "{")
	return func() { must(w.t, os.RemoveAll(filepath.Join(w.dir, "attachments", id))) }
}

// files returns what is in the folder of records.
func (w *world) files() []string {
	w.t.Helper()
	var out []string
	err := filepath.WalkDir(filepath.Join(w.dir, "attachments"), func(path string, d os.DirEntry, err error) error {
		if err == nil && filepath.Base(path) != "attachments" {
			out = append(out, strings.TrimPrefix(path, w.dir))
		}
		return nil
	})
	must(w.t, err)
	return out
}

// mustBeEmpty checks that nothing of ours is left anywhere.
func (w *world) mustBeEmpty(when string) {
	w.t.Helper()
	w.mustBeUndone(when)
	if l := w.leases(); len(l) > 0 {
		w.t.Errorf("%s, leased: %v", when, l)
	}
}

// mustBeUndone is mustBeEmpty but for leases.
func (w *world) mustBeUndone(when string) {
	w.t.Helper()
	if s := w.fake.String(); s != "" {
		w.t.Errorf("%s, the kernel has:\n%s", when, s)
	}
	if s := w.fake.Host().String(); strings.Contains(s, "veth") || strings.Contains(s, fmt.Sprint(plan.HostLinkTable)) || strings.Contains(s, plan.VLANMark) {
		w.t.Errorf("%s, the host has:\n%s", when, s)
	}
	if w.hca.in != (netns.ID{}) || w.hca.name != device.Name {
		w.t.Errorf("%s, the RDMA device is in %v as %q", when, w.hca.in, w.hca.name)
	}
	if f := w.files(); len(f) > 0 {
		w.t.Errorf("%s, files: %v", when, f)
	}
	if n := w.hca.open.Load(); n != 0 {
		w.t.Errorf("%s, %d handles are open", when, n)
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
