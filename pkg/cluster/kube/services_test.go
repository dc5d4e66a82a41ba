// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

const serviceCIDRs = `{"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDRList", "metadata": {"resourceVersion": "7"}, "items": [
	{"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16", "fd00:96::/108"]}}]}`

func TestReflectorsListServiceCIDRs(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: 200, body: serviceCIDRs})
	listed, err := s.api(t).WatchServices().ListWithContextFunc(t.Context(), metav1.ListOptions{})
	list, ok := listed.(*networking.ServiceCIDRList)
	if err != nil || !ok || len(list.Items) != 1 {
		t.Fatalf("error %v, got %#v", err, listed)
	}
	got, err := kube.ServiceCIDRs(&list.Items[0])
	if want := "[10.96.0.0/16 fd00:96::/108]"; fmt.Sprint(got) != want || err != nil {
		t.Errorf("got %v, error %v, want %s", got, err, want)
	}
}

func TestServiceCIDRsThatCannotBeAreLeftOut(t *testing.T) {
	t.Parallel()
	o := &networking.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "odd"}, Spec: networking.ServiceCIDRSpec{CIDRs: []string{"0.0.0.0/0", "10.96.0.0/16", "x"}}}
	got, err := kube.ServiceCIDRs(o)
	if fmt.Sprint(got) != "[10.96.0.0/16]" || err == nil || !strings.Contains(err.Error(), `"0.0.0.0/0"`) || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("got %v, error %v", got, err)
	}
	if _, err := kube.ServiceCIDRs(&networking.Ingress{}); cnierr.CodeOf(err) != cnierr.Bug {
		t.Errorf("another object: got %v", err)
	}
}

// TestAServerWithoutServiceCIDRs answers as Kubernetes before 1.33, and as one on which the
// rights are missing.
func TestAServerWithoutServiceCIDRs(t *testing.T) {
	t.Parallel()
	s := serve(t, answer{code: 404, body: "404 page not found\n"}, status(403, "Forbidden"), answer{code: 200, body: serviceCIDRs})
	services := s.api(t)
	for _, hint := range []string{"--service-cluster-ip-range", "rbac.yaml"} {
		err := services.ServesCIDRs(t.Context())
		if e := cnierr.CNI("rocectl", err); cnierr.CodeOf(err) != cnierr.NotAvailable || !strings.Contains(e.Details, hint) {
			t.Errorf("got %v, want code %d and the hint %s", err, cnierr.NotAvailable, hint)
		}
	}
	if err := services.ServesCIDRs(t.Context()); err != nil {
		t.Error(err)
	}
	if err := serve(t, answer{slow: true}).api(t).Within(50 * time.Millisecond).ServesCIDRs(t.Context()); !is(block.ErrUnknown)(err) {
		t.Errorf("without an answer in time: %v", err)
	}
}
