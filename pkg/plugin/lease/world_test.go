// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile/nodefiletest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

const boot = "5f0c2d1e-8a3b-4c6d-9e7f-000000000001"

// node is a node with real lease databases, node files and IPAM plugins. It has no
// kernel: the facts of its NICs are given.
type node struct {
	t       *testing.T
	dir     string // stateDir
	plugins string // CNI_PATH
	config  string // of the network; %s is more members
	now     time.Duration
	refuse  bool            // what is in quarantine
	gone    map[string]bool // paths of namespaces
	log     bytes.Buffer
	stderr  io.Writer // of plugins; nil: the output of the test
	// agent is what the agent answers. asked counts the requests.
	agent map[nodefile.Key]nodefile.Answer
	asked int
}

// foreign is an IPAM plugin that has its leases as files. It notes how it is called, and does
// first what the file on.VERB says.
const foreign = `#!/bin/sh
cd "${0%/*}" || exit 9
echo "$CNI_COMMAND id=$CNI_CONTAINERID if=$CNI_IFNAME netns=$CNI_NETNS args=$CNI_ARGS own=$OWN" >>calls
cat >>calls; echo >>calls
if [ -e on.$CNI_COMMAND ]; then . ./on.$CNI_COMMAND; fi
case $CNI_COMMAND in
ADD) : >lease-$CNI_CONTAINERID; echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.5/24"}]}' ;;
CHECK) test -e lease-$CNI_CONTAINERID ;;
DEL) rm -f lease-$CNI_CONTAINERID ;;
esac
`

const table = `{"nodes": {"gpu-01": [{"subnet": "10.5.0.0/29", "gateway": "10.5.0.6"}]}}`

func newNode(t *testing.T, s source) *node {
	t.Helper()
	n := &node{t: t, dir: filepath.Join(t.TempDir(), "state"), plugins: t.TempDir(), config: s.config, agent: map[nodefile.Key]nodefile.Answer{}}
	n.write(filepath.Join(n.plugins, "foreign"), foreign, 0o700)
	for _, id := range []conf.ContainerID{"pod-0", "pod-1"} { // an IPAM plugin inherits the lock
		unlock, err := n.records().Lock(t.Context(), id)
		must(t, err)
		t.Cleanup(unlock)
	}
	if s.before != nil {
		s.before(n)
	}
	return n
}

func (n *node) write(path, content string, mode os.FileMode) {
	n.t.Helper()
	must(n.t, os.WriteFile(path, []byte(content), mode))
}

func (n *node) book() *ipam.Book {
	return ipam.New(ipam.Config{
		Dir: n.dir, BootID: boot, Now: func() time.Duration { return n.now },
		Observe: func() func(netns.Ref) (bool, error) {
			return func(r netns.Ref) (bool, error) { return !n.gone[r.Path], nil }
		},
	})
}

func (n *node) files() nodefile.Store { return nodefile.Store{Dir: n.dir, BootID: boot} }

func (n *node) records() record.Store { return record.Store{Dir: n.dir, BootID: boot} }

// allocator returns the sources of the node as a new process sees them, with the
// environment of a call.
func (n *node) allocator() lease.Allocator {
	return lease.Allocator{
		Book: n.book(), Program: conf.PluginType, Agent: n.files(), NodeName: "gpu-01", RefuseQuarantined: n.refuse,
		ReadFile: func(string) ([]byte, error) { return []byte(table), nil },
		Plugins: lease.Plugins{
			Path: []string{n.plugins}, Environ: []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=STATUS"}, Stderr: cmp.Or[io.Writer](n.stderr, n.t.Output()),
			Guard: n.records().Guard,
		},
		Now: func() time.Duration { return n.now },
		Log: slog.New(slog.NewTextHandler(&n.log, nil)),
	}
}

