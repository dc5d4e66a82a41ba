// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
)

func (h host) VFs(context.Context, string) ([]rtnl.VF, error) { return nil, unix.ENODEV }

// pf is a node with a NIC that has VFs with settings. It records the requests.
type pf struct {
	host
	vfs   []rtnl.VF
	err   error
	asked *[]string
}

func (p pf) VFs(_ context.Context, name string) ([]rtnl.VF, error) {
	*p.asked = append(*p.asked, name)
	return p.vfs, p.err
}

// vfNode is a node with a NIC in 0000:0b:00.0 and two VFs of it, a scalable function, a
// virtio NIC, a VLAN and a bond on the VFs, and a link without hardware.
func vfNode() (pf, fstest.MapFS) {
	h := host{
		{Name: "lo", Type: unix.ARPHRD_LOOPBACK, Flags: unix.IFF_LOOPBACK},
		{Name: "pf0", Dev: "0000:0b:00.0", Bus: "pci"},
		{Name: "vf0", Dev: "0000:0b:00.2", Bus: "pci"},
		{Name: "vf1", Dev: "0000:0b:00.3", Bus: "pci"},
		{Name: "sf88", Dev: "mlx5_core.sf.4", Bus: "auxiliary"},
		{Name: "virt", Dev: "virtio3", Bus: "virtio"},
		{Name: "vf1.100", Kind: "vlan", Lower: rtnl.Lower{Index: 3, NSID: rtnl.NoNSID}},
		{Name: "dummy0", Kind: "dummy"},
		{Name: "vf0.100", Kind: "vlan", Lower: rtnl.Lower{Index: 2, NSID: rtnl.NoNSID}},
	}
	for i := range h {
		h[i].Index, h[i].MTU = int32(i), 4200
		h[i].Flags |= unix.IFF_UP | unix.IFF_LOWER_UP
		if h[i].Type == 0 {
			h[i].Type = unix.ARPHRD_ETHER
		}
	}
	sys := fstest.MapFS{}
	for i := range 2 {
		physfn := fmt.Sprintf("bus/pci/devices/0000:0b:00.%d/physfn/", i+2)
		sys[physfn+"net/pf0/mtu"] = &fstest.MapFile{}
		sys[physfn+"net/a_rep/phys_port_name"] = &fstest.MapFile{Data: []byte("pf0vf0\n")}
		symlink(sys, physfn+"consumer", fmt.Sprintf("../0000:0b:00.%d", i+2)) // no number of a VF
		symlink(sys, fmt.Sprintf("bus/pci/devices/0000:0b:00.%d/driver", i+2), "../../../bus/pci/drivers/mlx5_core")
		for n := range 2 {
			symlink(sys, fmt.Sprintf("%svirtfn%d", physfn, n), fmt.Sprintf("../0000:0b:00.%d", n+2))
		}
	}
	symlink(sys, "bus/virtio/devices/virtio3", "../../../devices/pci0000:00/0000:00:03.0/virtio3")
	return pf{host: h, asked: new([]string)}, sys
}

