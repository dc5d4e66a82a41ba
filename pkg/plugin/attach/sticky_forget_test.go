// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// delPod is a DEL with the arguments of a pod.
func (w *world) delPod(id, pod string) {
	w.t.Helper()
	d, err := conf.ParseDel(conf.Input{
		ContainerID: id, IfName: "net1", Netns: podPath(id), Stdin: fmt.Appendf(nil, w.config, w.dir, w.mode, ""),
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=train;K8S_POD_NAME=" + pod,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.node().Del(ctx, d); err != nil {
		w.t.Fatalf("DEL of %s: %v", id, err)
	}
}

func TestDELTakesBackWhatAnADDHasAskedFor(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	for i, pod := range []string{"job-0", "job-1"} {
		if _, err := w.addPod(fmt.Sprint("c", i), pod, ""); err == nil {
			t.Fatal("an ADD did not fail that got no answer")
		}
	}
	w.ownNothing() // DEL needs no file of the pool
	w.delPod("c0", "job-0")
	if got := w.wanted(); !slices.Equal(got, []string{"job-1"}) {
		t.Errorf("asked for %v, want the other pod's alone", got)
	}
	w.delPod("c0", "job-0") // again
	w.mustDel("c1")         // a runtime that does not say which pod it is
	w.delPod("c1", "web-x7k2p")
	if got := w.wanted(); !slices.Equal(got, []string{"job-1"}) {
		t.Errorf("asked for %v, want the other pod's alone", got)
	}
}

// The DEL of a former sandbox may come when the next one has asked.
func TestDELOfWhatStandsTakesNoRequestBack(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	w.answer(slotFor("job-0", 3, 64))
	w.mustGet("c1", "job-0", 64)
	if err := w.ranges().Want("gpu", keyOf("job-0")); err != nil {
		t.Fatal(err)
	}
	w.delPod("c1", "job-0")
	if got := w.wanted(); !slices.Equal(got, []string{"job-0"}) {
		t.Errorf("asked for %v, want that of the next sandbox", got)
	}
}
