// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mdlayher/packet"

	"github.com/roce-cni/roce-cni/pkg/inventory"
	"github.com/roce-cni/roce-cni/pkg/inventory/fleet"
	"github.com/roce-cni/roce-cni/pkg/kernel/kerneltest"
)

// frameOf is an LLDP frame of a switch: chassis, port, time to live, name.
func frameOf(name, port string) *[]byte {
	tlv := func(typ byte, value string) []byte { return append([]byte{typ << 1, byte(len(value))}, value...) }
	f := append([]byte{0x01, 0x80, 0xc2, 0, 0, 0x0e}, 2, 0, 0, 0, 0, 1, 0x88, 0xcc)
	f = slices.Concat(f, tlv(1, "\x04\x02\x00\x00\x00\x00\x01"), tlv(2, "\x05"+port), tlv(3, "\x00\x78"), tlv(5, name), []byte{0, 0})
	return &f
}

// TestTheAgentHearsTheSwitchOfEachNIC has a switch that sends LLDP, the cable in another
// switch at the second time that the agent listens, and no switch at the third.
func TestTheAgentHearsTheSwitchOfEachNIC(t *testing.T) {
	n := kerneltest.NewNode(t)
	n.NIC("ens1")
	var sent atomic.Pointer[[]byte]
	sent.Store(frameOf("leaf-1", "swp1"))
	stop := sends(t, n, &sent)
	defer stop()

	rail := 0
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var heard []fleet.Connection
	var reports []fleet.Report
	r := &reporter{
		node:    "gpu-01",
		publish: func(_ context.Context, _ string, r fleet.Report) error { reports = append(reports, r); return nil },
		ports: func(context.Context) ([]inventory.Port, error) {
			return []inventory.Port{{Rail: &rail, Netdev: "ens1", State: "ACTIVE"}, {Device: "mlx5_9"}}, nil
		},
		now: func() time.Duration { return time.Hour }, log: slog.New(slog.DiscardHandler),
	}
	r.wait = func(context.Context, time.Duration) error {
		heard = append(heard, r.connections()["ens1"])
		switch len(heard) {
		case 1:
			sent.Store(frameOf("leaf-2", "swp7"))
		case 2:
			stop()
			end()
		default:
			return errors.New("the end")
		}
		return nil
	}
	r.listen(ctx)
	if want := []fleet.Connection{{Switch: "leaf-1", Port: "swp1"}, {Switch: "leaf-2", Port: "swp7"}, {}}; !slices.Equal(heard, want) {
		t.Errorf("heard %+v, want %+v", heard, want)
	}

	r.heard = map[string]fleet.Connection{"ens1": heard[1]}
	looks := 0
	r.wait = func(context.Context, time.Duration) error {
		if looks++; looks == 2 {
			return errors.New("the end")
		}
		return nil
	}
	r.run(t.Context())
	if len(reports) != 1 || len(reports[0].Rails) != 1 || reports[0].Rails[0].Switch != "leaf-2" || reports[0].Rails[0].SwitchPort != "swp7" {
		t.Errorf("reported %+v", reports)
	}
}

// sends sends a frame at the other end of ens1 again and again, as a switch does: a frame
// may come before the socket of the agent is open.
func sends(t *testing.T, n *kerneltest.Node, frame *atomic.Pointer[[]byte]) (stop func()) {
	t.Helper()
	var conn *packet.Conn
	if err := n.Wire.Do(func() error {
		ifi, err := net.InterfaceByName("ens1")
		if err == nil {
			conn, err = packet.Listen(ifi, packet.Raw, 0x88cc, nil)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close()
		again := time.NewTicker(5 * time.Millisecond)
		defer again.Stop()
		for {
			f := *frame.Load()
			_, _ = conn.WriteTo(f, &packet.Addr{HardwareAddr: f[:6]}) // the next one comes soon
			select {
			case <-again.C:
			case <-over:
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(over)
		<-done
	})
}
