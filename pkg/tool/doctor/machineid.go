// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"regexp"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// machineID asks whether the node can be told from others.
func machineID() Check {
	return Check{
		Name: "machine-id",
		Asks: "has the node a machine ID?",
		Why:  "MACs and blocks of addresses are told apart by machine ID and host name; rocectl agent claims nothing without one",
		look: func(_ context.Context, n Node) []report.Finding {
			id, err := n.text("etc/machine-id")
			switch {
			case isNotExist(err):
				return []report.Finding{problem("/etc/machine-id is missing", "systemd-machine-id-setup")}
			case err != nil:
				return []report.Finding{cannotTell(err.Error(), "the right to read /etc/machine-id")}
			case !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(id):
				return []report.Finding{problem("/etc/machine-id has no 32 hexadecimal digits", "rm /etc/machine-id && systemd-machine-id-setup")}
			}
			return []report.Finding{ok("%s", id)}
		},
	}
}
