// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// leftBehind reads the records before and after it looks. A record is older than what it
// names, and is removed later. So pods that come or go meanwhile are no problem.
func (l *look) leftBehind() []report.Finding {
	links := l.links()
	named := l.recorded()
	found, err := l.madeByRoce(links)
	l.need(err, "what roce has made cannot be listed: ", rootOfNode)
	maps.Copy(named, l.recorded())
	var out []report.Finding
	tests, _ := fs.Glob(l.Root, "run/netns/roce-hwtest-*") // the pattern is correct
	for _, ns := range tests {
		out = append(out, problem("the namespace /"+ns+" of roce-hwtest: unless that runs now, it was killed, and RDMA devices of the node may be in there",
			"# roce-hwtest --mutate removes it before anything else").About(path.Base(ns)))
	}
	for _, m := range found {
		if !named[m.key] {
			out = append(out, problem(m.what+": no record names it", m.remove).About(m.key))
		}
	}
	return orOK(out, "interfaces and rules of pods on the node: %d; a record names each", len(found))
}

// made is something that roce has made on the node. Its key is the name of a link, or that
// of ruleKey.
type made struct{ key, what, remove string }

// ruleKey is what a rule to the table of pods with hostLink is called in an answer.
func ruleKey(v6 bool) string {
	if v6 {
		return "IPv6 rule"
	}
	return "IPv4 rule"
}

// madeByRoce returns what of the links is still there and was made by roce, and its rules.
func (l *look) madeByRoce(links []rtnl.Link) (out []made, err error) {
	for _, link := range links {
		what := ""
		switch {
		case link.Kind == "vlan" && link.Alias == plan.VLANMark:
			what = "a VLAN that roce has made"
		case link.Kind == "veth" && strings.HasPrefix(link.Alias, plan.MarkPrefix):
			what = "a link to the pod " + strings.TrimPrefix(link.Alias, plan.MarkPrefix)
		default:
			continue
		}
		there, err := l.has("sys/class/net/" + link.Name)
		if err != nil {
			return nil, err
		}
		if there {
			out = append(out, made{link.Name, what, shell.Command("ip link del %s", link.Name)})
		}
	}
	rules, err := l.Rules(l.ctx)
	for _, r := range rules {
		if v6 := r.From.Addr().Is6(); toPods(r) {
			out = append(out, made{
				ruleKey(v6), fmt.Sprintf("the rule to table %d", r.Table),
				fmt.Sprintf("ip %s rule del priority %d table %d protocol %d", map[bool]string{false: "-4", true: "-6"}[v6], r.Priority, r.Table, plan.Protocol),
			})
		}
	}
	return out, err
}

// toPods says whether a rule is that of roce to the table of pods with hostLink.
func toPods(r rtnl.Rule) bool {
	return r.Table == plan.HostLinkTable && r.Priority == plan.HostLinkPriority && r.Protocol == plan.Protocol
}

// recorded returns the keys of what the records name on the node.
func (l *look) recorded() map[string]bool {
	out := map[string]bool{}
	for _, rec := range l.records() {
		onHost := rec.Plan.Ops.At(plan.Host)
		for _, op := range onHost.Links() {
			out[string(op.Link())] = true
		}
		for r := range plan.All[plan.Rule](onHost) {
			if r.Table == plan.HostLinkTable {
				out[ruleKey(r.From.Addr().Is6())] = true
			}
		}
	}
	return out
}

func (l *look) records() (out []record.Record) {
	for rec, err := range l.Records.All() {
		l.need(err, "the records cannot be read: ", "readable records: rocectl show says which one is not")
		out = append(out, rec)
	}
	return out
}
