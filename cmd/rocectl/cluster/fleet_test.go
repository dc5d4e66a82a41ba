// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/cluster/reconcile"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
)

func TestRailsOfAllNodesAndWhatDiffers(t *testing.T) {
	t.Parallel()
	var objects []kube.RailNode
	for i := range 3 {
		o := kube.RailNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("gpu-%d", i)}}
		for r := 1; r >= 0; r-- {
			o.Status.Rails = append(o.Status.Rails, fleet.Rail{
				Rail: r, Netdev: fmt.Sprintf("ens%d", r), PCI: fmt.Sprintf("0000:%d1:00.0", r), Device: fmt.Sprintf("mlx5_%d", r), Port: 1, State: "ACTIVE", Speed: 400000, MTU: 9000,
				Vendor: "15b3", DeviceID: "1021", Driver: "mlx5_core 6.8.0", Firmware: "28.39", GPUs: []string{"GPU0", "GPU1"}, Distance: "PIX", GIDs: 256, QoS: "PFC off",
			})
		}
		objects = append(objects, o)
	}
	objects[2].Status.Rails[0].MTU = 1500
	objects[2].Status.Rails[0].Switch = "leaf\x1b[2J" // an older API server has let it pass
	objects = append(objects, kube.RailNode{ObjectMeta: metav1.ObjectMeta{Name: "cpu-0"}})
	all := reportsOf(objects, []kube.Node{{Name: "gpu-0"}, {Name: "gpu-9"}})
	var out bytes.Buffer
	if err := (Fleet{}).write(cli.Format{Name: "wide"}, &out, all); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if diff := cmp.Diff([]string{
		"NODE RAIL NETDEV RDMA STATE SPEED MTU GPU ID SWITCH SWITCH PORT MODEL PCI DRIVER FIRMWARE QOS",
		"cpu-0 none",
		"gpu-0 0 ens0 mlx5_0/1 ACTIVE 400G 9000 GPU0,GPU1 PIX 15b3:1021 - - ConnectX-7 0000:01:00.0 mlx5_core 6.8.0 28.39 PFC off",
		"gpu-0 1 ens1 mlx5_1/1 ACTIVE 400G 9000 GPU0,GPU1 PIX 15b3:1021 - - ConnectX-7 0000:11:00.0 mlx5_core 6.8.0 28.39 PFC off",
		"gpu-1 0 ens0 mlx5_0/1 ACTIVE 400G 9000 GPU0,GPU1 PIX 15b3:1021 - - ConnectX-7 0000:01:00.0 mlx5_core 6.8.0 28.39 PFC off",
		"gpu-1 1 ens1 mlx5_1/1 ACTIVE 400G 9000 GPU0,GPU1 PIX 15b3:1021 - - ConnectX-7 0000:11:00.0 mlx5_core 6.8.0 28.39 PFC off",
		"gpu-2 0 ens0 mlx5_0/1 ACTIVE 400G 9000 GPU0,GPU1 PIX 15b3:1021 - - ConnectX-7 0000:01:00.0 mlx5_core 6.8.0 28.39 PFC off",
		"gpu-2 1 ens1 mlx5_1/1 ACTIVE 400G 1500 GPU0,GPU1 PIX 15b3:1021 leaf?[2J - ConnectX-7 0000:11:00.0 mlx5_core 6.8.0 28.39 PFC off",
		"gpu-9 no report: kubectl -n roce-cni get pods -o wide shows whether an agent runs there",
		"",
		"# without a report, so not compared: 1 node",
		"NODE RAIL WHAT DIFFERS IS MOST HAVE",
		"gpu-2 1 MTU 1500 9000 on 2 of 3 nodes",
	}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	out.Reset()
	if err := (Fleet{Differences: true}).write(cli.Format{}, &out, reportsOf(nil, []kube.Node{{Name: "gpu-0"}})); err != nil ||
		out.String() != "# without a report, so not compared: 1 node\n# no agent has reported the NICs of its node\n" {
		t.Errorf("error %v: %s", err, out.String())
	}
	out.Reset()
	if err := (Fleet{Differences: true}).write(cli.Format{}, &out, reportsOf(objects[:2], nil)); err != nil || out.String() != "# no rail differs from the same rail of most nodes\n" {
		t.Errorf("error %v: %s", err, out.String())
	}
}

