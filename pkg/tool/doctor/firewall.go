// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"cmp"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func (l *look) hostLink() []report.Finding {
	return append(l.try((*look).forwards), l.knowsServices()...)
}

func (l *look) forwards() []report.Finding {
	pods := 0
	for _, link := range l.links() {
		if link.Kind == "veth" && strings.HasPrefix(link.Alias, plan.MarkPrefix) {
			pods++
		}
	}
	if pods == 0 {
		return []report.Finding{ok("no pod has a link to the node")}
	}
	rules, err := l.Rules(l.ctx)
	l.need(err, "the rules cannot be read: ", netnsOfNode)
	families := []string{"IPv4"}
	if slices.ContainsFunc(rules, func(r rtnl.Rule) bool { return toPods(r) && r.From.Addr().Is6() }) {
		families = append(families, "IPv6")
	}
	var out []report.Finding
	for _, family := range families {
		out = append(out, l.try(func(l *look) []report.Finding { return l.forwardsOf(family) })...)
	}
	out = append(out, l.try(func(l *look) []report.Finding { return l.filters(len(families) == 2) })...)
	return orOK(out, "pods with a link to the node: %d; the node forwards %s", pods, strings.Join(families, " and "))
}

// forwardsOf returns what keeps the node from forwarding packets of a family.
func (l *look) forwardsOf(family string) []report.Finding {
	name := map[string]string{"IPv4": "net.ipv4.ip_forward", "IPv6": "net.ipv6.conf.all.forwarding"}[family]
	if l.number(strings.ReplaceAll(name, ".", "/"), name+" cannot be read: ") != 0 {
		return nil
	}
	fix := "sysctl -w " + name + "=1  # and so in /etc/sysctl.d"
	if family == "IPv6" {
		fix += "; an interface that learns routes from router advertisements then needs accept_ra=2"
	}
	return []report.Finding{problem(name+" is 0", fix)}
}

// filters returns what drops the packets that the node forwards for pods. A chain that drops
// what no rule accepts, as Docker, ufw and firewalld make it, needs a rule for the links.
func (l *look) filters(ipv6 bool) []report.Finding {
	var out []report.Finding
	for _, d := range dropsForwarded(l.nft("list", "ruleset"), ipv6) {
		rule := shell.Command("nft insert rule %s %s %s ", d.family, d.table, d.chain)
		out = append(out, problem(fmt.Sprintf("the chain %s of table %s %s drops %s", d.chain, d.family, d.table, d.what),
			rule+`iifname "veth*" accept && `+rule+`oifname "veth*" ct state established,related accept  # and in the program that makes the chain`))
	}
	for _, ip := range []string{"ip", "ip6"}[:map[bool]int{false: 1, true: 2}[ipv6]] {
		out = append(out, l.try(func(l *look) []report.Finding {
			what := legacyDropsForwarded(l.legacyRules(ip))
			if what == "" {
				return nil
			}
			rule := ip + "tables-legacy -I FORWARD "
			return []report.Finding{problem("the chain FORWARD of "+ip+"tables-legacy drops "+what,
				rule+"-i veth+ -j ACCEPT && "+rule+"-o veth+ -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT  # and in the program that makes the rules")}
		})...)
	}
	return out
}

func (l *look) nft(args ...string) string {
	rules, err := l.Run(l.ctx, "nft", args...)
	l.need(err, "nft list ruleset: ", "root, and the program nft")
	return rules
}

// unaccepted is what a chain drops that drops whatever its rules do not accept.
const unaccepted = "what no rule accepts, also packets of pods"

type dropping struct {
	nftChain
	what string
}

