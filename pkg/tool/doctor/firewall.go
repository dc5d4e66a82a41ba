// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func (n Node) hostLink(ctx context.Context) []report.Finding {
	return append(n.forwards(ctx), n.knowsServices()...)
}

func (n Node) forwards(ctx context.Context) []report.Finding {
	links, err := n.Links(ctx)
	if err != nil {
		return []report.Finding{noLinks(err)}
	}
	pods := 0
	for _, l := range links {
		if l.Kind == "veth" && strings.HasPrefix(l.Alias, "roce:") {
			pods++
		}
	}
	if pods == 0 {
		return []report.Finding{ok("no pod has a link to the node")}
	}
	rules, err := n.Rules(ctx)
	if err != nil {
		return []report.Finding{cannotTell("the rules cannot be read: "+err.Error(), "the network namespace of the node")}
	}
	families := []string{"IPv4"}
	if slices.ContainsFunc(rules, func(r rtnl.Rule) bool { return toPods(r) && r.From.Addr().Is6() }) {
		families = append(families, "IPv6")
	}
	var out []report.Finding
	for _, family := range families {
		out = append(out, n.forwardsOf(family)...)
	}
	out = append(out, n.filters(ctx, len(families) == 2)...)
	if len(out) == 0 {
		out = []report.Finding{ok("pods with a link to the node: %d; the node forwards %s", pods, strings.Join(families, " and "))}
	}
	return out
}

// forwardsOf returns what keeps the node from forwarding packets of a family.
func (n Node) forwardsOf(family string) []report.Finding {
	name := map[string]string{"IPv4": "net.ipv4.ip_forward", "IPv6": "net.ipv6.conf.all.forwarding"}[family]
	forward, err := n.number(strings.ReplaceAll(name, ".", "/"))
	switch {
	case err != nil:
		return []report.Finding{cannotTell(name+" cannot be read: "+err.Error(), "the network namespace of the node")}
	case forward != 0:
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
func (n Node) filters(ctx context.Context, ipv6 bool) []report.Finding {
	rules, err := n.Run(ctx, "nft", "list", "ruleset")
	if err != nil {
		return []report.Finding{cannotTell("nft list ruleset: "+err.Error(), "root, and the program nft")}
	}
	var out []report.Finding
	for _, d := range dropsForwarded(rules, ipv6) {
		rule := shell.Command("nft insert rule %s %s %s ", d.family, d.table, d.chain)
		out = append(out, problem(fmt.Sprintf("the chain %s of table %s %s drops %s", d.chain, d.family, d.table, d.what),
			rule+`iifname "veth*" accept && `+rule+`oifname "veth*" ct state established,related accept  # and in the program that makes the chain`))
	}
	for _, ip := range []string{"ip", "ip6"}[:map[bool]int{false: 1, true: 2}[ipv6]] {
		rules, fault := n.legacyRules(ctx, ip)
		if fault != nil {
			out = append(out, *fault)
		} else if what := legacyDropsForwarded(rules); what != "" {
			rule := ip + "tables-legacy -I FORWARD "
			out = append(out, problem("the chain FORWARD of "+ip+"tables-legacy drops "+what,
				rule+"-i veth+ -j ACCEPT && "+rule+"-o veth+ -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT  # and in the program that makes the rules"))
		}
	}
	return out
}

// unaccepted is what a chain drops that drops whatever its rules do not accept.
const unaccepted = "what no rule accepts, also packets of pods"

// dropping is a chain that drops packets of pods.
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
func (n Node) firewall(ctx context.Context) []report.Finding {
	s, err := n.RDMA(ctx)
	if err != nil {
		return unlisted(err)
	}
	soft := false
	for _, d := range s.Devices {
		// Soft-RoCE's has this file, and no device on a bus.
		if there, err := n.has("sys/class/infiniband/" + d.Name + "/parent"); err == nil && there {
			soft = true
		}
	}
	if !soft {
		return []report.Finding{ok("no Soft-RoCE: the NICs take RoCE packets past the kernel's firewall")}
	}
	legacy, fault := n.legacyRules(ctx, "ip")
	if fault == nil {
		fault = legacyDropsRoCE(legacy)
	}
	if fault != nil {
		return []report.Finding{*fault}
	}
	rules, err := n.Run(ctx, "nft", "-a", "list", "ruleset")
	if err != nil {
		return []report.Finding{cannotTell("nft list ruleset: "+err.Error(), "root, and the program nft")}
	}
	if rule, remove := dropsRoCE(rules); rule != "" {
		return []report.Finding{problem("a rule drops it: "+rule, remove+"  # and in the program or the file that makes the rule")}
	}
	if regexp.MustCompile(`hook (prerouting|input|output|postrouting) .*policy drop`).MatchString(rules) {
		return []report.Finding{cannotTell("a chain drops what no rule accepts", "a look at the rules: nft list ruleset must accept udp dport 4791")}
	}
	return []report.Finding{ok("no rule of nftables drops UDP 4791")}
}

// legacyRules returns the rules of iptables-legacy, or of ip6tables-legacy, which nft does
// not show. The kernel lists their tables only while there are some.
func (n Node) legacyRules(ctx context.Context, ip string) (rules string, fault *report.Finding) {
	names := "proc/net/" + ip + "_tables_names"
	tables, err := n.text(names)
	if isNotExist(err) || err == nil && tables == "" {
		return "", nil
	}
	program := ip + "tables-legacy-save"
	if err != nil {
		f := cannotTell(err.Error(), "root, to read /"+names)
		return "", &f
	}
	if rules, err = n.Run(ctx, program); err != nil {
		f := cannotTell("the node has rules of "+ip+"tables-legacy; "+program+": "+err.Error(), "root, and the program "+program)
		return "", &f
	}
	return rules, nil
}

// legacyDropsRoCE returns a finding about the first rule that drops UDP to RoCE's port.
func legacyDropsRoCE(rules string) *report.Finding {
	rule := regexp.MustCompile(`^-A .*-p udp .*--dports? (\S+).*-j (DROP|REJECT)`)
	table := ""
	for line := range strings.Lines(rules) {
		line = strings.TrimSpace(line)
		if name, found := strings.CutPrefix(line, "*"); found {
			table = name
		}
		if m := rule.FindStringSubmatch(line); m != nil && includes(strings.ReplaceAll(m[1], ":", "-"), rocePort) {
			f := problem("a rule of iptables-legacy drops it: "+line, removeLegacy(table, line)+"  # and in the program or the file that makes the rule")
			return &f
		}
	}
	return nil
}

// removeLegacy returns the command that removes a rule, which is as iptables-save prints it.
// A rule with quotes has a text that a shell must not see.
func removeLegacy(table, rule string) string {
	if !regexp.MustCompile(`^[a-zA-Z0-9 _.,:/!=+-]*$`).MatchString(table + rule) {
		return "iptables-legacy -L -n --line-numbers  # then iptables-legacy -D CHAIN NUMBER"
	}
	return "iptables-legacy -t " + table + " -D " + strings.TrimPrefix(rule, "-A ")
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

// nftChain is a chain of nftables.
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
	for _, p := range strings.Split(strings.Trim(ports, "{} "), ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(p), "-")
		first, err := strconv.Atoi(low)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(high); err != nil {
				continue
			}
		}
		if first <= port && port <= last {
			return true
		}
	}
	return false
}
