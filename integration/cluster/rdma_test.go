// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"path/filepath"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTheServerAcceptsTheExamplesForRDMA asks the API server about the device plugin
// and the test pods. It has no LeaderWorkerSets: integration/cluster/deploy reads
// vllm.yaml strictly instead.
func TestTheServerAcceptsTheExamplesForRDMA(t *testing.T) {
	t.Parallel()
	c := shared(t)
	folder := filepath.Join(deployment, "rdma")
	for _, path := range append(kustomized(t, filepath.Join(folder, "device-plugin")),
		filepath.Join(folder, "perftest.yaml"), filepath.Join(folder, "nccl.yaml")) {
		applyFile(t, c, path, meta.DryRunAll)
	}
}