// dropsForwarded returns the chains that drop packets of pods: with a rule for the links, or
// unless a rule accepts them, without those of a table with such a rule.
func dropsForwarded(rules string, ipv6 bool) []dropping {
	all := regexp.MustCompile(`^(counter packets \d+ bytes \d+ )?(drop|reject( with .*)?)$|policy drop;`)
	links := regexp.MustCompile(`^[io]ifname (!= )?(\{[^}]*\}|"[^"]*") (counter packets \d+ bytes \d+ )?(drop|reject( with .*)?)$`)
	accepts := regexp.MustCompile(`iifname "veth\*".* accept`)
	found, forward, accepted := map[nftChain]string{}, map[nftChain]bool{}, map[nftChain]bool{}
	var order []nftChain
	for c, line := range nftLines(rules) {
		if strings.Contains(line, "hook forward ") && (c.family == "ip" || c.family == "inet" || c.family == "ip6" && ipv6) {
			forward[c] = true
			order = append(order, c)
		}
		m := links.FindStringSubmatch(line)
		switch table := (nftChain{family: c.family, table: c.table}); {
		case accepts.MatchString(line):
			accepted[table] = true
		case !forward[c]:
		case m != nil && !accepted[table] && (m[1] == "") == strings.Contains(m[2], `"veth`):
			found[c] = "packets of pods: " + line
		case all.MatchString(line) && found[c] == "":
			found[c] = unaccepted
		}
	}
	var out []dropping
	for _, c := range order {
		if what := found[c]; what != "" && (what != unaccepted || !accepted[nftChain{family: c.family, table: c.table}]) {
			out = append(out, dropping{c, what})
		}
	}
	return out
}

// legacyDropsForwarded returns what the chain FORWARD drops of the packets of pods, "" if
// nothing.
func legacyDropsForwarded(rules string) (what string) {
	links := regexp.MustCompile(`^-A FORWARD (! )?-[io] (\S+) -j (DROP|REJECT)\b`)
	all := regexp.MustCompile(`^(:FORWARD DROP|-A FORWARD -j (DROP|REJECT))\b`)
	accepts := regexp.MustCompile(`-A .*-i veth\+ .*-j ACCEPT`)
	for line := range strings.Lines(rules) {
		line = strings.TrimSpace(line)
		m := links.FindStringSubmatch(line)
		switch {
		case accepts.MatchString(line):
			return ""
		case m != nil && (m[1] == "") == strings.HasPrefix(m[2], "veth"):
			return "packets of pods: " + line
		case all.MatchString(line):
			what = unaccepted
		}
	}
	return what
}

// knowsServices asks about the file that rocectl agent writes. Only networks with
// hostLink.routes "auto" need it, and those are in the cluster. So a missing file is a
// problem that this node cannot tell.
func (n Node) knowsServices() []report.Finding {
	cidrs, err := n.Pools.Services()
	switch {
	case err == nil:
		return []report.Finding{ok("CIDRs of the cluster's Services: %v", cidrs)}
	case cnierr.CodeOf(err) == cnierr.Unreadable:
		return []report.Finding{problem(err.Error(), shell.Command("rm %s  # rocectl agent writes it again", n.Pools.ServicesPath()))}
	}
	if pools, _ := n.Pools.Pools(); len(pools) == 0 { // without rocectl agent no network can use it
		return nil
	}
	return []report.Finding{cannotTell(err.Error(), `whether a network has hostLink.routes "auto": if one has, its pods do not start; curl -s `+n.AgentURL)}
}

// firewall asks whether a rule of the node drops RoCE. A NIC that does RoCE itself
// passes the kernel by, so the question is only for Soft-RoCE.
func (l *look) firewall() []report.Finding {
	// Soft-RoCE's device has this file, and no device on a bus.
	soft := slices.ContainsFunc(l.system().Devices, func(d nldev.Device) bool {
		there, _ := l.has("sys/class/infiniband/" + d.Name + "/parent")
		return there
	})
	if !soft {
		return []report.Finding{ok("no Soft-RoCE: the NICs take RoCE packets past the kernel's firewall")}
	}
	const alsoIn = "  # and in the program or the file that makes the rule"
	if rule, remove := legacyDropsRoCE(l.legacyRules("ip")); rule != "" {
		return []report.Finding{problem("a rule of iptables-legacy drops it: "+rule, remove+alsoIn)}
	}
	rules := l.nft("-a", "list", "ruleset")
	if rule, remove := dropsRoCE(rules); rule != "" {
		return []report.Finding{problem("a rule drops it: "+rule, remove+alsoIn)}
	}
	if regexp.MustCompile(`hook (prerouting|input|output|postrouting) .*policy drop`).MatchString(rules) {
		l.lacks("a chain drops what no rule accepts", "a look at the rules: nft list ruleset must accept udp dport 4791")
	}
	return []report.Finding{ok("no rule of nftables drops UDP 4791")}
}