func TestVFWithSpoofCheckIsRefusedWithTheCommandForItsPF(t *testing.T) {
	t.Parallel()
	const all = "ip link set pf0 vf 1 trust on spoofchk off"
	other := func(sys fstest.MapFS) {
		symlink(sys, "bus/pci/devices/0000:0b:00.3/driver", "../../../bus/pci/drivers/iavf")
	}
	for name, c := range map[string]struct {
		settings rtnl.VF
		master   string
		change   func(*conf.Request)
		hint     string // "": not refused
		driver   func(fstest.MapFS)
	}{
		"both settings are wrong":               {settings: rtnl.VF{Number: 1, SpoofCheck: true, Untrusted: true}, hint: all},
		"the same with another driver":          {settings: rtnl.VF{Number: 1, SpoofCheck: true, Untrusted: true}, hint: all, driver: other},
		"it is trusted":                         {settings: rtnl.VF{Number: 1, SpoofCheck: true}, hint: "ip link set pf0 vf 1 spoofchk off"},
		"the same with another driver, trusted": {settings: rtnl.VF{Number: 1, SpoofCheck: true}, driver: other},
		"it is not trusted":                     {settings: rtnl.VF{Number: 1, Untrusted: true}},
		"the driver does not tell":              {settings: rtnl.VF{Number: 1}},
		"the other VF is checked":               {settings: rtnl.VF{Number: 1, SpoofCheck: true}, master: "vf0"},
		"the PF itself":                         {settings: rtnl.VF{Number: 1, SpoofCheck: true}, master: "pf0"},
		"a VLAN on it":                          {settings: rtnl.VF{Number: 1, SpoofCheck: true, Untrusted: true}, master: "vf1.100", hint: all},
		"a VLAN on the other VF":                {settings: rtnl.VF{Number: 1, SpoofCheck: true, Untrusted: true}, master: "vf0.100"},
		"a VLAN on it, without RDMA":            {settings: rtnl.VF{Number: 1, SpoofCheck: true}, master: "vf1.100", change: func(r *conf.Request) { r.RDMA.Mode = conf.RDMAOff }, hint: "vf 1 spoofchk off"},
		"the child has the VF's MAC":            {settings: rtnl.VF{Number: 1, SpoofCheck: true}, change: func(r *conf.Request) { r.Mode = conf.Passthru }},
		"without RDMA it is the same":           {settings: rtnl.VF{Number: 1, SpoofCheck: true, Untrusted: true}, change: func(r *conf.Request) { r.RDMA.Mode = conf.RDMAOff }, hint: all},
	} {
		n, sys := vfNode()
		n.vfs = []rtnl.VF{{}, c.settings}
		if c.driver != nil {
			c.driver(sys)
		}
		req := conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{Name: conf.LinkName(cmp.Or(c.master, "vf1"))}}}}
		if c.change != nil {
			c.change(&req)
		}
		_, err := selectOne(t.Context(), Place{n, nil, noRDMA, sys}, req)
		if c.hint != "" {
			wantError(t, err, cnierr.BadParent, c.hint)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestVFWithUnknownSettingsIsNotRefused has reasons why nothing is known: the PF is in
// another namespace, or does not answer, or another driver has it.
func TestVFWithUnknownSettingsIsNotRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*pf, fstest.MapFS){
		"no interface of the PF": func(_ *pf, sys fstest.MapFS) {
			for file := range sys {
				if strings.Contains(file, "/physfn/net/") {
					delete(sys, file)
				}
			}
		},
		"no number of the VF": func(_ *pf, sys fstest.MapFS) { delete(sys, "bus/pci/devices/0000:0b:00.3/physfn/virtfn1") },
		"no answer":           func(n *pf, _ fstest.MapFS) { n.err = unix.ENODEV },
	} {
		n, sys := vfNode()
		n.vfs = []rtnl.VF{{SpoofCheck: true}, {Number: 1, SpoofCheck: true}}
		change(&n, sys)
		vf1 := conf.Parent{IfNames: []string{"vf1"}, Function: conf.Virtual}
		if _, err := selectOne(t.Context(), Place{n, nil, noRDMA, sys}, conf.Request{Rails: []conf.Rail{{Parent: vf1}}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEachPFIsAskedOnceAndOnlyForItsVFs(t *testing.T) {
	t.Parallel()
	n, sys := vfNode()
	var req conf.Request
	for _, name := range []string{"pf0", "sf88", "dummy0"} {
		req.Rails = append(req.Rails, conf.Rail{Parent: conf.Parent{Name: conf.LinkName(name)}})
	}
	selected(t, Place{n, nil, noRDMA, sys}, req)
	if len(*n.asked) > 0 {
		t.Errorf("without a VF it asked for the VFs of %q", *n.asked)
	}
	n.vfs = []rtnl.VF{{SpoofCheck: true}, {Number: 1, SpoofCheck: true}}
	got, faults := selected(t, Place{n, nil, noRDMA, sys}, rails(2, conf.Parent{Function: conf.Virtual}, conf.ByPCI))
	if diff := gocmp.Diff([]string{"!", "!"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	wantError(t, faults[0], cnierr.BadParent, "ip link set pf0 vf 0 spoofchk off")
	wantError(t, faults[1], cnierr.BadParent, "ip link set pf0 vf 1 spoofchk off")
	if diff := gocmp.Diff([]string{"pf0"}, *n.asked); diff != "" {
		t.Errorf("asked (-want +got)\n%s", diff)
	}
}

// TestTheSlaveOfABondThatDropsFramesIsNamed has a bond of two VFs, and the second is checked.
func TestTheSlaveOfABondThatDropsFramesIsNamed(t *testing.T) {
	t.Parallel()
	n, sys := vfNode()
	n.vfs = []rtnl.VF{{}, {Number: 1, SpoofCheck: true}}
	n.host = append(n.host, rtnl.Link{Name: "bond0", Kind: "bond", Index: 9, Type: unix.ARPHRD_ETHER, MTU: 4200, Flags: unix.IFF_UP | unix.IFF_LOWER_UP})
	for _, i := range []int{2, 3} {
		n.host[i].SlaveKind, n.host[i].Master = "bond", 9
	}
	_, err := selectOne(t.Context(), Place{n, nil, noRDMA, sys}, conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{Name: "bond0"}}}})
	wantText(t, err, `use master "vf1": it is VF 1 of pf0, with the spoof check on: the NIC drops the frames of a macvlan, which has a MAC of its own`)
	wantError(t, err, cnierr.BadParent, "ip link set pf0 vf 1 spoofchk off")
}

func TestFunctionsOfANICAreToldApart(t *testing.T) {
	t.Parallel()
	for function, want := range map[conf.Function]string{conf.Physical: "virt pf0", conf.Virtual: "vf0 vf1", conf.Scalable: "sf88"} {
		n, sys := vfNode()
		got, _ := selected(t, Place{n, nil, noRDMA, sys}, rails(len(strings.Fields(want)), conf.Parent{Function: function}, conf.ByPCI))
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %q", function, got, want)
		}
	}
	n, sys := vfNode()
	_, _, err := Select(t.Context(), Place{n, nil, noRDMA, sys}, rails(2, conf.Parent{LinkTypes: []string{"ether"}}, conf.ByPCI))
	wantError(t, err, cnierr.BadParent, `add "function": "physical" to rails.match`)
	_, _, err = Select(t.Context(), Place{n, nil, noRDMA, sys}, rails(1, conf.Parent{LinkTypes: []string{"ether"}}, conf.ByPCI))
	wantError(t, err, cnierr.BadParent, "correct rails.match") // there are two of that function
	_, _, err = Select(t.Context(), Place{n, nil, noRDMA, sys}, rails(3, conf.Parent{Function: conf.Virtual}, conf.ByPCI))
	const want = "want 3 NICs, got 2: vf0, vf1; left out: pf0 (function physical), sf88 (function scalable), virt (function physical), " +
		"dummy0 (function none), vf0.100 (function none), vf1.100 (function none)"
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v\nwant %s", err, want)
	}
}
