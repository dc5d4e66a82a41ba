// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// twoOf returns the files that tell two devices of one name, in two namespaces.
func twoOf(name string) fstest.MapFS {
	return fstest.MapFS{
		"class/infiniband_verbs/uverbs0/ibdev": {Data: []byte(name + "\n")},
		"class/infiniband_verbs/uverbs1/ibdev": {Data: []byte(name + "\n")},
	}
}

// newcomer is a device that the host makes while a pod has another one of its
// name, as Linux does since 7.3.
func newcomer() *hca { return roce(5, "mlx5_0", r0, "r0") }

func TestDeviceMovesBackUnderAnotherNameIfItsOwnIsTaken(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*Config, *hca)
	}{
		{"from the pod", func(*Config, *hca) {}},
		{"by the kernel, since the namespace is gone", func(c *Config, d *hca) { c.Enter, d.in, d.Name = nil, plan.Host, "ibdev0" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n, op := movable()
			n.withSettings(t, "mlx5_0", "104", "96")
			op.TOS, op.HostTOS = octet(104), octet(104)
			other := newcomer()
			n.devices[0].in, n.devices = plan.Pod, append(n.devices, other)
			must(t, os.CopyFS(filepath.Dir(filepath.Dir(filepath.Dir(n.tosFile("ibdev0")))), os.DirFS(n.files+"/configfs/rdma_cm/mlx5_0")))
			n.reset("mlx5_0")
			n.reset("ibdev0")
			var log bytes.Buffer
			s := n.subsystem(t, twoOf("mlx5_0"), func(c *Config) {
				c.Log = slog.New(slog.NewTextHandler(&log, nil))
				tc.change(c, n.devices[0])
			})
			for range 2 {
				must(t, s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
			}
			if d := n.devices[0]; d.in != plan.Host || d.Name != "ibdev0" || other.Name != "mlx5_0" {
				t.Errorf("%q is in %s, the newcomer is %q", d.Name, d.in, other.Name)
			}
			if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "ibdev0") {
				t.Errorf("want a warning with the name, got %s", &log)
			}
			for device, want := range map[string]string{"mlx5_0": "0", "ibdev0": "104"} {
				if b, err := os.ReadFile(n.tosFile(device)); err != nil || strings.TrimSpace(string(b)) != want {
					t.Errorf("the type of service of %s is %q, %v, want %s", device, b, err, want)
				}
			}
		})
	}
}

// TestAnotherDeviceOfTheSameNameIsNotTheDevice has the device itself come back a second
// later, as when the kernel ends its namespace.
func TestAnotherDeviceOfTheSameNameIsNotTheDevice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, op := movable()
		n.devices = append(n.devices, newcomer())
		n.devices[0].in, n.devices[0].back, n.devices[0].Name = elsewhere, time.Now().Add(time.Second), "ibdev0"
		start := time.Now()
		err := n.subsystem(t, twoOf("mlx5_0"), podGone).Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op})
		if took := time.Since(start); err != nil || took < time.Second {
			t.Errorf("got %v after %s, want the wait for the device itself", err, took)
		}
	})
	n, op := movable()
	n.devices[0] = newcomer()
	if err := n.subsystem(t, verbs("mlx5_0", "mlx5_1")).Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
		t.Errorf("the device is gone, and the newcomer has its name: got %v", err)
	}
	n, op = movable()
	n.devices[0].in, n.devices = elsewhere, append(n.devices, newcomer())
	if err := n.subsystem(t, twoOf("mlx5_0")).Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); cnierr.CodeOf(err) != cnierr.RDMAHeld {
		t.Errorf("another namespace has the device: got %v, want code %d", err, cnierr.RDMAHeld)
	}
}

func TestTypeOfServiceGoesToNoDeviceThatOnlyHasTheName(t *testing.T) {
	t.Parallel()
	n, op := movable()
	n.withSettings(t, "mlx5_0", "104", "96")
	op.TOS = octet(26)
	err := n.subsystem(t, twoOf("mlx5_0")).Do(t.Context(), plan.Op{Place: plan.Host, Kind: op})
	if cnierr.CodeOf(err) != cnierr.IO || !strings.Contains(err.Error(), "several RDMA devices") || n.devices[0].in != plan.Host {
		t.Errorf("got %v, the device is in %s", err, n.devices[0].in)
	}
}
