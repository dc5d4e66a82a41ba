// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package deploy

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

const (
	rdma         = dir + "/rdma"
	devicePlugin = rdma + "/device-plugin"
)

// leaderWorkerSet is what the example uses of a LeaderWorkerSet: the keys of
// api/leaderworkerset/v1/leaderworkerset_types.go in kubernetes-sigs/lws v0.7.0.
type leaderWorkerSet struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		Replicas             *int32 `json:"replicas,omitempty"`
		LeaderWorkerTemplate struct {
			LeaderTemplate *core.PodTemplateSpec `json:"leaderTemplate,omitempty"`
			WorkerTemplate core.PodTemplateSpec  `json:"workerTemplate"`
			Size           *int32                `json:"size,omitempty"`
			RestartPolicy  string                `json:"restartPolicy,omitempty"`
		} `json:"leaderWorkerTemplate"`
		StartupPolicy string `json:"startupPolicy,omitempty"`
	} `json:"spec"`
}

// kubeflowJob is what the examples use of a PyTorchJob and of an MPIJob, rayCluster of a
// RayCluster, and volcanoJob of Volcano's Job. Their own definitions are asked too:
// TestTheServerAcceptsTheChartAndAllExamples in integration/cluster, and
// TestTheVolcanoJobIsOne in integration/others.
type (
	kubeflowJob struct {
		meta.TypeMeta   `json:",inline"`
		meta.ObjectMeta `json:"metadata"`
		Spec            struct {
			NprocPerNode           string                     `json:"nprocPerNode,omitempty"`
			SlotsPerWorker         int32                      `json:"slotsPerWorker,omitempty"`
			LauncherCreationPolicy string                     `json:"launcherCreationPolicy,omitempty"`
			PyTorchReplicaSpecs    map[string]kubeflowReplica `json:"pytorchReplicaSpecs,omitempty"`
			MPIReplicaSpecs        map[string]kubeflowReplica `json:"mpiReplicaSpecs,omitempty"`
			RunPolicy              struct {
				CleanPodPolicy string `json:"cleanPodPolicy,omitempty"`
			} `json:"runPolicy,omitzero"`
		} `json:"spec"`
	}

	kubeflowReplica struct {
		Replicas      *int32               `json:"replicas,omitempty"`
		RestartPolicy string               `json:"restartPolicy,omitempty"`
		Template      core.PodTemplateSpec `json:"template"`
	}

	rayGroup struct {
		GroupName      string               `json:"groupName,omitempty"`
		Replicas       *int32               `json:"replicas,omitempty"`
		MinReplicas    *int32               `json:"minReplicas,omitempty"`
		MaxReplicas    *int32               `json:"maxReplicas,omitempty"`
		RayStartParams map[string]string    `json:"rayStartParams"`
		Template       core.PodTemplateSpec `json:"template"`
	}

	rayCluster struct {
		meta.TypeMeta   `json:",inline"`
		meta.ObjectMeta `json:"metadata"`
		Spec            struct {
			HeadGroupSpec    rayGroup   `json:"headGroupSpec"`
			WorkerGroupSpecs []rayGroup `json:"workerGroupSpecs,omitempty"`
		} `json:"spec"`
	}

	volcanoJob struct {
		meta.TypeMeta   `json:",inline"`
		meta.ObjectMeta `json:"metadata"`
		Spec            struct {
			SchedulerName string              `json:"schedulerName,omitempty"`
			MinAvailable  int32               `json:"minAvailable,omitempty"`
			Plugins       map[string][]string `json:"plugins,omitempty"`
			Tasks         []struct {
				Name     string               `json:"name,omitempty"`
				Replicas int32                `json:"replicas,omitempty"`
				Template core.PodTemplateSpec `json:"template"`
			} `json:"tasks,omitempty"`
		} `json:"spec"`
	}
)

// pluginConfig is config.json of k8s-rdma-shared-dev-plugin v1.5.3 (UserConfigList in
// pkg/types/types.go), without the deprecated key devices.
type pluginConfig struct {
	PeriodicUpdateInterval *int `json:"periodicUpdateInterval"`
	ConfigList             []struct {
		ResourceName   string    `json:"resourceName"`
		ResourcePrefix string    `json:"resourcePrefix"`
		RdmaHcaMax     int       `json:"rdmaHcaMax"`
		Selectors      selectors `json:"selectors"`
	} `json:"configList"`
}

// selectors chooses NICs. The plugin and rails.match have the same keys.
type selectors struct {
	Vendors   []string `json:"vendors,omitempty"`
	DeviceIDs []string `json:"deviceIDs,omitempty"`
	Drivers   []string `json:"drivers,omitempty"`
	IfNames   []string `json:"ifNames,omitempty"`
	LinkTypes []string `json:"linkTypes,omitempty"`
}

func strictly(t *testing.T, what, text string, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	must(t, what, d.Decode(into))
}

// TestTheDevicePluginOffersTheNICsOfTheNetwork compares the selectors of the plugin
// with those of the network, and the name of the resource with the annotation.
func TestTheDevicePluginOffersTheNICsOfTheNetwork(t *testing.T) {
	t.Parallel()
	var plugin pluginConfig
	strictly(t, "config.json", of[core.ConfigMap](objects(t, devicePlugin+"/config.yaml"))[0].Data["config.json"], &plugin)
	if len(plugin.ConfigList) != 1 {
		t.Fatalf("%d resources, want one for all rails", len(plugin.ConfigList))
	}
	resource := plugin.ConfigList[0]
	net := of[network](objects(t, samples+"/network.yaml"))[0]
	if got, want := net.Annotations["k8s.v1.cni.cncf.io/resourceName"], resource.ResourcePrefix+"/"+resource.ResourceName; got != want {
		t.Errorf("the network names resource %q, the plugin offers %q", got, want)
	}
	var config struct {
		Rails struct {
			Match selectors `json:"match"`
		} `json:"rails"`
	}
	must(t, "spec.config", json.Unmarshal([]byte(net.Spec.Config), &config))
	if diff := cmp.Diff(config.Rails.Match, resource.Selectors); diff != "" {
		t.Errorf("selectors (-network +plugin)\n%s", diff)
	}
}