// input is the call for the interface net1 of a container. The pod's name is that of
// the container up to a dot.
func (n *node) input(id, more string) conf.Input {
	pod, _, _ := strings.Cut(id, ".")
	return conf.Input{
		Command: "ADD", ContainerID: id, IfName: "net1", Netns: "/run/netns/" + id,
		Args:  "K8S_POD_NAMESPACE=train;K8S_POD_NAME=" + pod + ";K8S_POD_UID=uid-" + pod,
		Stdin: fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "rail", %s%s}`, n.config, more),
	}
}

func (n *node) request(id, more string) conf.Request {
	n.t.Helper()
	r, err := conf.Parse(n.input(id, more))
	must(n.t, err)
	return r
}

func (n *node) del(id string) conf.Del {
	n.t.Helper()
	d, err := conf.ParseDel(n.input(id, ""))
	must(n.t, err)
	return d
}

// claim returns the claim of a container, for a NIC with the address 172.16.11.3/24.
func (n *node) claim(id, more string) *lease.Claim {
	n.t.Helper()
	nic := plan.Link{Name: "ens1", Addrs: []netip.Prefix{netip.MustParsePrefix("172.16.11.3/24")}}
	facts := plan.Facts{
		Parent: nic, HostAddrs: []netip.Addr{nic.Addrs[0].Addr()},
		Pod: plan.PodFacts{Netns: netns.ID{Dev: 4, Ino: uint64(len(id)) + uint64(id[len(id)-1])}},
	}
	c, err := n.allocator().Claim(n.request(id, more), []plan.RailFacts{{Facts: facts}})
	must(n.t, err)
	return c
}

// acquire is Acquire in a new process. It returns the addresses.
func (n *node) acquire(id, more string) []netip.Addr {
	n.t.Helper()
	rails, err := n.claim(id, more).Acquire(n.t.Context())
	if err != nil {
		n.t.Fatalf("acquire for %s: %v", id, err)
	}
	return addrs(rails)
}

func addrs(rails []plan.Rail) (out []netip.Addr) {
	for _, r := range rails {
		for _, a := range r.Lease.Addresses {
			out = append(out, a.Prefix.Addr())
		}
	}
	return out
}

// record returns what ADD records of an attachment that has these addresses.
func (n *node) record(id string, as ...netip.Addr) record.Record {
	n.t.Helper()
	r := n.request(id, "")
	rec := record.Record{Network: r.Network, Attachment: r.Attachment, Netns: r.Netns, IPAM: r.IPAM.Type, Config: r.IPAM.Raw}
	i := plan.Interface{Name: "net1"}
	for _, a := range as {
		i.Addresses = append(i.Addresses, plan.LeasedAddress{Prefix: netip.PrefixFrom(a, a.BitLen())})
	}
	rec.Plan.Interfaces = []plan.Interface{i}
	return rec
}

// leased returns the containers with a lease, in the node's database or of the plugin.
func (n *node) leased() []string {
	n.t.Helper()
	entries, err := n.book().List(n.t.Context(), "")
	must(n.t, err)
	var out []string
	for _, e := range entries {
		if e.State == ledger.Leased {
			out = append(out, e.Owner.ContainerID)
		}
	}
	files, err := filepath.Glob(n.plugins + "/lease-*")
	must(n.t, err)
	for _, f := range files {
		_, id, _ := strings.Cut(filepath.Base(f), "-")
		out = append(out, id)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// own writes the node file of a RailPool with the addresses 10.7.0.32 to 10.7.0.39.
func (n *node) own(sticky bool) {
	n.t.Helper()
	f := nodefile.File{Pool: "gpu", Quarantine: time.Hour, Sticky: sticky, Rails: [][]pool.Subnet{{ofPool("10.7.0.32-10.7.0.39")}}}
	must(n.t, n.files().Write(f))
}

// answers has an agent of the RailPool. It has nothing for a pod without a grant.
func (n *node) answers() (stop func()) {
	n.t.Helper()
	return nodefiletest.Answer(n.t, n.files(), func(pool string, k nodefile.Key) nodefile.Answer {
		n.asked++
		a, there := n.agent[k]
		if !there || pool != "gpu" {
			a.Wait = "node n7 still holds them"
		}
		return a
	})
}

// grantTime is how long a grant counts.
const grantTime = time.Minute

// grant has the agent answer that a pod has an address of the RailPool.
func (n *node) grant(pod, addr string) {
	n.agent[stickyKey(pod)] = nodefile.Answer{Rails: [][]pool.Subnet{{ofPool(addr + "-" + addr)}}, Until: n.now + grantTime}
}

func stickyKey(pod string) nodefile.Key {
	return nodefile.Key{Namespace: "train", Pod: pod, Interface: "net1"}
}

func ofPool(span string) pool.Subnet {
	r, err := netrange.Parse(span)
	if err != nil {
		panic(err)
	}
	return pool.Subnet{Prefix: netip.MustParsePrefix("10.7.0.0/24"), Gateway: netip.MustParseAddr("10.7.0.254"), Ranges: []netrange.Range{r}}
}

// must is for what a test needs and does not test.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
