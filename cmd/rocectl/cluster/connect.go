// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"time"

	"github.com/containernetworking/plugins/pkg/utils/buildversion"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/roce-cni/roce-cni/pkg/block/kube"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

const connecting = "connect to the API server"

// connect reads how to reach the API server: from a kubeconfig, or, if that is "",
// from what Kubernetes puts into a pod. It sends nothing.
func connect(kubeconfig string) (*rest.Config, *kube.API, error) {
	var config *rest.Config
	var err error
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, nil, cnierr.New(cnierr.BadConfig, connecting, kubeconfig,
			"outside of a pod name a file with --kubeconfig; in a pod mount the ServiceAccount's token", "%w", err)
	}
	return open(config)
}

// connectAsUser reads how to reach the API server as kubectl does: from the flags, from
// $KUBECONFIG, from ~/.kube/config, or in a pod from what Kubernetes puts there.
func connectAsUser(kubeconfig, kubeContext string) (*kube.API, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: kubeContext}).ClientConfig()
	if err != nil {
		return nil, cnierr.New(cnierr.BadConfig, connecting, kubeconfig, "it reads the same files as kubectl: compare with kubectl cluster-info", "%w", err)
	}
	_, api, err := open(config)
	return api, err
}

func open(config *rest.Config) (*rest.Config, *kube.API, error) {
	config.UserAgent = "rocectl/" + buildversion.BuildVersion
	config.QPS = -1 // the caller waits between requests
	api, err := kube.Open(config, time.Now)
	if err != nil {
		return nil, nil, cnierr.New(cnierr.BadConfig, connecting, config.Host, "compare the certificates that the kubeconfig names", "%w", err)
	}
	return config, api, nil
}
