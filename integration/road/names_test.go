// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package road

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// answerNames answers for services without an address of their own, which is what the
// quick start uses of a cluster's DNS: the addresses of their ready pods.
func (r *road) answerNames(t *testing.T) {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", netip.AddrPortFrom(service.Addr(), 53).String())
	must(t, err)
	t.Cleanup(func() { must(t, conn.Close()) })
	go cnitest.AnswerNames(conn, func(name string) []netip.Addr { return r.service(context.Background(), name) })
}

// service returns the addresses of the service with a name, nil if it is none.
func (r *road) service(ctx context.Context, name string) []netip.Addr {
	parts := strings.Split(name, ".") // NAME.NAMESPACE.svc.cluster.local.
	if len(parts) != 6 || parts[2] != "svc" {
		return nil
	}
	return r.pods(ctx, parts[1], parts[0])
}

// pods returns the addresses of the ready pods of a service.
func (r *road) pods(ctx context.Context, namespace, service string) []netip.Addr {
	all, err := r.admin.DiscoveryV1().EndpointSlices(namespace).List(ctx, meta.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, slice := range all.Items {
		for _, e := range slice.Endpoints {
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil && a.Is4() && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
					out = append(out, a)
				}
			}
		}
	}
	return out
}
