// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// IP does in the namespace what ip(8) would, like an operator without roce-cni: link
// add NAME type KIND, link add link NIC name NAME type vlan id ID, link del, link set with
// up, down, name, mtu, address, mode, group and alias; addr add and del; route add and
// del; rule add and del. Anything else fails the test.
func (s *Space) IP(command string) {
	s.f.t.Helper()
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	w := strings.Fields(strings.TrimPrefix(command, "-6 "))
	if len(w) < 3 {
		_ = s.f.unexpected("ip %s", command)
		return
	}
	verb, rest := w[0]+" "+w[1], w[2:]
	if rest[0] == "dev" {
		rest = rest[1:]
	}
	opts, ok := options(rest[1:])
	if verb == "link add" && rest[0] == "link" {
		if opts, ok = options(rest); !ok || !s.ipLinkAddOn(opts) {
			_ = s.f.unexpected("ip %s", command)
		}
		return
	}
	does := map[string]func(string, map[string]string) bool{
		"link add": s.ipLinkAdd, "link del": s.ipLinkDel, "link set": s.ipLinkSet,
		"addr add": s.ipAddr(s.addAddress), "addr del": s.ipAddr(s.removeAddress),
		"route add": s.ipRoute(s.ipRouteAdd), "route del": s.ipRoute(s.ipRouteDel),
		"rule add": s.ipRule(s.ipRuleAdd), "rule del": s.ipRule(s.ipRuleDel),
	}[verb]
	if verb == "rule add" || verb == "rule del" {
		opts, ok = options(rest)
	}
	if !ok || does == nil || !does(rest[0], opts) {
		_ = s.f.unexpected("ip %s", command)
	}
}

// Sysctl writes a setting of a link.
func (s *Space) Sysctl(path, value string) {
	s.f.t.Helper()
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	l := s.link(conf.LinkName(strings.Split(path+"////", "/")[3]))
	if l == nil {
		_ = s.f.unexpected("sysctl %s: no such link", path)
		return
	}
	l.sysctls[path] = value
}

// options reads words in pairs, except words that have no value.
func options(w []string) (map[string]string, bool) {
	out := map[string]string{}
	for len(w) > 0 {
		switch {
		case slices.Contains([]string{"up", "down", "nodad", "onlink", "unreachable"}, w[0]):
			out[w[0]], w = "yes", w[1:]
		case len(w) == 1:
			return nil, false
		default:
			out[w[0]], w = w[1], w[2:]
		}
	}
	return out, true
}

func number(s string, otherwise int) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return otherwise
	}
	return n
}

func (s *Space) ipLinkAdd(name string, o map[string]string) bool {
	if s.link(conf.LinkName(name)) != nil || o["type"] == "" {
		return false
	}
	s.links = append(s.links, &iface{name: conf.LinkName(name), kind: o["type"], mtu: 1500, mac: conf.MAC{2, 0, 0, 0, 0, byte(len(s.links))}})
	return true
}

func (s *Space) ipLinkDel(name string, _ map[string]string) bool {
	l := s.link(conf.LinkName(name))
	if l != nil {
		s.removeLink(l)
	}
	return l != nil
}

func (s *Space) ipLinkSet(name string, o map[string]string) bool {
	l := s.link(conf.LinkName(name))
	if l == nil {
		return false
	}
	for key, v := range o {
		switch key {
		case "up", "down":
			if s.setUp(l, key == "up") != nil {
				return false
			}
		case "mtu":
			l.mtu = number(v, l.mtu)
		case "type":
			if v != l.kind {
				return false
			}
		case "mode":
			l.mode = conf.Mode(v)
		case "group":
			l.group = number(v, l.group)
		case "alias":
			l.alias = strings.Trim(v, `"`)
		case "address":
			mac, err := conf.ParseMAC(v)
			if err != nil {
				return false
			}
			l.mac = mac
		case "name":
			for i := range s.routes {
				if s.routes[i].Link == l.name {
					s.routes[i].Link = conf.LinkName(v)
				}
			}
			l.name = conf.LinkName(v)
		default:
			return false
		}
	}
	return true
}

func (s *Space) ipAddr(do func(*iface, netip.Prefix)) func(string, map[string]string) bool {
	return func(text string, o map[string]string) bool {
		p, err := netip.ParsePrefix(text)
		l := s.link(conf.LinkName(o["dev"]))
		if err != nil || l == nil {
			return false
		}
		do(l, p)
		return true
	}
}

func (s *Space) ipRoute(do func(route) bool) func(string, map[string]string) bool {
	return func(text string, o map[string]string) bool {
		if text == "default" {
			text = "0.0.0.0/0"
		}
		dst, err := netip.ParsePrefix(text)
		if err != nil {
			return false
		}
		via, _ := netip.ParseAddr(o["via"])
		src, _ := netip.ParseAddr(o["src"])
		r := plan.Route{
			Link: conf.LinkName(o["dev"]), Table: uint32(number(o["table"], plan.MainTable)), Dst: dst, Via: via, Src: src,
			Metric: uint32(number(o["metric"], 0)), MTU: number(o["mtu"], 0), AdvMSS: number(o["advmss"], 0), OnLink: o["onlink"] != "",
		}
		if dst.Addr().Is4() && !via.IsValid() {
			r.Scope = plan.ScopeLink
		}
		return do(route{r, number(o["proto"], protoBoot)})
	}
}

func (s *Space) ipRouteAdd(r route) bool {
	ok := s.link(r.Link) != nil && s.rival(r.Route) == nil
	if ok {
		s.routes = append(s.routes, r)
	}
	return ok
}

func (s *Space) ipRouteDel(r route) bool {
	n := len(s.routes)
	s.routes = slices.DeleteFunc(s.routes, func(o route) bool {
		return o.Dst == r.Dst && o.Table == r.Table && (r.Link == "" || o.Link == r.Link) && (r.Metric == 0 || metric(o.Route) == r.Metric)
	})
	return len(s.routes) < n
}

func (s *Space) ipRule(do func(rule) bool) func(string, map[string]string) bool {
	return func(_ string, o map[string]string) bool {
		from, err := netip.ParsePrefix(o["from"])
		if err != nil {
			return false
		}
		return do(rule{plan.Rule{From: from, Table: uint32(number(o["lookup"], 0)), Priority: uint32(number(o["priority"], 0))}, number(o["protocol"], protoBoot)})
	}
}

func (s *Space) ipRuleAdd(r rule) bool {
	s.rules = append(s.rules, r)
	return true
}

func (s *Space) ipRuleDel(r rule) bool {
	i := slices.IndexFunc(s.rules, func(o rule) bool { return o.From == r.From && o.Priority == r.Priority })
	if i >= 0 {
		s.rules = slices.Delete(s.rules, i, i+1)
	}
	return i >= 0
}
