// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// TestDeviceIsTheSameAfterItsDriverIsReloaded has one of the same name and GUID, and
// another index, as after the driver was loaded again.
func TestDeviceIsTheSameAfterItsDriverIsReloaded(t *testing.T) {
	t.Parallel()
	n, op := movable()
	s := n.subsystem(t, verbs("mlx5_0", "mlx5_1"))
	must(t, s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
	n.devices[0].Index, n.devices[0].in = 9, plan.Host
	if err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op}); !strings.Contains(fmt.Sprint(err), "it is in the host's namespace") {
		t.Errorf("check: got %v", err)
	}
	if err := errors.Join(s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}), s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op})); err != nil || n.devices[0].in != plan.Pod {
		t.Errorf("got %v, the device is in %s", err, n.devices[0].in)
	}
	pod := plan.Op{Kind: plan.Port{Device: op.Device}}
	if err := errors.Join(s.Do(t.Context(), pod), s.Check(t.Context(), pod)); err != nil {
		t.Errorf("its port: %v", err)
	}
	if err := s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil || n.devices[0].in != plan.Host {
		t.Errorf("undo: got %v, the device is in %s", err, n.devices[0].in)
	}

	host := plan.Port{Device: op.Device}
	for _, change := range []func(*hca){
		func(d *hca) { d.Name = "mlx5_7" },
		func(d *hca) { d.GUID = "5054:00ff:fe00:0099" },
		func(d *hca) { d.GUID = noGUID },
	} {
		n, _ := movable()
		n.devices[0].Index = 9
		change(n.devices[0])
		host.Device.GUID = op.Device.GUID
		if n.devices[0].GUID == noGUID {
			host.Device.GUID = noGUID
		}
		if err := n.subsystem(t, fstest.MapFS{}).Do(t.Context(), plan.Op{Place: plan.Host, Kind: host}); !errors.Is(err, ErrNoDevice) {
			t.Errorf("%+v: got %v, want no device", n.devices[0].Device, err)
		}
	}
}

func TestMoveDoneAgainGivesTheNameBack(t *testing.T) {
	t.Parallel()
	n, op := movable()
	n.devices[0].in, n.devices[0].Name = plan.Pod, "mine"
	s := n.subsystem(t, verbs("mine", "mlx5_1"))
	if err := errors.Join(s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}), s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op})); err != nil || n.devices[0].Name != "mlx5_0" || n.devices[0].in != plan.Pod {
		t.Errorf("got %v, %q is in %s", err, n.devices[0].Name, n.devices[0].in)
	}
}

// TestARecordedDeviceIsFoundUnderTheNameThatItHasNow has a device with another name, one
// that was made again, one that is gone, and one of a pod.
func TestARecordedDeviceIsFoundUnderTheNameThatItHasNow(t *testing.T) {
	t.Parallel()
	n := &node{devices: []*hca{roce(3, "mlx5_0", 4, "ens1"), roce(4, "mlx5_1", 5, "ens2"), roce(5, "mlx5_2", 6, "ens3")}}
	renamed, again, gone := n.devices[0].device(), n.devices[1].device(), n.devices[2].device()
	n.devices[0].Name, n.devices[1].Index = "rocep1s0f0", 9
	n.devices = n.devices[:2]
	recorded := append(plan.OnHost(plan.Port{Device: renamed}, plan.GID{Device: again}, plan.GID{Device: gone}), plan.InPod(plan.Port{Device: renamed})...)
	got, err := n.subsystem(t, fstest.MapFS{}).Current(t.Context(), recorded)
	was := renamed
	renamed.Name, again.Index = "rocep1s0f0", 9
	want := append(plan.OnHost(plan.Port{Device: renamed}, plan.GID{Device: again}, plan.GID{Device: gone}), plan.InPod(plan.Port{Device: was})...)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	none := &node{noRDMA: true}
	if got, err := none.subsystem(t, fstest.MapFS{}).Current(t.Context(), recorded); err != nil || !cmp.Equal(got, recorded) {
		t.Errorf("without RDMA: got %v, %v", got, err)
	}
}
