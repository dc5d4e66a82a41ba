// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

func TestLeasesThatCannotBeReadAreReportedUntilTheyCan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 1)
		pass(3 * time.Second)
		n.healthy()
		path := filepath.Join(n.dir, "leases.db")
		good, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(path, []byte("garbage"), 0o600))
		pass(time.Minute)
		n.says(503, "the leases of the node cannot be read", path, "repair")
		n.counts(`roce_cni_pool_ready{pool="compute"} 0`)
		if got := strings.Count(n.log.String(), "the leases of the node cannot be read"); got != 1 {
			t.Errorf("it is logged %d times", got)
		}
		must(t, os.WriteFile(path, good, 0o600))
		pass(3 * time.Second)
		n.healthy()
		n.counts(`roce_cni_pool_ready{pool="compute"} 1`)
		n.logs("the leases of the node can be read again")
		n.stop()
		must(t, os.WriteFile(path, []byte("garbage"), 0o600))
		n.reports = nil
		n.run()
		pass(2 * time.Minute)
		if len(n.reports) > 0 {
			t.Errorf("it reports what it does not know: %+v", n.reports)
		}
	})
}

// TestAddressesOfAPoolThatWasRecreatedAreReported has a pool that comes back with other
// subnets while pods have addresses of the old ones.
func TestAddressesOfAPoolThatWasRecreatedAreReported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 7)
		n.change(func(v *agent.View) {
			v.Pools = []block.Pool{poolOf(t, "compute", 2, `{"rails": [{"subnets": [{"subnet": "10.7.0.0/22"}]}]}`)}
		})
		pass(2 * time.Second)
		n.says(200, `keep addresses of RailPool "compute": pods of this node use 14 host indexes`, "addresses that the RailPool does not have", "container c7")
		n.counts(`roce_cni_pool_orphan_slots{pool="compute"} 14`)
	})
}
