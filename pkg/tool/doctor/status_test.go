// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// TestStatusOfAHealthyNode shows the screen.
func TestStatusOfAHealthyNode(t *testing.T) {
	t.Parallel()
	const want = `ok           plugins          roce: CNI roce plugin version unknown
ok           agent            healthy, 1 pool on this node
ok           pools            gpu: rail 0: 0 of 20 addresses of 172.20.0.0/16 leased, set aside or in quarantine
ok           device-plugin    rdma/hca_shared_devices_a: 3 devices
ok           rails            2 devices: mlx5_0, mlx5_1
# 5 ok, 0 problems, 0 cannot tell
`
	var out strings.Builder
	if err := Write(&out, Status(t.Context(), healthy(t).node()), true); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestAFaultIsInItsPart has faults of each part: no other part says anything.
func TestAFaultIsInItsPart(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ part, fix string }{
		"an old plugin":              {"plugins", "rocectl doctor cni-plugins"},
		"another plugin comes first": {"plugins", "rocectl doctor cni-config"},
		"the agent is absent":        {"agent", "rocectl doctor agent"},
		"no agent was ever here":     {"agent", "rocectl doctor agent"},
		"a pool is nearly empty":     {"pools", "rocectl doctor pools"},
		"a resource without devices": {"device-plugin", "rocectl doctor device-plugin"},
		"a cable is out":             {"rails", "rocectl doctor rdma-ports"},
	} {
		w := healthy(t)
		faults()[slices.IndexFunc(faults(), func(f fault) bool { return f.name == name })].change(w)
		for _, a := range Status(t.Context(), w.node()) {
			if bad := a.Verdict != report.OK; bad != (a.Check == want.part) || bad && a.Fix != want.fix {
				t.Errorf("%s: %+v", name, a)
			}
		}
	}
}
