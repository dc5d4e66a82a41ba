// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package deploy

import (
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/cmd/rocectl/cluster"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
)

// kustomization is what we use of one (kustomize.config.k8s.io/v1beta1).
type kustomization struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Resources  []string `json:"resources"`
	Images     []struct {
		Name    string `json:"name"`
		NewName string `json:"newName"`
		NewTag  string `json:"newTag"`
	} `json:"images"`
}

func TestTheKustomizationsListAllFiles(t *testing.T) {
	t.Parallel()
	for folder, folders := range map[string][]string{dir: {"crds"}, dir + "/crds": nil, uninstall: nil, devicePlugin: nil} {
		var k kustomization
		must(t, folder, yaml.UnmarshalStrict(content(t, folder+"/kustomization.yaml"), &k))
		var want []string
		for _, path := range files(t, folder) {
			want = append(want, filepath.Base(path))
		}
		want = append(want, folders...)
		slices.Sort(want)
		slices.Sort(k.Resources)
		if diff := cmp.Diff(want, k.Resources); diff != "" {
			t.Errorf("%s lists others than there are (-want +got)\n%s", folder, diff)
		}
	}
}

// TestTheImageIsNamedOnce says that who changes the image in a kustomization changes
// it in all pods, and in both.
func TestTheImageIsNamedOnce(t *testing.T) {
	t.Parallel()
	var main, other kustomization
	must(t, dir, yaml.UnmarshalStrict(content(t, dir+"/kustomization.yaml"), &main))
	must(t, uninstall, yaml.UnmarshalStrict(content(t, uninstall+"/kustomization.yaml"), &other))
	if len(main.Images) != 1 || !slices.Equal(main.Images, other.Images) {
		t.Fatalf("images %v and %v, want the same one", main.Images, other.Images)
	}
	for _, c := range containers(t) {
		if c.Image != main.Images[0].Name {
			t.Errorf("container %s has image %q, the kustomizations replace %q", c.Name, c.Image, main.Images[0].Name)
		}
	}
}

// pods returns the templates of our pods: the agent's, the reaper's, and those that
// remove the plugins.
func pods(t *testing.T) (agent, gc, remove core.PodTemplateSpec) {
	t.Helper()
	last := of[apps.DaemonSet](objects(t, files(t, uninstall)...))[0]
	return daemon(t, "agent").Spec.Template, one[apps.Deployment](t).Spec.Template, last.Spec.Template
}

// daemon returns one of our DaemonSets by its component.
func daemon(t *testing.T, component string) *apps.DaemonSet {
	t.Helper()
	found := all[apps.DaemonSet](t)
	i := slices.IndexFunc(found, func(d *apps.DaemonSet) bool { return d.Name == "roce-cni-"+component })
	if i < 0 {
		t.Fatalf("no DaemonSet of %s", component)
	}
	return found[i]
}

// TestTheHealerIsAloneWithItsRights holds that the healer has no port and no token, and what of
// the node it has: docs/adr/0042 says for what.
func TestTheHealerIsAloneWithItsRights(t *testing.T) {
	t.Parallel()
	pod := daemon(t, "heal").Spec.Template.Spec
	c := pod.Containers[0]
	if token := pod.AutomountServiceAccountToken; token == nil || *token || len(pod.Containers) != 1 || len(c.Ports) > 0 || c.Image != "roce-cni" || !slices.Equal(c.Args, []string{"heal"}) {
		t.Errorf("got %+v", pod)
	}
	s := c.SecurityContext
	if s.Privileged != nil || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
		t.Errorf("it may too much: %+v", s)
	}
	if diff := cmp.Diff([]core.Capability{"NET_ADMIN", "NET_BROADCAST", "NET_RAW", "SYS_ADMIN", "SYS_PTRACE"}, s.Capabilities.Add); diff != "" {
		t.Errorf("capabilities (-want +got)\n%s", diff)
	}
	got := map[string]string{}
	for _, v := range pod.Volumes {
		got[v.Name] = v.HostPath.Path
	}
	if diff := cmp.Diff(map[string]string{"settings": "/etc/roce", "state": settings.DefaultStateDir, "netns": "/run/netns"}, got); diff != "" {
		t.Errorf("folders of the node (-want +got)\n%s", diff)
	}
	for _, m := range c.VolumeMounts {
		if m.ReadOnly != (m.Name != "state") {
			t.Errorf("%s: read-only is %t", m.MountPath, m.ReadOnly)
		}
	}
}

// containers returns all containers of our image.
func containers(t *testing.T) []core.Container {
	t.Helper()
	agent, gc, remove := pods(t)
	return slices.Concat(agent.Spec.InitContainers, agent.Spec.Containers, gc.Spec.InitContainers, gc.Spec.Containers, remove.Spec.InitContainers)
}

