// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package usage counts what the programs of pods have on the RDMA devices of a node: queue
// pairs, contexts, memory regions and connections.
//
// The kernel lists each object with the process that made it. The network namespace of that
// process tells the pod. So it needs the PID namespace of the node, and root. It changes
// nothing. Read this file first, then traffic.go for the rates.
package usage

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Node is the node to look at.
type Node struct {
	Sys, Proc fs.FS           // roots of sysfs and procfs, as the host has them
	Records   []record.Record // of the attachments on the node
	BootID    string          // of the running kernel
	Calls     calls.File      // has what DEL found of programs that outlive their pod
	// Dial opens a socket in the namespace of the calling thread; nil: nldev.Dial.
	Dial func() (*nldev.Conn, error)
}

// Kind says who a User is.
type Kind string

// The kinds of users. A process that is Gone was found by the DEL of its pod. One that is Unknown
// is in another namespace of no record: another plugin made its network, or the DEL is not known
// any more.
const (
	Pod     Kind = "pod"
	Gone    Kind = "gone"
	Host    Kind = "host"
	Kernel  Kind = "kernel"
	Unknown Kind = "unknown"
)

// User is who has objects on a device.
type User struct {
	Kind        Kind             `json:"kind"`
	Pod         conf.Pod         `json:"pod,omitzero"`
	ContainerID conf.ContainerID `json:"containerID,omitempty"`
	Module      string           `json:"module,omitempty"` // of the kernel
}

// String returns the pod, or else who it is.
func (u User) String() string {
	switch u.Kind {
	case Pod:
		return cmp.Or(u.Pod.String(), string(u.ContainerID))
	case Gone:
		return cmp.Or(u.Pod.String(), string(u.ContainerID)) + " (gone)"
	case Kernel:
		return "the kernel's " + u.Module
	case Unknown:
		return "?"
	}
	return string(u.Kind)
}

// Use is what one user has on one device.
type Use struct {
	Device string `json:"device"`
	User
	Interface   conf.LinkName  `json:"interface,omitempty"` // of the pod, with an address in the GID table of the device
	QueuePairs  map[string]int `json:"queuePairs"`          // by type, in the words of rdma(8)
	Contexts    int            `json:"contexts"`
	Regions     int            `json:"regions"`
	RegionBytes uint64         `json:"regionBytes"`
	Connections int            `json:"connections"`
	Processes   []rdma.Process `json:"processes"`
	// Held are GID indexes of attachments that are gone, which read as free. At DEL the user
	// had queue pairs, which hold them until they end; the kernel does not say which ones do.
	Held []calls.Held `json:"held,omitempty"`
	// Charged is what the rdma controller has charged to the control group of the pod (cgroup
	// v2); nil where it is off, and for other kinds.
	Charged *Charge `json:"charged,omitempty"`
	// Counted is what the driver has counted for these processes alone; nil if it does not.
	Counted *Traffic `json:"counted,omitempty"`
	// Sent and Received are rates: nil if nothing is counted for the user, and the device
	// does not count or counts for several users with queue pairs.
	Sent     *Rate `json:"sent,omitempty"`
	Received *Rate `json:"received,omitempty"`
}

// Charge is a line of rdma.current.
type Charge struct {
	Handles int `json:"hcaHandles"` // contexts
	Objects int `json:"hcaObjects"` // all others, such as queue pairs and regions
}

// Total returns the number of queue pairs.
func (u Use) Total() int {
	n := 0
	for _, of := range u.QueuePairs {
		n += of
	}
	return n
}

type read struct {
	Node
	host      uint64                    // the inode of the host's network namespace
	dels      []calls.Call              // of this boot that have found programs, the last one first
	last      map[calls.Held]calls.Held // of dels, by device, port and index
	processes map[uint32]rdma.Process
	uses      []Use
}

// Read returns what users have, by device and user. Devices that were moved to pods are
// included. Users without an object are left out, and so are the queue pairs that the
// kernel has on each port. Errors: rdma.ErrNoDevice on a kernel without RDMA; those of the
// kernel; beside the uses, one of Calls, without which programs of deleted pods are Unknown.
func (n Node) Read(ctx context.Context) ([]Use, error) {
	if n.Dial == nil {
		n.Dial = nldev.Dial
	}
	r := read{Node: n, processes: map[uint32]rdma.Process{}, last: map[calls.Held]calls.Held{}, uses: []Use{}}
	r.host, _ = netns.Inode(n.Proc, "self") // without it no process is one of the host
	fault := r.readDels()
	if err := r.devices(ctx, func(fn func() error) error { return fn() }); err != nil {
		return nil, err
	}
	looked := map[netns.ID]bool{}
	for _, rec := range n.Records {
		for range plan.All[plan.Move](rec.Plan.Ops) {
			if looked[rec.NetnsID] {
				continue
			}
			looked[rec.NetnsID] = true
			if err := r.moved(ctx, rec); err != nil {
				return nil, err
			}
		}
	}
	for i := range r.uses {
		if r.uses[i].Kind == Pod {
			r.uses[i].Charged = r.charge(r.uses[i])
		}
	}
	slices.SortFunc(r.uses, func(a, b Use) int {
		return cmp.Or(parent.Natural(a.Device, b.Device), cmp.Compare(a.Kind.order(), b.Kind.order()), cmp.Compare(a.String(), b.String()))
	})
	return r.uses, fault
}

