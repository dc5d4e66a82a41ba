// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"iter"
	"regexp"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

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
