// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package foreign tells when a queue pair of a pod gets the GID of another pod.
//
// In shared mode all pods see the whole GID table, and the kernel lets each of them use each
// entry. Nothing can prevent that here: this package tells it. A kprobe says which thread
// uses which entry, the namespace of the thread says which pod that is, and the records say
// which pod has the entry. It sees no queue pair from before it started, and never decides
// what a pod may do. Read this file first, then probe.go for what the kernel tells.
package foreign

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

const (
	// lookEvery is how often the uses are read. After a look that found some it is four times as
	// long as that took, up to restAtMost: looks of up to a quarter of a second take a fifth of a
	// processor, and those of a second half of one.
	lookEvery, restAtMost = 100 * time.Millisecond, time.Second
	// againEvery is how often the probe is set again where that failed, and how often one that
	// is set is tried.
	againEvery = time.Minute
	// forgetAfter is how long after its pause a message is new again.
	forgetAfter = 10 * time.Minute
	// knownFor is how long a use is not judged again. The number of a namespace goes to another
	// pod soon.
	knownFor = 2 * time.Second
	// mostAgain is how many entries may wait for tables that cannot be read. With more, all are lost.
	mostAgain = 1000
)

// Config is what a Watcher works with. All fields are needed.
type Config struct {
	Tracing   string // where tracefs is, or can be mounted
	Sys, Proc fs.FS
	Records   func() ([]record.Record, error)
	Calls     calls.File
	Clock     pace.Clock
	Log       *slog.Logger
}

// Watcher tells the uses of foreign GIDs on a node.
type Watcher struct {
	Config
	devices map[uint64]string // by the address of their struct ib_device
	known   map[place]bool    // what was judged, from knownAt on
	knownAt time.Duration
	again   map[place]uint32 // what waits for the tables, and a thread of each
	tables  pace.Pause       // after the tables could not be read
	told    map[subject]*pace.Pause
	grew    bool              // the filter, at the last look
	said    map[string]string // the last error about each thing
}

// place is an entry of a table, and the namespace of who uses it.
type place struct {
	netns  uint64
	device string
	port   uint32
	index  int
}

// subject is what there is one message about: a pod and a device. All programs without a
// record are one pod, because a program can make many namespaces.
type subject struct {
	container conf.ContainerID
	device    string
}

// New returns a Watcher. It does no I/O.
func New(c Config) *Watcher {
	return &Watcher{Config: c, devices: map[uint64]string{}, known: map[place]bool{}, again: map[place]uint32{}, told: map[subject]*pace.Pause{}, said: map[string]string{}}
}

// Run tells until the context ends. Then the probe is removed. It keeps its thread: the probe
// knows it.
func (w *Watcher) Run(ctx context.Context) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for ctx.Err() == nil {
		if err := w.watch(ctx); err != nil {
			w.blind(err)
		}
		_ = w.Clock.Wait(ctx, againEvery) // the loop looks at the context
	}
}

// blind writes an alarm about why nothing is watched, unless it was the last one.
func (w *Watcher) blind(why error) {
	if w.news("the probe", why) {
		w.note(calls.Call{Error: "it is not told when a pod uses the GID of another one: " + why.Error()}, calls.LostUses)
	}
}

// news says whether an error is another one than the last about the same thing.
func (w *Watcher) news(about string, err error) bool {
	text := fmt.Sprint(err)
	was := w.said[about]
	w.said[about] = text
	return err != nil && text != was
}

func (w *Watcher) watch(ctx context.Context) error {
	p, err := newProbe(w.Tracing)
	if err != nil {
		return err
	}
	defer p.close()
	return w.follow(ctx, p)
}