// legacyRules returns the rules of iptables-legacy, or of ip6tables-legacy, which nft does
// not show. The kernel lists their tables only while there are some.
func (l *look) legacyRules(ip string) string {
	names := "proc/net/" + ip + "_tables_names"
	tables, err := l.text(names)
	if isNotExist(err) || err == nil && tables == "" {
		return ""
	}
	l.need(err, "", "root, to read /"+names)
	program := ip + "tables-legacy-save"
	rules, err := l.Run(l.ctx, program)
	l.need(err, "the node has rules of "+ip+"tables-legacy; "+program+": ", "root, and the program "+program)
	return rules
}

// legacyDropsRoCE is dropsRoCE for the rules of iptables-legacy.
func legacyDropsRoCE(rules string) (found, remove string) {
	rule := regexp.MustCompile(`^-A .*-p udp .*--dports? (\S+).*-j (DROP|REJECT)`)
	table := ""
	for line := range strings.Lines(rules) {
		line = strings.TrimSpace(line)
		if name, found := strings.CutPrefix(line, "*"); found {
			table = name
		}
		if m := rule.FindStringSubmatch(line); m != nil && includes(strings.ReplaceAll(m[1], ":", "-"), rocePort) {
			if !regexp.MustCompile(`^[a-zA-Z0-9 _.,:/!=+-]*$`).MatchString(table + line) { // a text in quotes, which a shell must not see
				return line, "iptables-legacy -L -n --line-numbers  # then iptables-legacy -D CHAIN NUMBER"
			}
			return line, "iptables-legacy -t " + table + " -D " + strings.TrimPrefix(line, "-A ")
		}
	}
	return "", ""
}

const rocePort = 4791

// dropsRoCE returns the first rule that drops UDP to RoCE's port by its number, and the
// command that removes it; "" if there is none. The rules have their handles.
func dropsRoCE(rules string) (found, remove string) {
	rule := regexp.MustCompile(`udp dport (!= )?(\{[^}]*\}|\S+).*\b(drop|reject)\b`)
	for c, line := range nftLines(rules) {
		line, handle, _ := strings.Cut(line, " # handle ")
		if m := rule.FindStringSubmatch(line); m != nil && m[1] == "" && includes(m[2], rocePort) {
			return line, shell.Command("nft delete rule %s %s %s handle %s", c.family, c.table, c.chain, handle)
		}
	}
	return "", ""
}

type nftChain struct{ family, table, chain string }

// nftLines returns the lines of what nft lists, each with the chain that it is in.
func nftLines(rules string) iter.Seq2[nftChain, string] {
	place := regexp.MustCompile(`^(table|chain) (\S+ )?(\S+) \{`)
	return func(yield func(nftChain, string) bool) {
		var c nftChain
		for line := range strings.Lines(rules) {
			line = strings.TrimSpace(line)
			if m := place.FindStringSubmatch(line); m != nil && m[1] == "table" {
				c = nftChain{family: strings.TrimSpace(m[2]), table: m[3]}
			} else if m != nil {
				c.chain = m[3]
			}
			if !yield(c, line) {
				return
			}
		}
	}
}

// includes says whether nft's notation of ports has one: "4791", "4000-5000",
// "{ 53, 4791 }".
func includes(ports string, port int) bool {
	for p := range strings.SplitSeq(strings.Trim(ports, "{} "), ",") {
		low, high, _ := strings.Cut(strings.TrimSpace(p), "-")
		first, err := strconv.Atoi(low)
		last, err2 := strconv.Atoi(cmp.Or(high, low))
		if err == nil && err2 == nil && first <= port && port <= last {
			return true
		}
	}
	return false
}
