// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// records are those of roce on the node.
func (w *world) records() record.Store { return record.Store{Dir: w.pools.Dir, BootID: bootID} }

// made gives the node a link that roce has made.
func (w *world) made(l rtnl.Link) {
	w.links = append(w.links, l)
	w.write("sys/class/net/"+l.Name+"/ifalias", l.Alias)
}

// onVLAN gives the node the VLAN of a pod, and a rule to its links.
func (w *world) onVLAN() {
	w.made(rtnl.Link{Kind: "vlan", VLAN: 120, Name: "ens1f0np0.120", Alias: plan.VLANMark})
	w.made(rtnl.Link{Kind: "vlan", VLAN: 130, Name: "storage"}) // the operator's
	w.rules = append(w.rules, rtnl.Rule{From: netip.MustParsePrefix("::/0"), Table: plan.HostLinkTable, Priority: plan.HostLinkPriority, Protocol: plan.Protocol})
}

// record writes the record of a pod with what onVLAN and linked have made.
func (w *world) record() {
	w.t.Helper()
	records := w.records()
	at := conf.Attachment{ContainerID: "c1", IfName: "eth0"}
	release, err := records.Lock(w.t.Context(), at.ContainerID) // it makes the folder
	if err != nil {
		w.t.Fatal(err)
	}
	defer release()
	err = records.Save(record.Record{Attachment: at, Committed: true, Plan: plan.Plan{Ops: plan.Ops{
		{Place: plan.Host, Shared: true, Kind: plan.VLAN{Name: "ens1f0np0.120", VLAN: conf.VLAN{NIC: "ens1f0np0", ID: 120}}},
		{Place: plan.Host, Kind: plan.Veth{Name: "veth0123456789a", PodEnd: "host0", Mark: "roce:c1/eth0"}},
		{Place: plan.Host, Shared: true, Kind: plan.Rule{From: netip.MustParsePrefix("::/0"), Table: plan.HostLinkTable, Priority: plan.HostLinkPriority}},
	}}})
	if err != nil {
		w.t.Fatal(err)
	}
}

// forget removes the record of the pod.
func (w *world) forget() {
	w.t.Helper()
	if err := w.records().Delete(conf.Attachment{ContainerID: "c1", IfName: "eth0"}); err != nil {
		w.t.Fatal(err)
	}
}

// linked gives the node the end of a link to a pod, and the record of the pod.
func (w *world) linked() {
	w.t.Helper()
	w.made(rtnl.Link{Kind: "veth", Name: "veth0123456789a", Alias: "roce:c1/eth0"})
	w.record()
}

// dual gives the node a link to a pod of both families, and a setting that says whether the
// node forwards IPv6.
func (w *world) dual(forwarding string) {
	w.t.Helper()
	w.linked()
	w.rules = append(w.rules, rtnl.Rule{From: netip.MustParsePrefix("::/0"), Table: plan.HostLinkTable, Priority: plan.HostLinkPriority, Protocol: plan.Protocol})
	w.write("proc/sys/net/ipv4/ip_forward", "1")
	w.write("proc/sys/net/ipv6/conf/all/forwarding", forwarding)
}
