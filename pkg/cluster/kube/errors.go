// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// Classify says what an answer means to package block. It distinguishes three kinds:
// a request that was refused and did nothing, a request that may have been done, and
// an error that waiting does not correct.
func Classify(what string, err error) error {
	var bad *tls.CertificateVerificationError
	if errors.As(err, &bad) {
		return cnierr.New(cnierr.BadConfig, what, "", "compare the certificate authority of the kubeconfig or the ServiceAccount with that of the API server", "%w", err)
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return fmt.Errorf("%w: %s: %w", block.ErrUnknown, what, err)
	}
	code, after := int(status.Status().Code), time.Duration(0)
	if seconds, asked := apierrors.SuggestsClientDelay(err); asked {
		after = time.Duration(seconds) * time.Second
	}
	switch {
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable && after > 0:
		return &block.BusyError{After: after}
	case strings.Contains(status.Status().Message, "failed to configure policy"),
		strings.Contains(status.Status().Message, "not yet synced to use for admission"):
		// The admission policies look up RailPools. A server that has just started, or
		// just got the policies, does not know that kind or has not listed its objects
		// yet, and refuses everything with code 422.
		return fmt.Errorf("%w: %s: %w", block.ErrUnknown, what, err)
	case code >= http.StatusInternalServerError:
		// 500 is also the timeout of etcd, and 504 that of the API server. 503
		// without details comes from a proxy that may have passed the request on.
		return fmt.Errorf("%w: %s: %w", block.ErrUnknown, what, err)
	case code == http.StatusGone: // the rest of a list that took too long
		return &block.BusyError{}
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%w: %s", block.ErrExists, what)
	case code == http.StatusConflict:
		return fmt.Errorf("%w: %s: %w", block.ErrConflict, what, err)
	case code == http.StatusNotFound && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return fmt.Errorf("%w: %s", block.ErrNotFound, what)
	}
	return refused(code, what, err)
}

// AwaitKinds is the command that waits until the API server serves our kinds. It takes a
// moment after their definitions were applied.
const AwaitKinds = "kubectl wait --for=condition=Established crd/railnodes.roce-cni.io crd/railpools.roce-cni.io crd/railblocks.roce-cni.io crd/railleases.roce-cni.io"

// refused explains an error that waiting does not correct.
func refused(code int, what string, err error) error {
	explain := func(c cnierr.Code, hint string) error { return cnierr.New(c, what, "", hint, "%w", err) }
	switch code {
	case http.StatusNotFound: // of the resource, not of an object
		return explain(cnierr.NotAvailable, "install the CustomResourceDefinitions: kubectl apply -k conf-examples/deploy/crds; if you have just done it: "+AwaitKinds)
	case http.StatusUnauthorized:
		return explain(cnierr.NotAvailable, "check that the token or the certificate is still valid: kubectl auth whoami")
	case http.StatusForbidden:
		return explain(cnierr.NotAvailable, "give the ServiceAccount the rights that conf-examples/deploy/rbac.yaml lists; an agent needs the token of a pod on its own node, and may write only the objects of its node")
	case http.StatusUnprocessableEntity:
		return explain(cnierr.BadConfig, "the CustomResourceDefinitions may be older or newer than this program: kubectl apply -k conf-examples/deploy/crds")
	}
	return explain(cnierr.NotAvailable, "")
}
