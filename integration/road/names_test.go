// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package road

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// answerNames answers for services without an address of their own, which is what the
// quick start uses of a cluster's DNS: the addresses of their ready pods.
func (r *road) answerNames(t *testing.T) {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", netip.AddrPortFrom(service.Addr(), 53).String())
	must(t, err)
	t.Cleanup(func() { must(t, conn.Close()) })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return // closed
			}
			if answer := r.answer(context.Background(), buffer[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from) // the resolver asks again
			}
		}
	}()
}

// answer returns the answer to a message, nil if there is none.
func (r *road) answer(ctx context.Context, question []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(question) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	name := strings.Split(q.Name.String(), ".") // NAME.NAMESPACE.svc.cluster.local.
	out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true}, Questions: m.Questions}
	if len(name) == 6 && name[2] == "svc" {
		found := r.pods(ctx, name[1], name[0])
		for _, a := range found {
			if q.Type == dnsmessage.TypeA {
				out.Answers = append(out.Answers, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET},
					Body:   &dnsmessage.AResource{A: a.As4()},
				})
			}
		}
		if found == nil {
			out.RCode = dnsmessage.RCodeNameError
		}
	} else {
		out.RCode = dnsmessage.RCodeNameError
	}
	packed, err := out.Pack()
	if err != nil {
		return nil
	}
	return packed
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
