// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

func TestAPodWithoutDefaultRouteIsLogged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ifName, extra string
		warns         bool
	}{
		{"eth0", "", true},
		{"net1", "", false}, // the pod has another first network
		{"eth0", `, "routing": {"defaultRoute": true}`, false},
		{"eth0", `, "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/pod"}]}`, false}, // another plugin made it
	} {
		w := newWorld(t)
		w.fake.Pod(podPath("c1"))
		var log bytes.Buffer
		n := w.node()
		n.Log = slog.New(slog.NewTextHandler(&log, nil))
		if _, err := n.Add(ctx, w.request("c1", c.ifName, c.extra)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(log.String(), "docs/default-network.md"); got != c.warns {
			t.Errorf("%s with %q: warns: %v, want %v. The log: %s", c.ifName, c.extra, got, c.warns, log.String())
		}
	}
}

func TestTheRailOfHostLinkIsNotLeftOut(t *testing.T) {
	t.Parallel()
	for nic, want := range map[string]cnierr.Code{"ens1": cnierr.BadParent, "ens2": 0} {
		w := newRailsWorld(t)
		w.fake.Pod(podPath("c1"))
		w.fake.Host().IP("link set " + nic + " down")
		_, err := w.node().Add(ctx, w.request("c1", "eth0", `, "minRails": 2, "hostLink": {"routes": []}`))
		if cnierr.CodeOf(err) != want && (want != 0 || err != nil) {
			t.Errorf("with %s down: got %v, want code %d", nic, err, want)
		}
	}
}
