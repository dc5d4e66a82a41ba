// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"testing"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
)

// node makes a Node, and fails the test if that fails.
func node(t testing.TB, admin kubernetes.Interface, name string) {
	t.Helper()
	_, err := ground.MakeNode(t.Context(), admin, name, ground.MachineID(name), nil)
	must(t, err)
}

func TestATokenOfAnAgentSaysOnWhichNodeItIs(t *testing.T) {
	t.Parallel()
	c := shared(t)
	admin := client(t, c.Admin())
	node(t, admin, "tokens-0")
	account := &core.ServiceAccount{ObjectMeta: meta.ObjectMeta{Name: "agent"}}
	_, err := admin.CoreV1().ServiceAccounts("default").Create(t.Context(), account, meta.CreateOptions{})
	must(t, err)
	token, err := ground.AgentToken(t.Context(), admin, "default", "agent", "tokens-0")
	must(t, err)

	review, err := client(t, c.As(token)).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authentication.SelfSubjectReview{}, meta.CreateOptions{})
	must(t, err)
	got := review.Status.UserInfo
	if on := got.Extra["authentication.kubernetes.io/node-name"]; len(on) != 1 || on[0] != "tokens-0" || got.Username != "system:serviceaccount:default:agent" {
		t.Errorf("it is %s on %v", got.Username, on)
	}
	if _, err := client(t, c.As(token)).CoreV1().Nodes().List(t.Context(), meta.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an account without rights lists nodes: %v", err)
	}
}
