// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// throughTheNode returns what a pod reaches through its node in its main table.
func (w *world) throughTheNode(container string) (out []string) {
	w.t.Helper()
	rec, err := w.node().Records.Load(conf.Attachment{ContainerID: conf.ContainerID(container), IfName: "eth0"})
	must(w.t, err)
	for r := range plan.All[plan.Route](rec.Plan.Ops.At(plan.Pod)) {
		if r.Link == conf.HostLinkInterface && r.Table == plan.MainTable {
			out = append(out, r.Dst.String())
		}
	}
	return out
}

func TestPodsReachTheServicesThatTheAgentHasWritten(t *testing.T) {
	t.Parallel()
	w := newLinkedWorld(t)
	add := func(container string) error {
		_, err := w.node().Add(ctx, w.request(container, "eth0", ""))
		return err
	}
	w.fake.Pod(podPath("c1"))
	w.fake.Pod(podPath("c2"))
	reaches := func(container string, want ...string) {
		t.Helper()
		if got := w.throughTheNode(container); !slices.Equal(got, want) {
			t.Errorf("%s reaches %v through its node, want %v", container, got, want)
		}
	}
	before := []string{"169.254.20.10/32", "10.244.0.0/16", "10.96.0.0/12", "10.0.0.7/32", "fd00:96::/108"}
	must(t, add("c1"))
	reaches("c1", before...)
	w.services("10.96.0.0/12", "10.112.0.0/16")
	must(t, add("c2"))
	reaches("c2", "169.254.20.10/32", "10.244.0.0/16", "10.96.0.0/12", "10.112.0.0/16", "10.0.0.7/32")
	if err := add("c1"); err != nil { // again
		t.Error(err)
	}
	w.mustCheck(w.request("c1", "eth0", ""))
	reaches("c1", before...)
}

func TestWithoutTheServicesOfTheClusterNoPodStarts(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*testing.T, *world){
		"the agent has not written": func(t *testing.T, w *world) { remove(t, filepath.Join(w.dir, "pools", "_services")) },
		"of another boot":           func(_ *testing.T, w *world) { w.boot = "5f0c2d1e-8a3b-4c6d-9e7f-000000000002" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newLinkedWorld(t)
			spoil(t, w)
			w.fake.Pod(podPath("c1"))
			req := w.request("c1", "eth0", "")
			_, err := w.node().Add(ctx, req)
			if cnierr.CodeOf(err) != cnierr.TryAgain || !strings.Contains(err.Error(), "_services") {
				t.Errorf("ADD: got %v, want code %d", err, cnierr.TryAgain)
			}
			if hint := cnierr.CNI("roce", err).Details; !strings.Contains(hint, "rocectl agent runs on this node") {
				t.Errorf("the hint is %q", hint)
			}
			w.mustBeEmpty("after an ADD without the file")
			if err := w.node().Status(ctx, req); cnierr.CodeOf(err) != cnierr.NotAvailable {
				t.Errorf("STATUS: got %v, want code %d", err, cnierr.NotAvailable)
			}
			w.services("10.96.0.0/12")
			w.mustAdd(req)
		})
	}
}
