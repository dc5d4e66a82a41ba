// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package others

import (
	"os"
	"testing"

	"sigs.k8s.io/yaml"
	"volcano.sh/apis/pkg/apis/batch/v1alpha1"
)

// TestTheVolcanoJobIsOne reads the example with Volcano's own type, and no key left over.
// The definition itself, in YAML, is in no Go module that the proxy has.
func TestTheVolcanoJobIsOne(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(examples + "/rdma/volcano.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var job v1alpha1.Job
	if err := yaml.UnmarshalStrict(text, &job); err != nil {
		t.Fatal(err)
	}
	if job.APIVersion != v1alpha1.SchemeGroupVersion.String() || job.Kind != "Job" {
		t.Errorf("%s %s, want a Job of %s", job.APIVersion, job.Kind, v1alpha1.SchemeGroupVersion)
	}
	pods := int32(0)
	for _, task := range job.Spec.Tasks {
		pods += task.Replicas
	}
	if job.Spec.MinAvailable != pods {
		t.Errorf("the job starts with %d pods, want all %d", job.Spec.MinAvailable, pods)
	}
}
