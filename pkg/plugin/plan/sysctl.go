// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Sysctl sets kernel parameters of one link. They belong to the link and vanish
// with it. The plan, not the executor, leaves out parameters of a family that
// the kernel lacks.
type Sysctl struct {
	Link conf.LinkName `json:"link"`
	Set  []Setting     `json:"set"`
	// Up says that the link is up, which resets some parameters (addrconf_notify). Do then
	// fails for a value that the kernel does not keep, or rounds.
	Up bool `json:"up,omitempty"`
}

// Setting is one kernel parameter. Path is below /proc/sys, with slashes,
// because interface names may hold dots: "net/ipv4/conf/net1/arp_ignore".
type Setting struct {
	Path  string `json:"path"`
	Value string `json:"value"`
	// Again says that a later operation sets it again. Check leaves it to that operation.
	Again bool `json:"again,omitempty"`
}

func (s Sysctl) commands(in namespaces) []string {
	args := make([]string, 0, len(s.Set))
	for _, v := range s.Set {
		args = append(args, shell.Command("%s=%s", v.Path, v.Value))
	}
	return []string{in.run("sysctl -qw ") + strings.Join(args, " ")}
}

// minIPv6MTU is IPV6_MIN_MTU. The kernel removes IPv6 and its settings from a
// link with a smaller MTU (addrconf_notify, RFC 8200 section 5).
const minIPv6MTU = 1280

// sysctl returns the settings of the link: our defaults for a NIC that shares
// its subnet with others of the pod, and the settings of the configuration,
// which override them. If there are any of these, all are set again when the link is up:
// roce does not know what they do to each other, and what the kernel makes of them.
//
// arp_ignore and arp_announce keep the ARP of one rail off the others.
// rp_filter=2 permits replies that are routed by source. addr_gen_mode=1 and
// accept_ra=0 stop the kernel from making addresses of its own, and so GIDs.
// IPv6 is enabled explicitly because many runtimes disable it in IPv4 pods. A
// link with an MTU below minIPv6MTU has no IPv6 settings.
//
// The plugin that made an adopted link decides how the link gets its addresses:
// we leave those settings as they are. Our other settings need no undo there
// either. That plugin deletes the link, or moves it to the host's namespace,
// where the link gets the settings of that namespace (inetdev_destroy,
// inetdev_init; addrconf_ifdown, addrconf_add_dev).
func (m maker) sysctl() Ops {
	adopted := m.facts.Adopted != nil
	want := []conf.Sysctl{
		{Tree: "ipv4/conf", Key: "arp_ignore", Value: "1"},
		{Tree: "ipv4/conf", Key: "arp_announce", Value: "2"},
		{Tree: "ipv4/conf", Key: "arp_notify", Value: "1"},
		{Tree: "ipv4/conf", Key: "rp_filter", Value: "2"},
	}
	if !adopted && m.mtu() >= minIPv6MTU {
		want = append(want,
			conf.Sysctl{Tree: "ipv6/conf", Key: "addr_gen_mode", Value: "1"},
			conf.Sysctl{Tree: "ipv6/conf", Key: "accept_ra", Value: "0"})
	}
	if m.hasIPv6() && !adopted {
		want = append(want,
			conf.Sysctl{Tree: "ipv6/conf", Key: "disable_ipv6", Value: "0"},
			conf.Sysctl{Tree: "ipv6/conf", Key: "keep_addr_on_down", Value: "1"})
	}
	if m.hasIPv6() {
		want = append(want, conf.Sysctl{Tree: "ipv6/conf", Key: "ndisc_notify", Value: "1"})
	}
	for _, s := range m.req.Sysctl {
		same := func(d conf.Sysctl) bool { return d.Tree == s.Tree && d.Key == s.Key }
		if i := slices.IndexFunc(want, same); i >= 0 {
			want[i].Value = s.Value
		} else {
			want = append(want, s)
		}
	}
	again := len(m.req.Sysctl) > 0
	first, second := Sysctl{Link: m.rail.IfName}, Sysctl{Link: m.rail.IfName, Up: true}
	for _, s := range want {
		if strings.HasPrefix(s.Tree, "ipv6/") && !m.facts.Pod.IPv6 {
			continue
		}
		path := fmt.Sprintf("net/%s/%s/%s", s.Tree, m.rail.IfName, s.Key)
		first.Set = append(first.Set, Setting{Path: path, Value: s.Value, Again: again})
		second.Set = append(second.Set, Setting{Path: path, Value: s.Value})
	}
	if !again {
		return InPod(first)
	}
	return InPod(first, second)
}
