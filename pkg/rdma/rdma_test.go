// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"testing"
	"testing/fstest"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
)

func TestCheckRefusesWhatItCannotServe(t *testing.T) {
	t.Parallel()
	bare := fstest.MapFS{"class/net/eth0/mtu": {}}
	mlx5 := fstest.MapFS{"class/infiniband/mlx5_0/node_type": {}}
	for _, tc := range []struct {
		name string
		mode conf.RDMAMode
		sys  fstest.MapFS
		want cnierr.Code // 0: served
	}{
		{"off without devices", conf.RDMAOff, bare, 0},
		{"off with devices", conf.RDMAOff, mlx5, 0},
		{"auto without devices", conf.RDMAAuto, bare, cnierr.NoRDMA},
		{"shared without devices", conf.RDMAShared, bare, cnierr.NoRDMA},
		{"exclusive without devices", conf.RDMAExclusive, bare, cnierr.NoRDMA},
		{"auto with devices", conf.RDMAAuto, mlx5, cnierr.Unsupported},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := Check(conf.RDMA{Mode: tc.mode}, tc.sys)
			if tc.want == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || cnierr.CodeOf(err) != tc.want {
				t.Errorf("got %v, want code %d", err, tc.want)
			}
		})
	}
}