// TestTheProgramsHaveTheCommandsOfThePods reads the arguments of each container as
// rocectl would.
func TestTheProgramsHaveTheCommandsOfThePods(t *testing.T) {
	t.Parallel()
	for _, c := range containers(t) {
		known := false
		for _, cmd := range append(cluster.NodeCommands(nil, nil), cluster.Commands()...) {
			if cmd.Name() != c.Args[0] {
				continue
			}
			known = true
			if err := cmd.ParseFlags(c.Args[1:]); err != nil || cmd.Flags().NArg() > 0 {
				t.Errorf("container %s: rocectl %v: %v, and arguments %v", c.Name, c.Args, err, cmd.Flags().Args())
			}
		}
		if !known {
			t.Errorf("container %s: rocectl has no command %q for clusters", c.Name, c.Args[0])
		}
	}
}

// TestFoldersInContainersAreThoseThatTheCommandsUse follows each flag that names a
// folder to what is mounted there.
func TestFoldersInContainersAreThoseThatTheCommandsUse(t *testing.T) {
	t.Parallel()
	got := map[string][]string{}
	for _, c := range containers(t) {
		for _, m := range c.VolumeMounts {
			got[c.Name] = append(got[c.Name], m.Name+" at "+m.MountPath)
		}
	}
	flag := func(container, name string) string {
		for _, c := range containers(t) {
			if i := slices.Index(c.Args, name); c.Name == container && i >= 0 {
				return c.Args[i+1]
			}
		}
		return ""
	}
	want := map[string][]string{
		"install":   {"cni-bin at " + flag("install", "--to")},
		"agent":     {"settings at /etc/roce", "state at " + settings.DefaultStateDir, "pools at " + settings.DefaultStateDir + "/pools", "machine-id at " + flag("agent", "--host-root") + "/etc/machine-id"},
		"uninstall": {"cni-bin at " + flag("uninstall", "--to"), "settings at /etc/roce", "state at " + settings.DefaultStateDir},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what is mounted (-want +got)\n%s", diff)
	}
	if from, in := flag("install", "--from"), path.Dir(copied(t, "Dockerfile")["bin/roce"]); from != in {
		t.Errorf("install looks for the plugins in %s, and the image has them in %s", from, in)
	}
}

func TestSelectorsSelectTheirPodsAndNoOthers(t *testing.T) {
	t.Parallel()
	agent, gc, remove := pods(t)
	for _, s := range []struct {
		selector    map[string]string
		own, others core.PodTemplateSpec
	}{
		{daemon(t, "agent").Spec.Selector.MatchLabels, agent, daemon(t, "heal").Spec.Template},
		{daemon(t, "heal").Spec.Selector.MatchLabels, daemon(t, "heal").Spec.Template, agent},
		{daemon(t, "agent").Spec.Selector.MatchLabels, agent, gc},
		{one[apps.Deployment](t).Spec.Selector.MatchLabels, gc, agent},
		{gc.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels, gc, agent},
		{of[apps.DaemonSet](objects(t, files(t, uninstall)...))[0].Spec.Selector.MatchLabels, remove, agent},
	} {
		selects := labels.SelectorFromSet(s.selector)
		if !selects.Matches(labels.Set(s.own.Labels)) || selects.Matches(labels.Set(s.others.Labels)) {
			t.Errorf("%v selects %v: %t, and %v: %t", s.selector, s.own.Labels, selects.Matches(labels.Set(s.own.Labels)), s.others.Labels, selects.Matches(labels.Set(s.others.Labels)))
		}
	}
}

// TestEverythingIsInOurNamespace finds the namespace in all places that name it.
func TestEverythingIsInOurNamespace(t *testing.T) {
	t.Parallel()
	want := one[core.Namespace](t).Name
	got := map[string]string{}
	for _, a := range all[core.ServiceAccount](t) {
		got["account "+a.Name] = a.Namespace
	}
	for _, b := range all[rbac.ClusterRoleBinding](t) {
		got["subject of "+b.Name] = b.Subjects[0].Namespace
	}
	account := one[flowcontrol.FlowSchema](t).Spec.Rules[0].Subjects[0].ServiceAccount
	got["flow of "+account.Name] = account.Namespace
	role, binding := one[rbac.Role](t), one[rbac.RoleBinding](t)
	got["role"], got["role's binding"], got["role's subject"] = role.Namespace, binding.Namespace, binding.Subjects[0].Namespace
	got["heal"] = daemon(t, "heal").Namespace
	got["agent"], got["gc"] = daemon(t, "agent").Namespace, one[apps.Deployment](t).Namespace
	got["uninstall"] = of[apps.DaemonSet](objects(t, files(t, uninstall)...))[0].Namespace
	for what, namespace := range got {
		if namespace != want {
			t.Errorf("%s is in namespace %q, want %q", what, namespace, want)
		}
	}
}