// TestAReportIsWrittenOnlyWhenItHasChanged lets a node look at its NICs, with an API server
// that does not always answer. A clock is moved by hand.
func TestAReportIsWrittenOnlyWhenItHasChanged(t *testing.T) {
	t.Parallel()
	zero := 0
	up := nic.Details{Rail: &zero, Netdev: "ens1", Device: "mlx5_0", Number: 1, State: "ACTIVE", MTU: 9000}
	down := up
	down.State = "DOWN"
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	clock := time.Duration(0)
	looks := []struct {
		port   nic.Details
		answer error
		wait   time.Duration
		sent   string // in all, after this look
	}{
		{port: up, wait: time.Minute},
		{port: up, wait: time.Minute, sent: "ACTIVE "},
		{port: up, wait: time.Minute, sent: "ACTIVE "},
		{port: down, wait: time.Minute, sent: "ACTIVE "}, // it flaps
		{port: up, wait: time.Minute, sent: "ACTIVE "},
		{port: down, wait: time.Minute, sent: "ACTIVE "},
		{port: down, answer: errors.New("refused"), wait: time.Minute, sent: "ACTIVE DOWN "},
		{port: down, wait: 10 * time.Minute, sent: "ACTIVE DOWN "}, // it waits
		{port: down, wait: time.Minute, sent: "ACTIVE DOWN DOWN "},
		{port: down, wait: 13 * time.Minute, sent: "ACTIVE DOWN DOWN "},
		{port: down, wait: time.Minute, sent: "ACTIVE DOWN DOWN DOWN "}, // in case that it was deleted, as with its Node
		{port: down, wait: time.Minute, sent: "ACTIVE DOWN DOWN DOWN "},
	}
	at, sent := 0, ""
	var log bytes.Buffer
	r := &reporter{
		node: "n", every: time.Minute, log: slog.New(slog.NewTextHandler(&log, nil)), now: func() time.Duration { return clock },
		ports: func(context.Context) ([]nic.Details, error) { return []nic.Details{looks[at].port}, nil },
		publish: func(_ context.Context, node string, f fleet.Report) error {
			sent += f.Rails[0].State + " "
			return looks[at].answer
		},
		wait: func(ctx context.Context, _ time.Duration) error {
			if sent != looks[at].sent {
				t.Errorf("after look %d it has sent %q, want %q", at, sent, looks[at].sent)
			}
			clock += looks[at].wait
			if at++; at == len(looks) {
				stop()
			}
			return ctx.Err()
		},
	}
	r.run(ctx)
	if got := told(&log); got != "WARN, INFO solved" || !strings.Contains(log.String(), "refused") {
		t.Errorf("the log is\n%s", log.String())
	}
	for _, tt := range []struct {
		every time.Duration
		err   error
		want  time.Duration
	}{
		{time.Minute, &block.BusyError{After: time.Hour}, time.Hour},
		{time.Minute, &block.BusyError{}, time.Minute},
		{time.Minute, block.ErrUnknown, 5 * time.Minute},
		{time.Hour, block.ErrUnknown, time.Hour},
	} {
		r.every = tt.every
		if p := r.pause(tt.err); p < tt.want*3/4 || p > tt.want*5/4 {
			t.Errorf("%v: the server is asked again after %s, want about %s", tt.err, p, tt.want)
		}
	}
}

// closed is an output that cannot be written.
type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestWhatCannotBePrintedIsAnError(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"pools":       printPools(cli.Format{}, closed{}, aState()),
		"blocks":      printBlocks(cli.Format{}, closed{}, aState()),
		"nodes":       printNodes(cli.Format{}, closed{}, aState()),
		"rails":       Fleet{}.write(cli.Format{}, closed{}, reportsOf(nil, nil)),
		"differences": Fleet{Differences: true}.write(cli.Format{}, closed{}, reports{Nodes: []fleet.Node{{}}, Differences: []fleet.Difference{{}}}),
		"orphans":     writeOrphans(closed{}, []reconcile.Orphan{{}}, time.Now()),
		"no orphans":  writeOrphans(closed{}, nil, time.Now()),
		"leases":      writeIdle(closed{}, []reconcile.Idle{{}}, time.Now()),
		"holdings":    writeHoldings(closed{}, []reconcile.Holding{{}}),
		"crowds":      writeCrowds(closed{}, []reconcile.Crowd{{}}),
	} {
		if err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTheReportsOfACluster are printed, or waited for.
func TestTheReportsOfACluster(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	f := Fleet{Kubectl: Kubectl{Kubeconfig: kubeconfigOf(t, s.URL)}}
	var out bytes.Buffer
	if err := f.Show(t.Context(), &out, cli.Format{Name: "wide", NoHeaders: true}); err != nil {
		t.Error(err)
	}
	const want = "n1  no report: kubectl -n roce-cni get pods -o wide shows whether an agent runs there\n" +
		"n2  no report: kubectl -n roce-cni get pods -o wide shows whether an agent runs there\n\n" +
		"# without a report, so not compared: 2 nodes\n# no agent has reported the NICs of its node\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	out.Reset()
	if err := f.Show(t.Context(), &out, cli.Format{Name: "json"}); err != nil || strings.Join(strings.Fields(out.String()), "") != `{"nodes":[],"unreported":["n1","n2"],"differences":[]}` {
		t.Errorf("%v: %s", err, out.String())
	}
	ctx, stop := context.WithCancel(t.Context())
	said := ""
	nodes, unreported, err := f.Reports(ctx, writerFunc(func(b []byte) (int, error) {
		said += string(b)
		stop()
		return len(b), nil
	}))
	if said != "# waiting for the reports of 2 nodes\n" || !errors.Is(err, context.Canceled) || nodes != nil || unreported != nil {
		t.Errorf("it says %q, and returns %v, %v, %v", said, nodes, unreported, err)
	}
	s.more = map[string]string{group + "railnodes": `{"metadata": {"name": "n2"}}`}
	ctx, stop = context.WithCancel(t.Context())
	if _, _, err = f.Reports(ctx, writerFunc(func([]byte) (int, error) { stop(); return 0, nil })); !errors.Is(err, context.Canceled) {
		t.Errorf("it does not wait for one of two nodes: %v", err)
	}
	stop()
	s.more[group+"railnodes"] = `{"metadata": {"name": "n2"}}, {"metadata": {"name": "n1"}}`
	if nodes, unreported, err = f.Reports(t.Context(), closed{}); err != nil || len(nodes) != 2 || nodes[0].Name != "n1" || len(unreported) > 0 {
		t.Errorf("with all reports: %v, %v, %v", nodes, unreported, err)
	}
	if err := f.Show(t.Context(), closed{}, cli.Format{}); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("to an output that is closed: %v", err)
	}
	s.forbidden = "nodes"
	if err := f.Show(t.Context(), closed{}, cli.Format{}); cnierr.CodeOf(err) != cnierr.NotAvailable {
		t.Errorf("without the right to list nodes: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
