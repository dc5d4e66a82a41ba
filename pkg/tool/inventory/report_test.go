// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package inventory

import (
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
)

func TestAReportIsShortAndHasOnlyPrintableCharacters(t *testing.T) {
	t.Parallel()
	evil := strings.Repeat("\x1b[2J\u202e", 100)
	var ports []Port
	for i := range 40 {
		ports = append(ports, Port{
			Rail: &i, Netdev: "ens1", PCI: evil, Device: evil, Number: 1, State: evil, VendorID: evil, DeviceID: evil,
			Driver: Driver{Name: evil, Version: evil, Firmware: evil}, GPUs: make([]GPU, 40),
		})
	}
	ports = append(ports, Port{Device: "mlx5_9"}) // no rail
	got := Report(ports, map[string]fleet.Connection{"ens1": {Switch: evil, Port: evil}}, fleet.Report{})
	if len(got.Rails) != fleet.MaxRails {
		t.Fatalf("%d rails", len(got.Rails))
	}
	for _, r := range got.Rails {
		for _, s := range []string{r.Netdev, r.PCI, r.Device, r.State, r.Vendor, r.DeviceID, r.Driver, r.Firmware, r.Switch, r.SwitchPort} {
			if len(s) > 64 || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) {
				t.Errorf("%q", s)
			}
		}
		if len(r.GPUs) > fleet.MaxGPUs {
			t.Errorf("%d GPUs", len(r.GPUs))
		}
	}
}

func TestADeviceOfAPodIsReportedAsBefore(t *testing.T) {
	t.Parallel()
	zero := 0
	port := Port{Rail: &zero, Netdev: "ens1", PCI: "0000:01:00.0", Device: "mlx5_0", Number: 1, State: "ACTIVE", MTU: 9000, GIDs: GIDs{Size: 256}}
	before := Report([]Port{port}, map[string]fleet.Connection{"ens1": {Switch: "leaf", Port: "swp1"}}, fleet.Report{})
	port.State, port.GIDs = "AWAY", GIDs{}
	if now := Report([]Port{port}, nil, before); !now.Equal(before) {
		t.Errorf("%+v, before %+v", now, before)
	}
	port.State = "DOWN"
	if now := Report([]Port{port}, nil, before); now.Equal(before) {
		t.Errorf("a port that is down is reported as %+v", now)
	}
}
