// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"math"
	"os"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// TestAFailureAtEveryCallOfTheKernelIsReported lets each call of the kernel fail in turn: a
// socket, a message, a mount, and the way into the pod. What a verb does before a failure, a
// later Undo undoes.
func TestAFailureAtEveryCallOfTheKernelIsReported(t *testing.T) {
	t.Parallel()
	type verb = func(context.Context, *Subsystem, plan.Move) error
	facts := func(link string, inPod bool) verb {
		return func(ctx context.Context, s *Subsystem, _ plan.Move) error {
			_, err := s.Facts(ctx, conf.RDMA{}, plan.Link{Name: conf.LinkName(link), Layers: [][]int32{{r0}}}, inPod)
			return err
		}
	}
	do := func(ctx context.Context, s *Subsystem, op plan.Move) error { return s.Do(ctx, plan.OnHost(op)[0]) }
	undo := func(ctx context.Context, s *Subsystem, op plan.Move) error { return s.Undo(ctx, plan.OnHost(op)[0]) }
	check := func(ctx context.Context, s *Subsystem, op plan.Move) error { return s.Check(ctx, plan.OnHost(op)[0]) }
	portIn := func(at plan.Place) verb {
		return func(ctx context.Context, s *Subsystem, op plan.Move) error {
			return s.Check(ctx, plan.Op{Place: at, Kind: plan.Port{Device: op.Device}})
		}
	}
	gidIn := func(at plan.Place, verb func(*Subsystem, context.Context, plan.Op) error) verb {
		return func(ctx context.Context, s *Subsystem, _ plan.Move) error {
			return verb(s, ctx, plan.Op{Place: at, Kind: wait("172.16.0.11")})
		}
	}
	var kept node // its files, which each Undo restores
	kept.withSettings(t, "mlx5_0", "104", "96")
	must(t, os.CopyFS(kept.files+"/sysfs", merge(sysfs("mlx5_0", v2("10.0.0.1"), v2("172.16.0.11")), fstest.MapFS{
		"bus/pci/devices/0000:0b:00.0/infiniband/mlx5_0/state": {},
		"class/infiniband/mlx5_0/ports/1/link_layer":           {Data: []byte("Ethernet\n")},
	})))
	link(t, kept.files+"/sysfs/class/net/vf0/device", "../../../devices/0000:0b:00.0")
	link(t, kept.files+"/sysfs/devices/0000:0b:00.0/subsystem", "../../bus/pci")
	for name, verbs := range map[string][]verb{ // the last one is the one with failures
		"facts":        {facts("r0", false)},
		"facts in pod": {do, facts("vf0", true)},
		"facts of the host's device of a parent in the pod": {facts("vf0", true)},
		"facts of a device by its hardware": {do, func(ctx context.Context, s *Subsystem, _ plan.Move) error {
			_, err := s.Facts(ctx, conf.RDMA{}, plan.Link{Name: "vf0", Device: "0000:0b:00.0"}, true)
			return err
		}},
		"mode":          {func(ctx context.Context, s *Subsystem, _ plan.Move) error { return s.Mode(ctx, conf.RDMAAuto) }},
		"move":          {do},
		"move again":    {do, do},
		"check":         {do, check},
		"move back":     {do, undo},
		"port":          {portIn(plan.Host)},
		"port in pod":   {do, portIn(plan.Pod)},
		"GID":           {gidIn(plan.Host, (*Subsystem).Do)},
		"GID in pod":    {do, gidIn(plan.Pod, (*Subsystem).Do)},
		"check of GIDs": {do, gidIn(plan.Pod, (*Subsystem).Check)},
		"current": {func(ctx context.Context, s *Subsystem, op plan.Move) error {
			_, err := s.Current(ctx, plan.OnHost(plan.Port{Device: op.Device}))
			return err
		}},
		"users": {func(ctx context.Context, s *Subsystem, op plan.Move) error {
			_, err := s.Users(ctx, plan.OnHost(plan.Port{Device: op.Device}), netns.ID{})
			return err
		}},
		"look before": {func(_ context.Context, s *Subsystem, _ plan.Move) error {
			return s.LookBefore(plan.OnHost(wait("172.16.0.11")), setting("net1", "172.16.0.11"))
		}},
		"look": {func(_ context.Context, s *Subsystem, _ plan.Move) error {
			return s.Look(rail(time.Second), addrs("172.16.0.11"), 0)
		}},
		"place": {func(ctx context.Context, s *Subsystem, _ plan.Move) error {
			_, err := s.Place(ctx, rail(time.Second), addrs("172.16.0.11"), nil)
			return err
		}},
		"table": {func(_ context.Context, s *Subsystem, _ plan.Move) error {
			_, _, err := s.Table(plan.Pod, plan.Pod, "mlx5_0", 1)
			return err
		}},
		"before": {func(_ context.Context, s *Subsystem, op plan.Move) error {
			_, _, err := s.Before(plan.Pod, op.Device, math.MaxInt)
			return err
		}},
	} {
		for at, failed := 1, true; failed; at++ {
			n, op := movable()
			n.devices[0].Protocol = "" // as older kernels tell it, so that sysfs is asked
			op.TOS, op.HostTOS, op.TrafficClass, op.HostTrafficClass = octet(26), octet(104), octet(8), octet(96)
			n.files = kept.files
			s := n.subsystem(t, os.DirFS(n.files+"/sysfs"))
			last := len(verbs) - 1
			for _, prepare := range verbs[:last] {
				must(t, prepare(t.Context(), s, op))
			}
			s.Close() // what is open does not fail to open
			s.conns, s.trees = [2]*nldev.Conn{}, [2]*tree{}
			n.failAt = at
			err := verbs[last](t.Context(), s, op)
			if failed = n.failAt == 0; failed != errors.Is(err, unix.EIO) || !failed && err != nil {
				t.Errorf("%s, failure at call %d: got %v", name, at, err)
			}
			n.failAt = 0
			must(t, undo(t.Context(), s, op))
			if got := n.settings(t); n.devices[0].in != plan.Host || got != "104 96" {
				t.Errorf("%s, failure at call %d: the device is in %s with the settings %s", name, at, n.devices[0].in, got)
			}
		}
	}
}
