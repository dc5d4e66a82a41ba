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
	config.UserAgent = "rocectl/" + buildversion.BuildVersion
	config.QPS = -1 // the caller waits between requests
	api, err := kube.Open(config, time.Now)
	if err != nil {
		return nil, nil, cnierr.New(cnierr.BadConfig, connecting, config.Host, "compare the certificates that the kubeconfig names", "%w", err)
	}
	return config, api, nil
}
