// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/cmd/internal/plugintest"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// caller calls verbs as a main plugin does, for containers in one namespace.
type caller struct {
	t     *testing.T
	dir   string // the state folder
	netns string
}

// newCaller writes the settings of the node.
func newCaller(t *testing.T, netns, settings string) caller {
	t.Helper()
	c := caller{t, filepath.Join(t.TempDir(), "state"), netns}
	file := filepath.Join(filepath.Dir(c.dir), "node.json")
	text := fmt.Sprintf(`{"version": 1, "stateDir": %q%s}`, c.dir, settings)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	before := settingsFile
	settingsFile = file
	t.Cleanup(func() { settingsFile = before })
	return c
}

// call returns the addresses that a verb prints, and its error as the runtime reads it. ipam has the
// configuration but for the type, and more what is beside it.
func (c caller) call(verb plugin.Verb, container, ipam, more string, stdout *os.File) string {
	c.t.Helper()
	if !strings.HasPrefix(ipam, `"type"`) {
		ipam = `"type": "roce-ipam", ` + ipam
	}
	answer, err := plugintest.Call(c.t, stdout, func() error {
		return verb(c.t.Context(), &skel.CmdArgs{
			ContainerID: container, Netns: c.netns, IfName: "net1", Args: "K8S_POD_NAMESPACE=ml;K8S_POD_NAME=of-" + container,
			StdinData: []byte(`{"cniVersion": "1.1.0", "name": "rail", "type": "sriov"` + more + `, "ipam": {` + ipam + `}}`),
		})
	})
	if err != nil {
		e := cnierr.CNI("roce-ipam", err)
		return strings.TrimPrefix(answer, "ok") + e.Msg + "\n" + e.Details
	}
	return answer
}

// leases returns the addresses of containers, and those in quarantine with their state.
func (c caller) leases() string {
	c.t.Helper()
	boot, err := plugin.BootID()
	if err != nil {
		c.t.Fatal(err)
	}
	all, err := plugin.Book(c.dir, boot, nil, nil).List(c.t.Context(), "")
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for _, l := range all {
		out = append(out, fmt.Sprint(l.Addr, " ", l.State, " ", l.Owner.ContainerID, " ", l.Owner.PodNamespace, "/", l.Owner.PodName, " ", l.Owner.Program))
	}
	return strings.Join(out, ", ")
}

