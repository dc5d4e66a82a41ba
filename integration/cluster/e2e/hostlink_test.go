// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// underlay is a pod of which roce makes eth0. Kubelet asks it by HTTP, and runs a command
// in it that asks the API server at its ClusterIP. So it becomes ready only if its node
// and ClusterIPs reach each other.
func underlay(name, network string, annotations map[string]string) *core.Pod {
	pod := shell(name, "")
	pod.Annotations = map[string]string{"v1.multus-cni.io/default-network": network}
	for key, value := range annotations {
		pod.Annotations[key] = value
	}
	box := "/bin/busybox"
	c := &pod.Spec.Containers[0]
	c.Command = []string{box, "httpd", "-f", "-p", "8080", "-h", "/bin"}
	c.ReadinessProbe = &core.Probe{
		PeriodSeconds: 1, TimeoutSeconds: 10,
		ProbeHandler: core.ProbeHandler{HTTPGet: &core.HTTPGetAction{Path: "/busybox", Port: intstr.FromInt(8080)}},
	}
	c.StartupProbe = &core.Probe{
		PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: 60,
		ProbeHandler: core.ProbeHandler{Exec: &core.ExecAction{
			Command: []string{box, "sh", "-c", box + " echo | " + box + " nc -w 5 " + strings.Replace(service.String(), ":", " ", 1)},
		}},
	}
	return pod
}

// linkedTo is a network for the first interface of pods, on a rail of RailPool compute.
func linkedTo(rail int, more map[string]any) map[string]any {
	out := map[string]any{
		"cniVersion": "1.0.0", "type": "roce", "name": "underlay", "master": []string{"rail0", "rail1"}[rail], "rdma": map[string]any{"mode": "off"},
		"ipam":     map[string]any{"type": "roce-ipam", "railPool": "compute", "rail": rail},
		"hostLink": map[string]any{"routes": []any{"auto"}},
	}
	for key, value := range more {
		out[key] = value
	}
	return out
}

// interfaces returns the names and addresses in the pod's network-status.
func (s running) interfaces(t *testing.T) (out []string) {
	t.Helper()
	for _, i := range s.node.statuses(t, s.Name) {
		out = append(out, i.Name+" "+i.Interface+" "+strings.Join(i.IPs, ","))
	}
	return out
}

// TestAPodOfWhichRoceMakesTheFirstInterfaceBecomesReady runs pods with kubelet, containerd
// and Multus: with eth0 alone, with a rail beside it, and with all rails in one network.
func TestAPodOfWhichRoceMakesTheFirstInterfaceBecomesReady(t *testing.T) {
	n := theNode(t)
	run(t, "sysctl", "-w", "net.ipv4.ip_forward=1")
	n.kubelet(t)
	n.deploy(t)
	n.reaper(t)
	n.start(t, n.agent(t))
	n.network(t, "underlay", linkedTo(0, nil))
	n.network(t, "second", map[string]any{
		"cniVersion": "1.0.0", "type": "roce", "name": "second", "master": "rail1", "rdma": map[string]any{"mode": "off"},
		"ipam": map[string]any{"type": "roce-ipam", "railPool": "compute", "rail": 1},
	})
	all := railsOf(map[string]any{"type": "roce-ipam", "railPool": "compute"})
	all["hostLink"] = map[string]any{"routes": []any{"auto"}}
	n.network(t, "all", all)
	for name, c := range map[string]struct {
		pod  *core.Pod
		want []string // of network-status, without addresses
	}{
		"eth0 alone":           {underlay("first", "default/underlay", nil), []string{"default/underlay eth0"}},
		"a rail beside it":     {underlay("beside", "default/underlay", map[string]string{"k8s.v1.cni.cncf.io/networks": "second"}), []string{"default/underlay eth0", "default/second net1"}},
		"all rails in one":     {underlay("railed", "default/all", nil), []string{"default/all eth0", "default/all eth0-1"}},
		"of Multus' namespace": {underlay("system", "underlay", nil), []string{"default/underlay eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := n.running(t, n.start(t, c.pod))
			got := p.interfaces(t)
			if len(got) != len(c.want) {
				t.Fatalf("network-status has %q, want %q", got, c.want)
			}
			for i, want := range c.want {
				if !strings.HasPrefix(got[i], want+" 172.16.1") {
					t.Errorf("network-status has %q, want %q", got[i], want)
				}
			}
			if first := c.want[0] + " " + p.Status.PodIP; got[0] != first || len(p.Status.PodIPs) != 1 {
				t.Errorf("the status has the addresses %v, network-status %q", p.Status.PodIPs, got[0])
			}
			if routes := p.inside(t, "ip", "route", "show", "dev", "host0"); !strings.Contains(routes, "10.96.0.0/16 via") {
				t.Errorf("through its node the pod reaches\n%s", routes)
			}
			p.holds(t, len(c.want))
			n.stop(t, p.Pod)
			p.holds(t, 0)
			n.noLink(t)
		})
	}
}

// noLink waits until nothing of hostLink is left on the node: kubelet deletes the Pod
// object before the runtime has ended its sandbox.
func (n *node) noLink(t *testing.T) {
	t.Helper()
	eventually(t, "the node has no link of a pod", func(context.Context) error {
		for line := range strings.Lines(run(t, "ip", "-oneline", "link", "show", "type", "veth") + run(t, "ip", "rule", "show", "priority", "500")) {
			if strings.Contains(line, "alias roce:") || strings.Contains(line, "lookup") {
				return errors.New(line)
			}
		}
		return nil
	})
}