func TestTheDevicePluginHasOneVersion(t *testing.T) {
	t.Parallel()
	var k kustomization
	strictYAML(t, devicePlugin+"/kustomization.yaml", &k)
	plugin := of[apps.DaemonSet](objects(t, devicePlugin+"/daemonset.yaml"))[0]
	if image := plugin.Spec.Template.Spec.Containers[0].Image; len(k.Images) != 1 || image != k.Images[0].Name || !strings.HasPrefix(k.Images[0].NewTag, "v") {
		t.Errorf("image %q, and the kustomization has %v", image, k.Images)
	}
}

// userPods returns the templates of the pods that use RDMA, by name.
func userPods(t *testing.T) map[string]core.PodTemplateSpec {
	t.Helper()
	out := map[string]core.PodTemplateSpec{}
	all := objects(t, files(t, rdma)...)
	for _, j := range of[batch.Job](all) {
		out[j.Name] = j.Spec.Template
	}
	for _, s := range of[leaderWorkerSet](all) {
		out[s.Name+" leader"] = *s.Spec.LeaderWorkerTemplate.LeaderTemplate
		out[s.Name+" worker"] = s.Spec.LeaderWorkerTemplate.WorkerTemplate
	}
	for _, j := range of[kubeflowJob](all) {
		for name, replica := range j.Spec.PyTorchReplicaSpecs {
			out[j.Kind+" "+name] = replica.Template
		}
		if worker, ok := j.Spec.MPIReplicaSpecs["Worker"]; ok {
			// Its program is the last word of what the launcher starts.
			mpirun := j.Spec.MPIReplicaSpecs["Launcher"].Template.Spec.Containers[0].Args
			worker.Template.Spec.Containers[0].Command = []string{"bash", "-c"}
			worker.Template.Spec.Containers[0].Args = mpirun[len(mpirun)-1:]
			out[j.Kind] = worker.Template
		}
	}
	for _, c := range of[rayCluster](all) {
		out[c.Kind] = c.Spec.WorkerGroupSpecs[0].Template
	}
	for _, j := range of[volcanoJob](all) {
		out["Volcano"] = j.Spec.Tasks[0].Template
	}
	return out
}

// TestPodsThatUseRDMAHaveWhatTheyNeed looks for the network, the resource, IPC_LOCK, and either
// the image for tests, or /dev/shm and roce-env from our image.
func TestPodsThatUseRDMAHaveWhatTheyNeed(t *testing.T) {
	t.Parallel()
	net := of[network](objects(t, samples+"/network.yaml"))[0]
	resource := core.ResourceName(net.Annotations["k8s.v1.cni.cncf.io/resourceName"])
	var main kustomization
	strictYAML(t, dir+"/kustomization.yaml", &main)
	image := main.Images[0].NewName + ":" + main.Images[0].NewTag
	pods := userPods(t)
	if len(pods) != 11 {
		t.Errorf("%d pods, want 11", len(pods))
	}
	for name, pod := range pods {
		program := pod.Spec.Containers[0]
		needs := map[string]bool{
			"the network":     pod.Annotations["k8s.v1.cni.cncf.io/networks"] == net.Name,
			"the resource":    program.Resources.Limits.Name(resource, "") != nil && program.Resources.Limits.Name(resource, "").Value() == 1,
			"no memory limit": program.Resources.Limits.Memory().IsZero(),
			"IPC_LOCK":        program.SecurityContext != nil && slices.Contains(program.SecurityContext.Capabilities.Add, core.Capability("IPC_LOCK")),
		}
		script := strings.Join(slices.Concat(program.Command, program.Args), "\n")
		if strings.HasPrefix(name, "perftest") {
			needs["perftest-rails of the image for tests"] = program.Image == image+"-tools" && strings.Contains(script, "perftest-rails")
		} else {
			needs["/dev/shm"] = slices.ContainsFunc(program.VolumeMounts, func(m core.VolumeMount) bool { return m.MountPath == "/dev/shm" })
			install := pod.Spec.InitContainers[0]
			needs["our image"] = install.Image == image
			needs["roce-env"] = slices.Equal(install.Args, []string{"install", "--from", "/pod", "--to", "/roce"})
			needs["a check of errors"] = strings.Contains(script, `eval "$(/roce/roce-env)" || exit`)
		}
		for what, ok := range needs {
			if !ok {
				t.Errorf("%s lacks %s", name, what)
			}
		}
	}
}

// TestRailsAreNamedFromNet1 follows the names of interfaces to what other plugins have.
func TestRailsAreNamedFromNet1(t *testing.T) {
	t.Parallel()
	net := of[network](objects(t, samples+"/network.yaml"))[0]
	req, err := conf.Parse(conf.Input{ContainerID: "c1", Netns: "/run/netns/pod", IfName: "net1", Stdin: []byte(net.Spec.Config)})
	must(t, net.Name, err)
	var got []string
	for _, r := range req.Rails {
		got = append(got, string(r.IfName))
	}
	if diff := cmp.Diff([]string{"net1", "net2", "net3", "net4", "net5", "net6", "net7", "net8"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
