// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// networkManagers asks who configures the RoCE interfaces of the node. Children of pods
// are made in the pods, where neither program sees them.
func networkManagers() Check {
	return Check{
		Name: "network-managers",
		Asks: "does at most one of systemd-networkd and NetworkManager manage each RoCE interface?",
		Why:  "two programs undo each other's addresses, MTU and state; each address that goes takes its GID along",
		look: func(ctx context.Context, n Node) []report.Finding {
			return n.eachPort(ctx, func(p nic.Port) report.Finding {
				if p.Own == nil {
					return ok("its interface is in another namespace")
				}
				return n.managers(p.Own.Name, p.Own.Index)
			})
		},
	}
}

// managers judges an interface by the files in which both programs keep its state.
func (n Node) managers(name string, index int32) report.Finding {
	networkd, err := n.setting(fmt.Sprintf("run/systemd/netif/links/%d", index), "ADMIN_STATE")
	if err != nil {
		return cannotTell("what systemd-networkd does with "+name+": "+err.Error(), "the right to read /run/systemd/netif")
	}
	manager, err := n.setting(fmt.Sprintf("run/NetworkManager/devices/%d", index), "managed")
	if err != nil {
		return cannotTell("what NetworkManager does with "+name+": "+err.Error(), "the right to read /run/NetworkManager")
	}
	var by []string
	if networkd != "" && networkd != "unmanaged" {
		by = append(by, "systemd-networkd")
	}
	if manager == "true" {
		by = append(by, "NetworkManager")
	}
	switch len(by) {
	case 0:
		return ok("neither manages %s", name)
	case 1:
		return ok("%s manages %s", by[0], name)
	}
	return problem("both systemd-networkd and NetworkManager manage "+name,
		shell.Command(`printf '[keyfile]\nunmanaged-devices+=interface-name:%%s\n' %s > %s && nmcli general reload`, name, "/etc/NetworkManager/conf.d/"+name+".conf"))
}

// setting returns a value of a file with lines KEY=VALUE, "" if there is no file or
// no such line.
func (n Node) setting(name, key string) (string, error) {
	text, err := n.text(name)
	if isNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), key+"="); found {
			return value, nil
		}
	}
	return "", nil
}
