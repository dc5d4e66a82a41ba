// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"testing"
	"time"

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

func TestAProxyDropsWhatTheTestSays(t *testing.T) {
	t.Parallel()
	c := shared(t)
	admin := client(t, c.Admin())
	for fault, want := range map[ground.Fault]struct {
		there bool
		err   func(error) bool
	}{
		ground.None:    {true, func(err error) bool { return err == nil }},
		ground.Lost:    {false, func(err error) bool { return err != nil && apierrors.ReasonForError(err) == meta.StatusReasonUnknown }},
		ground.Landed:  {true, func(err error) bool { return err != nil && apierrors.ReasonForError(err) == meta.StatusReasonUnknown }},
		ground.Silent:  {true, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		ground.Refused: {false, apierrors.IsTooManyRequests},
	} {
		p, err := ground.NewProxy(c.Admin(), func(*http.Request) ground.Fault { return fault })
		must(t, err)
		t.Cleanup(p.Close)
		space := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: "proxied" + string(fault)}}
		patience := 30 * time.Second
		if fault == ground.Silent { // nothing else ends it
			patience = 5 * time.Second
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err = client(t, p.Config()).CoreV1().RESTClient().Post().Resource("namespaces").Body(space).MaxRetries(0).Do(ctx).Error()
		cancel()
		_, there := admin.CoreV1().Namespaces().Get(t.Context(), space.Name, meta.GetOptions{})
		if !want.err(err) || (there == nil) != want.there {
			t.Errorf("%q: error %v; then %v", fault, err, there)
		}
	}
}

func TestWhatWasWrittenOutlivesTheServersAndABackupForgetsIt(t *testing.T) {
	t.Parallel()
	c := own(t)
	admin := client(t, c.Admin())
	node(t, admin, "before")
	backup := filepath.Join(t.TempDir(), "backup")
	must(t, c.Save(t.Context(), backup))
	node(t, admin, "after")

	must(t, c.Stop())
	must(t, c.StartEtcd(t.Context()))
	must(t, c.StartServer(t.Context()))
	for _, name := range []string{"before", "after"} {
		_, err := admin.CoreV1().Nodes().Get(t.Context(), name, meta.GetOptions{})
		must(t, err)
	}
	must(t, c.Restore(t.Context(), backup))
	_, err := admin.CoreV1().Nodes().Get(t.Context(), "before", meta.GetOptions{})
	must(t, err)
	if _, err := admin.CoreV1().Nodes().Get(t.Context(), "after", meta.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node that the backup does not know: %v", err)
	}
}