// TestRightsAreThoseOfTheAccountsOfThePods follows each account from its pod to its
// rules.
func TestRightsAreThoseOfTheAccountsOfThePods(t *testing.T) {
	t.Parallel()
	agent, gc, _ := pods(t)
	var accounts []string
	for _, a := range all[core.ServiceAccount](t) {
		accounts = append(accounts, a.Name)
	}
	if want := []string{agent.Spec.ServiceAccountName, gc.Spec.ServiceAccountName}; !slices.Equal(accounts, want) {
		t.Errorf("there are accounts %v, the pods have %v", accounts, want)
	}
	var roles []string
	for _, r := range all[rbac.ClusterRole](t) {
		roles = append(roles, r.Name)
	}
	for _, b := range all[rbac.ClusterRoleBinding](t) {
		if len(b.Subjects) != 1 || b.Subjects[0].Kind != rbac.ServiceAccountKind || !slices.Contains(accounts, b.Subjects[0].Name) {
			t.Errorf("%s binds %+v, not one of our accounts", b.Name, b.Subjects)
		}
		if i := slices.Index(roles, b.RoleRef.Name); i < 0 || b.RoleRef.Kind != "ClusterRole" || b.RoleRef.APIGroup != rbac.GroupName {
			t.Errorf("%s binds %+v, which is none of %v", b.Name, b.RoleRef, roles)
		}
	}
	binding := one[rbac.RoleBinding](t)
	if binding.Subjects[0].Name != gc.Spec.ServiceAccountName || binding.RoleRef.Name != one[rbac.Role](t).Name {
		t.Errorf("the role is bound to %s by %+v", binding.Subjects[0].Name, binding.RoleRef)
	}
}

func TestNoRuleHasAWildcard(t *testing.T) {
	t.Parallel()
	rules := one[rbac.Role](t).Rules
	for _, r := range all[rbac.ClusterRole](t) {
		rules = append(rules, r.Rules...)
	}
	for _, r := range rules {
		if slices.Contains(slices.Concat(r.APIGroups, r.Resources, r.Verbs), "*") || len(r.NonResourceURLs) > 0 {
			t.Errorf("%v", r)
		}
	}
}

func TestThePoliciesAreAboutOurAccounts(t *testing.T) {
	t.Parallel()
	agent, gc, _ := pods(t)
	account := map[string]string{
		"roce-cni-own-blocks": agent.Spec.ServiceAccountName, "roce-cni-own-leases": agent.Spec.ServiceAccountName,
		"roce-cni-blocks-fit": agent.Spec.ServiceAccountName, "roce-cni-leases-fit": agent.Spec.ServiceAccountName,
		"roce-cni-own-railnode": agent.Spec.ServiceAccountName, "roce-cni-own-events": agent.Spec.ServiceAccountName, "roce-cni-marks": gc.Spec.ServiceAccountName,
		"roce-cni-rails-of-nodes": gc.Spec.ServiceAccountName,
	}
	var names, bound []string
	for _, p := range all[admission.ValidatingAdmissionPolicy](t) {
		names = append(names, p.Name)
		if on := p.Spec.MatchConditions[0].Expression; account[p.Name] == "" || !strings.Contains(on, ":"+account[p.Name]+"$") {
			t.Errorf("%s is about %s, and the account is %q", p.Name, on, account[p.Name])
		}
		if *p.Spec.FailurePolicy != admission.Fail {
			t.Errorf("%s when it cannot be judged: %s", p.Name, *p.Spec.FailurePolicy)
		}
	}
	for _, b := range all[admission.ValidatingAdmissionPolicyBinding](t) {
		bound = append(bound, b.Spec.PolicyName)
		if !slices.Equal(b.Spec.ValidationActions, []admission.ValidationAction{admission.Deny}) {
			t.Errorf("binding %s: %v", b.Name, b.Spec.ValidationActions)
		}
	}
	if diff := cmp.Diff(names, bound); diff != "" {
		t.Errorf("policies and what is bound (-want +got)\n%s", diff)
	}
}

// TestPodsHaveNoMoreOfTheNodeThanTheyNeed holds what a container must not have, and
// the folders of the node that there are.
func TestPodsHaveNoMoreOfTheNodeThanTheyNeed(t *testing.T) {
	t.Parallel()
	for _, c := range containers(t) {
		s := c.SecurityContext
		if s == nil || s.Privileged != nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
			s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
			!slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
			t.Errorf("container %s may too much: %+v", c.Name, s)
		}
	}
	agent, gc, remove := pods(t)
	got := map[string]string{}
	for _, v := range slices.Concat(agent.Spec.Volumes, gc.Spec.Volumes, remove.Spec.Volumes) {
		got[v.Name] = v.HostPath.Path
	}
	want := map[string]string{"cni-bin": "/opt/cni/bin", "settings": filepath.Dir(conf.SettingsFile), "state": settings.DefaultStateDir, "pools": settings.DefaultStateDir + "/pools", "machine-id": "/etc/machine-id"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("folders of the node (-want +got)\n%s", diff)
	}
	for _, c := range containers(t) {
		for _, m := range c.VolumeMounts {
			if !m.ReadOnly && (m.Name == "machine-id" || m.Name == "settings" || m.Name == "state" && c.Name == "agent") {
				t.Errorf("container %s may write %s of the node", c.Name, m.MountPath)
			}
		}
	}
}