// readDels reads the DELs of this boot. An index belongs to the attachment that had it last: the
// kernel does not give away an index that a queue pair holds.
func (r *read) readDels() error {
	dels, err := r.Calls.Held()
	for _, c := range dels {
		if c.Held[0].BootID != r.BootID {
			continue
		}
		r.dels = append(r.dels, c)
		for _, h := range c.Held {
			r.last[calls.Held{Device: h.Device, Port: h.Port, Index: h.Index}] = h
		}
	}
	slices.Reverse(r.dels)
	for _, rec := range r.Records { // a driver may hide their entries
		for g := range plan.All[plan.GID](rec.Plan.Ops) {
			for _, index := range g.Indexes() {
				delete(r.last, calls.Held{Device: g.Device.Name, Port: g.Device.Port, Index: index})
			}
		}
	}
	if err != nil {
		return cnierr.New(cnierr.IO, "read calls in", r.Calls.Dir, "as root, look at the files calls and calls.1 there: without them, the next ADD or DEL makes a new one", "%w: programs of pods that are gone are shown without pod and GID index", err)
	}
	return nil
}

// outlived says whether a process was in the namespace of a DEL at that time. One that began
// later holds nothing of that pod, and its namespace may be another one with the same inode.
func (r *read) outlived(p rdma.Process, del calls.Held) bool {
	if p.Netns != del.Netns {
		return false
	}
	b, _ := fs.ReadFile(r.Proc, fmt.Sprintf("%d/stat", p.PID)) // it may have ended
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 {
		return false
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64) // starttime of proc_pid_stat(5), a hundred in a second
	return err == nil && time.Duration(ticks)*(time.Second/100) <= del.Since
}

// order has pods first.
func (k Kind) order() int { return slices.Index([]Kind{Pod, Gone, Host, Kernel, Unknown}, k) }

