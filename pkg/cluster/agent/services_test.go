// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
)

// told is what an agent is told about the cluster's Services.
type told struct {
	cidrs []string
	err   error
}

// hears runs the agent, which hears of Services what is sent.
func (n *node) hears() chan<- told {
	n.t.Helper()
	news := make(chan told)
	c := n.config()
	c.Services = func(ctx context.Context, see func([]netip.Prefix, error)) {
		for {
			select {
			case <-ctx.Done():
				return
			case v := <-news:
				var list []netip.Prefix
				for _, s := range v.cidrs {
					list = append(list, netip.MustParsePrefix(s))
				}
				see(list, v.err)
			}
		}
	}
	n.runWith(c)
	return news
}

// knows fails the test unless the node's file has these CIDRs of Services.
func (n *node) knows(want ...string) {
	n.t.Helper()
	synctest.Wait()
	got, err := n.files().Services()
	var texts []string
	for _, p := range got {
		texts = append(texts, p.String())
	}
	if !slices.Equal(texts, want) || (err == nil) != (len(want) > 0) {
		n.t.Errorf("the file has %v, error %v, want %v\n%s", texts, err, want, n.log.String())
	}
}

func TestTheAgentKeepsTheServicesOfTheCluster(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster().node(t, "n1")
		news := n.hears()
		n.knows()
		news <- told{err: errors.New("the API server has no ServiceCIDRs")}
		n.knows()
		n.says(200, "CIDRs of the cluster's Services", "the API server has no ServiceCIDRs")
		news <- told{} // none yet
		n.knows()
		n.says(200, "the API server has none")
		news <- told{cidrs: []string{"fd00:96::/108", "10.96.0.0/16"}}
		n.knows("10.96.0.0/16", "fd00:96::/108")
		n.healthy()
		news <- told{cidrs: []string{"10.96.0.0/16"}}
		n.knows("10.96.0.0/16")
		news <- told{err: errors.New("forbidden")}
		n.knows("10.96.0.0/16")
		n.says(200, "forbidden")

		path := filepath.Join(n.dir, "pools", "_services")
		must(t, os.Remove(path))
		pass(2 * time.Second)
		n.knows("10.96.0.0/16")

		n.stop()
		n.boot = "22222222-2222-4222-8222-222222222222"
		news = n.hears()
		n.knows() // what was before the boot may be wrong
		news <- told{cidrs: []string{"10.96.0.0/16"}}
		n.knows("10.96.0.0/16")
	})
}

func TestTheAgentReportsThatItCannotWriteTheServices(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster().node(t, "n1")
		news := n.hears()
		pools := filepath.Join(n.dir, "pools")
		if err := os.WriteFile(pools, nil, 0o600); err != nil { // where the folder would be
			t.Fatal(err)
		}
		news <- told{cidrs: []string{"10.96.0.0/16"}}
		n.knows()
		n.says(200, "write CIDRs of Services to")
		n.logs("cannot be written")
		n.change(func(*agent.View) {})
		n.logs("the node files of the pools cannot be read")
		must(t, os.Remove(pools))
		pass(2 * time.Second)
		n.knows("10.96.0.0/16")
		n.logs("wrote the CIDRs of the cluster's Services")
	})
}