// TestTheLeasesOfAnotherMainPlugin has a node with an address of its own in the subnet.
func TestTheLeasesOfAnotherMainPlugin(t *testing.T) {
	n := kerneltest.NewNode(t)
	n.NIC("ens1")
	n.IP("address add 10.77.0.2/29 dev ens1")
	pod := n.Pod()
	c := newCaller(t, pod.Path, "")
	const (
		small = `"subnets": [{"subnet": "10.77.0.0/29", "gateway": "10.77.0.1", "ranges": ["10.77.0.1-10.77.0.3"]}]`
		twice = "roce-ipam[7] lease address for \"net1\": the interface is in container \"c1\", with its address: ADD was called twice\n" +
			"call DEL before ADD: delete the pod"
		full = "roce-ipam[101] lease address \"rail\": no address of 10.77.0.0/29 is left: "
	)
	// A want that ends with ": " is the beginning of what is said.
	step := func(name, got, want string) {
		t.Helper()
		if got != want && !(strings.HasSuffix(want, ": ") && strings.HasPrefix(got, want)) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	step("STATUS with an address", c.call(status, "", small, "", nil), "ok")
	step("ADD", c.call(add, "c1", small, "", nil), "10.77.0.3/29")
	step("its lease", c.leases(), "10.77.0.3 leased c1 ml/of-c1 sriov")
	step("STATUS without one", c.call(status, "", small, "", nil), "roce-ipam[50] serve \"ADD\": lease from pool \"rail\": subnet 10.77.0.0/29 is exhausted: ")
	step("ADD again", c.call(add, "c1", small, "", nil), "10.77.0.3/29")
	pod.IP("link add net1 type veth peer name peer")
	pod.IP("address add 192.0.2.1/24 dev net1")
	pod.IP("address add 10.77.0.3/29 dev net1")
	step("ADD of an interface with its address", c.call(add, "c1", small, "", nil), twice)
	step("its lease", c.leases(), "10.77.0.3 leased c1 ml/of-c1 sriov")
	step("ADD of another pod", c.call(add, "c2", small, "", nil), full)
	step("GC that knows the container", c.call(gc, "", small, `, "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "net1"}]`, nil), "ok")
	step("CHECK", c.call(check, "c1", small, "", nil), "ok")
	step("DEL", c.call(del, "c1", small, "", nil), "ok")
	step("no lease, but quarantine", c.leases(), "10.77.0.3 quarantined c1 ml/of-c1 sriov")
	step("CHECK without a lease", c.call(check, "c1", small, "", nil), "roce-ipam[110] check leases of container \"c1\": ")
	step("ADD of another pod", c.call(add, "c2", small, "", nil), "roce-ipam[101] lease address \"rail\": all free addresses of 10.77.0.0/29 are in quarantine, the next one (10.77.0.3) for 2m0s more, and this program cannot probe for conflicts: ")
	pod.IP("link delete net1")
	step("ADD of the same pod", c.call(add, "c1", small, "", nil), "10.77.0.3/29")
}

// TestGCReleasesEachLeaseThatIsNotValid: of this network, and of no other.
func TestGCReleasesEachLeaseThatIsNotValid(t *testing.T) {
	n := kerneltest.NewNode(t)
	c := newCaller(t, n.Pod().Path, "")
	const large = `"quarantine": "0s", "subnets": [{"subnet": "10.77.0.0/24"}]`
	for _, container := range []string{"c1", "c2", "c3"} {
		if got := c.call(add, container, large, "", nil); !strings.HasPrefix(got, "10.77.0.") {
			t.Fatal(got)
		}
	}
	if got := c.call(gc, "", `"type": "pools-of-a-vendor", `+large, `, "cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "net1"}]`, nil); got != "ok" {
		t.Error(got)
	}
	if got := c.leases(); strings.Count(got, "leased") != 1 || !strings.Contains(got, "leased c2 ") {
		t.Errorf("the leases are %s", got)
	}
}

// TestAnAddressThatTheRuntimeIsNotToldOfIsReleased: standard output cannot be written.
func TestAnAddressThatTheRuntimeIsNotToldOfIsReleased(t *testing.T) {
	n := kerneltest.NewNode(t)
	c := newCaller(t, n.Pod().Path, "")
	readOnly, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	const want = "roce-ipam[5] write result to \"standard output\": write /dev/null: bad file descriptor\n" +
		"check why the runtime closed it; the plugin removes what it added"
	if diff := cmp.Diff(want, c.call(add, "c1", `"quarantine": "1h", "subnets": [{"subnet": "10.77.0.0/24"}]`, "", readOnly)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := c.leases(); strings.Contains(got, "leased") {
		t.Errorf("the leases are %s", got)
	}
}

// TestAnAddressOfARailPoolIsOneOfTheNodesShare, which the agent has written.
func TestAnAddressOfARailPoolIsOneOfTheNodesShare(t *testing.T) {
	n := kerneltest.NewNode(t)
	c := newCaller(t, n.Pod().Path, "")
	const ofPool = `"railPool": "gpu"`
	for verb, do := range map[string]plugin.Verb{"ADD": add, "STATUS": status} {
		want := map[string]string{"ADD": `roce-ipam[11] `, "STATUS": `roce-ipam[50] serve "ADD": `}[verb] + `read ranges of pool "gpu": the node has no addresses of the pool yet`
		if got := c.call(do, "c1", ofPool, "", nil); !strings.HasPrefix(got, want) {
			t.Errorf("%s without the agent: %s", verb, got)
		}
	}
	boot, err := plugin.BootID()
	if err != nil {
		t.Fatal(err)
	}
	prefix := netip.MustParsePrefix("10.77.0.0/24")
	share, err := netrange.Parse("10.77.0.64-10.77.0.64")
	err = errors.Join(err, nodefile.Store{Dir: c.dir, BootID: boot}.Write(nodefile.File{
		Pool: "gpu", Rails: [][]pool.Subnet{{{Prefix: prefix, Ranges: []netrange.Range{share}}}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.call(add, "c1", ofPool, "", nil); got != "10.77.0.64/24" {
		t.Errorf("got %s", got)
	}
	if got := c.call(add, "c2", ofPool, "", nil); !strings.HasPrefix(got, "roce-ipam[101] ") {
		t.Errorf("without a free address: %s", got)
	}
}

// TestAnAddWithoutItsLogLeasesNothing has a log that cannot be written.
func TestAnAddWithoutItsLogLeasesNothing(t *testing.T) {
	n := kerneltest.NewNode(t)
	dir := t.TempDir()
	c := newCaller(t, n.Pod().Path, fmt.Sprintf(`, "log": {"file": %q}`, dir))
	if got := c.call(add, "c1", `"subnets": [{"subnet": "10.77.0.0/24"}]`, "", nil); !strings.HasPrefix(got, `roce-ipam[5] open log "`+dir) {
		t.Errorf("got %s", got)
	}
	if got := c.leases(); got != "" {
		t.Errorf("the leases are %s", got)
	}
}