// moved reads the devices that are in the namespace of an attachment, unless it is gone.
func (r *read) moved(ctx context.Context, rec record.Record) error {
	ns, err := netns.Open(rec.Netns)
	if errors.Is(err, netns.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	if ns.ID != rec.NetnsID {
		return nil
	}
	return r.devices(ctx, ns.Enter)
}

func (r *read) devices(ctx context.Context, enter func(func() error) error) error {
	var c *nldev.Conn
	err := enter(func() (err error) {
		c, err = r.Dial()
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	sys, err := c.System(ctx)
	if err != nil {
		return err
	}
	for _, d := range sys.Devices {
		if err := r.device(ctx, c, d); err != nil && !errors.Is(err, rdma.ErrNoDevice) { // else it is gone
			return fmt.Errorf("objects of RDMA device %s: %w", d.Name, err)
		}
	}
	return nil
}

func (r *read) device(ctx context.Context, c *nldev.Conn, d nldev.Device) error {
	for _, kind := range []nldev.Kind{nldev.QueuePairs, nldev.Regions, nldev.Connections, nldev.Contexts} {
		objects, err := c.Resources(ctx, d.Index, kind)
		if err != nil {
			return err
		}
		for _, o := range objects {
			if kind != nldev.QueuePairs || !o.Own() {
				r.of(d, o).count(kind, o)
			}
		}
	}
	return c.Each(ctx, d.Index, nldev.Counters, func(counter []byte) {
		pid, values := parseCounter(counter)
		if pid == 0 {
			return
		}
		u := r.of(d, nldev.Resource{PID: pid})
		t := cmp.Or(u.Counted, &Traffic{At: time.Now()})
		t.add(func(file string) (uint64, bool) {
			v, ok := values[path.Base(file)]
			return v, ok
		})
		if t.Unit != "" {
			u.Counted = t
		}
	})
}

func (u *Use) count(kind nldev.Kind, o nldev.Resource) {
	switch kind {
	case nldev.QueuePairs:
		u.QueuePairs[o.TypeName()]++
	case nldev.Regions:
		u.Regions++
		u.RegionBytes += o.Bytes
	case nldev.Connections:
		u.Connections++
	case nldev.Contexts:
		u.Contexts++
	}
}

// of returns the use that an object belongs to.
func (r *read) of(d nldev.Device, o nldev.Resource) *Use {
	u := Use{Device: d.Name, User: User{Kind: Kernel, Module: o.Module}, QueuePairs: map[string]int{}, Processes: []rdma.Process{}}
	var p rdma.Process
	if o.Module == "" {
		p = r.process(o.PID)
		u.User, u.Interface = r.user(p, d.Name)
	}
	i := slices.IndexFunc(r.uses, func(have Use) bool { return have.Device == u.Device && have.User == u.User })
	if i < 0 {
		i = len(r.uses)
		r.uses = append(r.uses, u)
	}
	have := &r.uses[i]
	if o.Module == "" && !slices.Contains(have.Processes, p) {
		have.Processes = append(have.Processes, p)
		r.addHeld(p, have)
	}
	return have
}

// user returns who has the network namespace of a process, and the pod's interface on a device.
func (r *read) user(p rdma.Process, device string) (User, conf.LinkName) {
	ino := p.Netns
	if ino != 0 && ino == r.host {
		return User{Kind: Host}, ""
	}
	u, link := User{Kind: Unknown}, conf.LinkName("")
	for _, rec := range r.Records {
		if ino == 0 || rec.NetnsID.Ino != ino {
			continue
		}
		if u.Kind == Unknown {
			u = User{Kind: Pod, Pod: rec.Pod, ContainerID: rec.ContainerID}
		}
		for g := range plan.All[plan.GID](rec.Plan.Ops) {
			if g.Device.Name == device {
				link = g.Targets[0].Link
			}
		}
	}
	for _, c := range r.dels {
		if u.Kind == Unknown && r.outlived(p, c.Held[0]) {
			namespace, name, _ := strings.Cut(c.Pod, "/")
			u = User{Kind: Gone, Pod: conf.Pod{Namespace: namespace, Name: name}, ContainerID: c.ContainerID}
		}
	}
	return u, link
}

// addHeld adds the GID indexes of a device that the DELs of a user have left to a process,
// without those that have an entry.
func (r *read) addHeld(p rdma.Process, u *Use) {
	for _, c := range r.dels {
		for _, h := range c.Held {
			last := r.last[calls.Held{Device: h.Device, Port: h.Port, Index: h.Index}]
			if h.Device != u.Device || c.ContainerID != u.ContainerID || h != last || !r.outlived(p, h) || slices.Contains(u.Held, h) {
				continue
			}
			if _, err := fs.ReadFile(r.Sys, fmt.Sprintf("class/infiniband/%s/ports/%d/gid_attrs/types/%d", h.Device, h.Port, h.Index)); err != nil {
				u.Held = append(u.Held, h)
			}
		}
	}
}

// process returns a process of the reader's PID namespace.
func (r *read) process(pid uint32) rdma.Process {
	p, known := r.processes[pid]
	if !known {
		p = rdma.ProcessOf(r.Proc, pid)
		r.processes[pid] = p
	}
	return p
}

// charge returns what the control groups of a pod's processes have. That of the pod, which has
// its UID in its name, has the sum of its containers.
func (r *read) charge(u Use) *Charge {
	groups := map[string]bool{}
	for _, p := range u.Processes {
		b, _ := fs.ReadFile(r.Proc, fmt.Sprintf("%d/cgroup", p.PID)) // it may have ended
		_, group, _ := strings.Cut("\n"+string(b), "\n0::/")
		group, _, _ = strings.Cut(group, "\n")
		for dir := group; u.Pod.UID != "" && dir != "."; dir = path.Dir(dir) {
			if strings.Contains(strings.ReplaceAll(path.Base(dir), "_", "-"), u.Pod.UID) { // systemd has _
				group = dir
			}
		}
		groups[group] = true
	}
	var sum *Charge
	for group := range groups {
		b, _ := fs.ReadFile(r.Sys, path.Join("fs/cgroup", group, "rdma.current")) // the controller may be off
		for line := range strings.Lines(string(b)) {
			var c Charge
			device, values, _ := strings.Cut(line, " ")
			if _, err := fmt.Sscanf(values, "hca_handle=%d hca_object=%d", &c.Handles, &c.Objects); err == nil && device == u.Device {
				sum = cmp.Or(sum, &Charge{})
				sum.Handles, sum.Objects = sum.Handles+c.Handles, sum.Objects+c.Objects
			}
		}
	}
	return sum
}
