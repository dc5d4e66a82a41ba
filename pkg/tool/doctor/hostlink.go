// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"
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
	families := []string{"ipv4"}
	if slices.ContainsFunc(rules, func(r rtnl.Rule) bool { return toPods(r) && r.From.Addr().Is6() }) {
		families = append(families, "ipv6")
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
	name := map[string]string{"ipv4": "net.ipv4.ip_forward", "ipv6": "net.ipv6.conf.all.forwarding"}[family]
	forward, err := n.number(strings.ReplaceAll(name, ".", "/"))
	switch {
	case err != nil:
		return []report.Finding{cannotTell(name+" cannot be read: "+err.Error(), "the network namespace of the node")}
	case forward != 0:
		return nil
	}
	fix := "sysctl -w " + name + "=1  # and so in /etc/sysctl.d"
	if family == "ipv6" {
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
	for _, c := range dropsForwarded(rules, ipv6) {
		rule := shell.Command("nft insert rule %s %s %s ", c.family, c.table, c.chain)
		out = append(out, problem(fmt.Sprintf("the chain %s of table %s %s drops what no rule accepts, also packets of pods", c.chain, c.family, c.table),
			rule+`iifname "veth*" accept && `+rule+`oifname "veth*" ct state established,related accept  # and in the program that makes the chain`))
	}
	for _, ip := range []string{"ip", "ip6"}[:map[bool]int{false: 1, true: 2}[ipv6]] {
		rules, fault := n.legacyRules(ctx, ip)
		switch {
		case fault != nil:
			out = append(out, *fault)
		case regexp.MustCompile(`(?m)^(:FORWARD DROP|-A FORWARD -j (DROP|REJECT))\b`).MatchString(rules) && !regexp.MustCompile(`-A .*-i veth\+ .*-j ACCEPT`).MatchString(rules):
			rule := ip + "tables-legacy -I FORWARD "
			out = append(out, problem("the chain FORWARD of "+ip+"tables-legacy drops what no rule accepts, also packets of pods",
				rule+"-i veth+ -j ACCEPT && "+rule+"-o veth+ -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT  # and in the program that sets the policy"))
		}
	}
	return out
}

// dropsForwarded returns the chains that drop forwarded packets unless a rule accepts them,
// without those of a table with a rule for links to pods.
func dropsForwarded(rules string, ipv6 bool) []nftChain {
	all := regexp.MustCompile(`^(counter packets \d+ bytes \d+ )?(drop|reject( with .*)?)$|policy drop;`)
	accepts := regexp.MustCompile(`iifname "veth\*".* accept`)
	var out []nftChain
	forward, accepted := map[nftChain]bool{}, map[nftChain]bool{}
	for c, line := range nftLines(rules) {
		if strings.Contains(line, "hook forward ") && (c.family == "ip" || c.family == "inet" || c.family == "ip6" && ipv6) {
			forward[c] = true
		}
		switch {
		case forward[c] && all.MatchString(line) && !slices.Contains(out, c):
			out = append(out, c)
		case accepts.MatchString(line):
			accepted[nftChain{family: c.family, table: c.table}] = true
		}
	}
	return slices.DeleteFunc(out, func(c nftChain) bool { return accepted[nftChain{family: c.family, table: c.table}] })
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
