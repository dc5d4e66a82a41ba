// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"strings"
	"testing"
)

func TestModeThatContradictsTheNodesIsRefused(t *testing.T) {
	opposite := map[string]string{"shared": "exclusive", "exclusive": "shared"}
	number := map[string]string{"exclusive": "0", "shared": "1"}
	for mode, other := range opposite {
		t.Run("the node's is "+mode, func(t *testing.T) {
			n := newNode(t, mode)
			a := n.attach(n.rail(0).With("rdma", map[string]any{"mode": other}), n.pod())
			change := "rdma system set netns " + other
			contains(t, a.mustFail(104), `"`+other+`": the node's is "`+mode+`"`, change, "options ib_core netns_mode="+number[other])
			n.nothingLeft()
			if err := a.status(); err == nil || err.Code != 50 || !strings.Contains(err.Details, change) {
				t.Errorf("STATUS: %+v, want error 50 with the command %q", err, change)
			}

			// The hint says that the command works only without other namespaces.
			if out, err := try("sh", "-c", change); err == nil || !strings.Contains(out, "busy") {
				t.Errorf("%s, while there is a pod: %q", change, out)
			}
			a.pod.Remove(t)
			setMode(t, other)

			if mode == "shared" { // the other way needs a device that moves
				if err := a.status(); err != nil {
					t.Errorf("STATUS, now that the node's mode is %s: %+v", other, err)
				}
			}
			setMode(t, mode)
		})
	}
}
