// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// rdmaPorts asks whether each port speaks RoCE and is active.
func rdmaPorts() Check {
	return Check{
		Name: "rdma-ports",
		Asks: "does each port speak RoCE, is it active, and at which speed?",
		Why:  "a pod on the NIC of this port gets error 103, or a rail less if minRails permits it",
		look: func(ctx context.Context, n Node) []report.Finding {
			ports, unknown := n.ports(ctx)
			if unknown != nil {
				return unknown
			}
			if len(ports) == 0 {
				return []report.Finding{cannotTell("there is no port", "an RDMA device: see rdma-devices")}
			}
			var out []report.Finding
			for _, p := range ports {
				out = append(out, n.portState(p).About(p.String()))
			}
			return out
		},
	}
}

func (n Node) portState(p nic.Port) report.Finding {
	layer, err := n.text("sys/" + p.Dir() + "/link_layer")
	if err != nil {
		return cannotTell("its link layer cannot be read: "+err.Error(), "the sysfs of the namespace that has the device")
	}
	pci := n.pci(p.Device.Name)
	switch {
	case layer == "InfiniBand":
		return problem("its link layer is InfiniBand, on which there is no macvlan and no RoCE",
			shell.Command("mlxconfig -d %s set LINK_TYPE_P%d=2 && mlxfwreset -d %s reset  # 2 is Ethernet; leave it, if the port is meant for InfiniBand", pci, p.Number, pci))
	case p.Device.Protocol == "":
		return problem("it speaks no RoCE: the NIC is in switchdev mode, or RoCE is off",
			shell.Command("devlink dev param set %s name enable_roce value true cmode driverinit && devlink dev reload %s", "pci/"+pci, "pci/"+pci))
	case p.Device.Protocol != roce:
		return problem("it speaks "+p.Device.Protocol+", not RoCE", "rdma link  # choose the interface of another device for the network")
	}
	return n.activity(p, layer)
}

// activity tells a port that is up from one that has to be set up, or plugged in.
func (n Node) activity(p nic.Port, layer string) report.Finding {
	if p.Own == nil && p.State != nldev.Active {
		return cannotTell(p.State.String()+", and its interface is not in this namespace", "the pod that has the interface: rocectl show")
	}
	if p.State != nldev.Active {
		name := p.Own.Name
		if p.Own.Flags&unix.IFF_UP == 0 {
			return problem(p.State.String()+", because "+name+" is down", shell.Command("ip link set %s up", name)+"  # and so in the configuration of the network of the node")
		}
		return problem(p.State.String()+", although "+name+" is up: it has no carrier", shell.Command("ethtool %s", name)+"  # then look at the cable, and at the port of the switch")
	}
	rate, err := n.text("sys/" + p.Dir() + "/rate")
	if err != nil {
		return cannotTell("ACTIVE; its speed cannot be read: "+err.Error(), "the sysfs of the namespace that has the device")
	}
	name := "interface in another namespace"
	if p.Own != nil {
		name = p.Own.Name
	}
	return ok("ACTIVE, %s, %s, %s", layer, name, rate)
}