// follow tells what a probe sees, until the context ends or the probe fails.
func (w *Watcher) follow(ctx context.Context, p *probe) error {
	clear(w.devices) // those of an ib_core that was loaded before
	if _, err := w.name(p); err != nil {
		return err
	}
	if err := p.filter("0"); err != nil { // none: it sees all threads from here on
		return err
	}
	w.news("the probe", nil)
	w.Log.Info("watching the use of GIDs", "devices", len(w.devices))
	tried := w.Clock.Now()
	for pause := lookEvery; w.Clock.Wait(ctx, pause) == nil; {
		if now := w.Clock.Now(); now >= tried+againEvery {
			if err := w.try(p); err != nil {
				return err
			}
			tried = now
		}
		var err error
		if pause, err = w.look(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// look reads what was used since the last look, and tells what is foreign. It returns the rest
// until the next one.
func (w *Watcher) look(ctx context.Context, p *probe) (rest time.Duration, err error) {
	began, found := w.Clock.Now(), false
	uses, err := w.read(p, nil)
	if err == nil && len(uses) > 0 {
		var later []use
		later, err = w.name(p)
		uses, found = append(uses, later...), true
	}
	if err == nil {
		elsewhere(func() { w.judge(ctx, uses) })
	}
	if !found { // a busy machine made it slow
		return lookEvery, err
	}
	return min(max(lookEvery, 4*(w.Clock.Now()-began)), restAtMost), err
}

// name finds which device is at which address: it reads another index of each port, and the
// probe sees that. It returns the uses by queue pairs in the meantime.
func (w *Watcher) name(p *probe) ([]use, error) {
	ports := w.show()
	uses, err := w.read(p, ports)
	if err == nil && len(ports) > 0 && len(w.devices) == 0 {
		err = cnierr.New(cnierr.IO, "see reads of GIDs of", "this process", "run it with the PIDs of the node (hostPID)", "the probe shows none")
	}
	return uses, err
}

// show reads of each port the index that the port has in the list, which it returns.
func (w *Watcher) show() []string {
	ports, _ := fs.Glob(w.Sys, "class/infiniband/*/ports/*") // the pattern is correct
	for i, port := range ports {
		_, _ = fs.ReadFile(w.Sys, fmt.Sprintf("%s/gid_attrs/types/%d", port, i)) // an unused one is an error
	}
	return ports
}

// try returns an error if the probe does not count reads of this thread: ib_core was loaded
// again, or kprobes are off. Such a probe shows nothing, which looks like pods that do nothing.
func (w *Watcher) try(p *probe) error {
	before, err := p.hits()
	if err != nil {
		return err
	}
	ports := w.show()
	after, err := p.hits()
	if err == nil && len(ports) > 0 && after == before {
		err = cnierr.New(cnierr.IO, "see reads of GIDs of", "this process", "wait a minute, then the probe is set again; if that does not help, look whether kprobes are on: cat /sys/kernel/debug/kprobes/enabled", "the probe does not work any more")
	}
	return err
}

// read returns the uses by queue pairs. It names the devices of the ports by the reads of this
// thread, of the index that a port has in the list. Other callers go into the filter.
func (w *Watcher) read(p *probe, ports []string) ([]use, error) {
	uses, lost, err := p.read()
	before := len(p.ignored)
	for _, u := range uses {
		switch {
		case int(u.thread) == p.thread:
			if u.index < len(ports) {
				w.devices[u.device] = path.Base(path.Dir(path.Dir(ports[u.index])))
			}
		case err == nil && !u.setsGID():
			err = p.ignore(u.from)
		}
	}
	// Until the kernel has the filter, packets of Soft-RoCE fill the buffer.
	grew := len(p.ignored) > before
	if lost > 0 && !grew && !w.grew {
		w.lost(lost)
	}
	w.grew = grew
	return slices.DeleteFunc(uses, func(u use) bool { return !u.setsGID() }), err
}

func (w *Watcher) lost(uses int) {
	w.alarm(subject{}, calls.Call{Error: fmt.Sprintf("%d uses of GIDs were not looked at, because there were too many: a foreign one may be among them", uses)}, calls.LostUses)
}

// judge tells which uses are foreign. While the tables cannot be read, it keeps what they must
// decide, and tells of it later, if the thread is still in that namespace.
func (w *Watcher) judge(ctx context.Context, uses []use) {
	threads, due := w.places(uses), w.tables.Over(w.Clock.Now())
	if due {
		for at, thread := range w.again {
			if ino, _ := netns.Inode(w.Proc, fmt.Sprint(thread)); ino == at.netns { // 0 if it has ended
				threads[at] = thread
			}
		}
		clear(w.again)
	}
	if len(threads) == 0 {
		return
	}
	records, err := w.Records()
	if w.news("the records", err) {
		w.Log.Warn("some records cannot be read: it is not told when these pods use the GID of another one", "error", err)
	}
	records = living(records)
	for at, thread := range threads {
		owner, decided := w.recorded(records, at)
		if decided {
			delete(threads, at)
		}
		if decided && owner != nil {
			w.tell(records, at, thread, *owner)
		}
	}
	if len(threads) == 0 {
		return
	}
	maps.Copy(w.again, threads)
	if !due {
		if len(w.again) > mostAgain {
			w.lost(len(w.again))
			clear(w.again)
		}
		return
	}
	tables, err := gids.Node{Sys: w.Sys, Records: records}.Tables(ctx)
	if w.news("the GID tables", err) {
		w.Log.Warn("the GID tables cannot be read: it is not told when a pod uses the GID of another one", "error", err)
	}
	if err != nil {
		w.tables.Fail(w.Clock)
		return
	}
	w.settle(records, threads, tables)
}

// settle tells which of the entries that threads use are foreign, as the tables show.
func (w *Watcher) settle(records []record.Record, threads map[place]uint32, tables []gids.Table) {
	w.tables = pace.Pause{}
	clear(w.again)
	for at, thread := range threads {
		if owner := at.owner(tables); owner != nil {
			w.tell(records, at, thread, *owner)
		}
	}
}

// living returns the records of pods with a network namespace that is certain to exist. When a
// namespace is gone, the kernel can give its inode to that of another pod.
func living(records []record.Record) []record.Record {
	alive := netns.Observe()
	return slices.DeleteFunc(slices.Clone(records), func(r record.Record) bool {
		is, _ := alive(netns.Ref{Path: r.Netns, ID: r.NetnsID}) // with an error it is not known
		return !is
	})
}

// recorded returns the owner of an entry if it is another pod, as far as the records decide:
// one attachment had this entry with this address when it was made, the entry still has both
// address and interface, and no other record has the address. nil: it is the user's own. That
// spares a look at the tables of the node, which takes long.
func (w *Watcher) recorded(records []record.Record, at place) (owner *gids.Owner, decided bool) {
	read := func(file string) string {
		return discover.Text(w.Sys, fmt.Sprintf("class/infiniband/%s/ports/%d/%s/%d", at.device, at.port, file, at.index)) // "": it may be hidden
	}
	gid, netdev, others := read("gids"), read("gid_attrs/ndevs"), false
	for _, r := range records {
		for g := range plan.All[plan.GID](r.Plan.Ops) {
			for _, t := range g.Targets {
				if plan.GIDText(t.Addr) != gid {
					continue
				}
				here := g.Device.Name == at.device && g.Device.Port == at.port && t.Index != nil && *t.Index == at.index
				if here && r.NetnsID.Ino == at.netns {
					return nil, true
				}
				if here && owner == nil && string(t.Link) == netdev {
					owner = &gids.Owner{Pod: r.Pod, ContainerID: r.ContainerID, Link: t.Link, Addr: t.Addr, ID: r.NetnsID}
				} else {
					others = true
				}
			}
		}
	}
	return owner, owner != nil && !others
}

// places returns the entries that processes other than those of the host use, but for known
// ones, and a thread of each.
func (w *Watcher) places(uses []use) map[place]uint32 {
	if now := w.Clock.Now(); now > w.knownAt+knownFor {
		clear(w.known)
		w.knownAt = now
	}
	host, _ := netns.Inode(w.Proc, "self") // without it nothing is the host's
	seen, out := map[use]bool{}, map[place]uint32{}
	for _, u := range uses {
		device, named := w.devices[u.device]
		if seen[u] || !named {
			continue
		}
		seen[u] = true
		ino, err := netns.Inode(w.Proc, fmt.Sprint(u.thread)) // it may have ended
		at := place{ino, device, u.port, u.index}
		if err == nil && ino != host && !w.known[at] {
			w.known[at], out[at] = true, u.thread
		}
	}
	return out
}

// elsewhere calls fn on another thread: the probe sees all that the own one reads.
func elsewhere(fn func()) {
	var other sync.WaitGroup
	other.Go(fn)
	other.Wait()
}

// owner returns the owner of an entry if it is another pod, else nil. An entry without an owner
// is the pod's that has its GID in another entry: a program has added the address. Owners without
// a record are left out, because each program can give an address to a namespace of its own.
// The entries of the host are not those of a pod: programs use them that choose no index.
func (at place) owner(tables []gids.Table) *gids.Owner {
	var gid string
	var owners []gids.Owner
	byGID := map[string][]gids.Owner{}
	for _, t := range tables {
		for _, e := range t.Entries {
			known := slices.DeleteFunc(slices.Clone(e.Owners), func(o gids.Owner) bool { return o.Netns != "" })
			byGID[e.GID] = append(byGID[e.GID], known...)
			if t.Holder == nil && t.Device == at.device && t.Port == at.port && e.Index == at.index {
				gid, owners = e.GID, known
			}
		}
	}
	if len(owners) == 0 && !strings.HasPrefix(gid, "fe80:") { // many interfaces have one link-local address
		owners = byGID[gid]
	}
	own := func(o gids.Owner) bool { return o.ID == netns.ID{} || o.ID.Ino == at.netns }
	if len(owners) == 0 || slices.ContainsFunc(owners, own) {
		return nil
	}
	return &owners[0]
}

func (w *Watcher) tell(records []record.Record, at place, thread uint32, owner gids.Owner) {
	program := report.Printable(rdma.ProcessOf(w.Proc, thread).String())
	what := fmt.Sprintf("%s uses index %d of the GID table of %s/%d, which is %s of %s: have it use the index that roce-env or rocectl gids shows",
		program, at.index, at.device, at.port, owner.Addr, owner)
	c := calls.Call{Error: what}
	for _, r := range records {
		if r.NetnsID.Ino != at.netns {
			continue
		}
		for g := range plan.All[plan.GID](r.Plan.Ops) {
			if g.Device.Name == at.device || c.ContainerID == "" {
				c.Network, c.Attachment, c.Pod, c.UID = r.Network, r.Attachment, r.Pod.String(), r.Pod.UID
			}
		}
	}
	w.alarm(subject{c.ContainerID, at.device}, c, calls.ForeignGID)
}

// alarm writes a call about a subject, unless the last one was a moment ago. Each time that
// the subject does not rest the next one is later.
func (w *Watcher) alarm(about subject, c calls.Call, step string) {
	now := w.Clock.Now()
	maps.DeleteFunc(w.told, func(_ subject, p *pace.Pause) bool { return now > p.Until+forgetAfter })
	pause := w.told[about]
	if pause == nil {
		pause = &pace.Pause{}
	}
	if !pause.Over(now) {
		return
	}
	pause.Fail(w.Clock)
	w.told[about] = pause
	w.note(c, step)
}

func (w *Watcher) note(c calls.Call, step string) {
	c.At, c.Verb, c.Steps = time.Now().UTC(), calls.Alarm, []calls.Step{{Name: step}}
	w.Log.Warn("alarm", "what", c.Error, "pod", c.Pod)
	if err := w.Calls.Append(c); err != nil {
		w.Log.Warn("an alarm cannot be noted", "error", err)
	}
}
