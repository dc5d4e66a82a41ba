// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

// TestWhatProgramsInAPodNeed: rail 0 of the pod has a GID, rail 1 has none.
func TestWhatProgramsInAPodNeed(t *testing.T) {
	t.Parallel()
	rails := []Rail{{Number: 0, Link: "net1"}, {Number: 1, Link: "net2"}}
	have := []gids.Rail{{Link: "net1", Addr: netip.MustParseAddr("172.16.10.1"), Index: 5}}
	have[0].Port.Device.Name, have[0].Port.Number = "mlx5_0", 1
	lacking := cnierr.New(cnierr.NoRDMA, "open", "uverbs0", "request the resource", "no such file")
	gid := []string{
		"ok gid rail 0 of a: 172.16.10.1 of net1 has GID index 5 of mlx5_0:1",
		"problem gid rail 1 of a: no RoCE v2 GID has an address of net2 (rocectl doctor gid-table rdma-ports  # on the node)",
	}
	for name, c := range map[string]struct {
		err    error // of the GIDs
		usable func([]gids.Rail) error
		want   []string
	}{
		"in the container":     {nil, func([]gids.Rail) error { return nil }, append(gid[:2:2], "ok container a: it can open the RDMA devices and lock memory")},
		"without the resource": {nil, func([]gids.Rail) error { return lacking }, append(gid[:2:2], "problem container a: open \"uverbs0\": no such file (request the resource)")},
		"on the node":          {nil, nil, append(gid[:2:2], "cannot tell container a: this is not the container")},
		"no GID":               {cnierr.New(cnierr.NoGID, "look for", "GID", "", "none"), nil, []string{"problem gid all rails of a: look for \"GID\": none (rocectl doctor gid-table  # on the node)"}},
		"no answer":            {errors.New("denied"), nil, []string{"cannot tell gid all rails of a: denied"}},
	} {
		p := Pod{Name: "a", Usable: c.usable, RDMA: func(context.Context) ([]gids.Rail, error) { return have, c.err }}
		var got []string
		for _, a := range p.inside(t.Context(), rails) {
			line := fmt.Sprintf("%s %s %s: %s", a.Verdict, a.Check, a.Of, a.Found)
			if a.Fix != "" {
				line += " (" + a.Fix + ")"
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
