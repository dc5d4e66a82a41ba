// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ground

import (
	"context"
	"crypto/sha256"
	"fmt"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// MachineID returns the machine-id of the node of a name, which no other has.
func MachineID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%x", sum[:16])
}

// MakeNode makes a Node object, as a kubelet would on a machine with this
// machine-id.
func MakeNode(ctx context.Context, client kubernetes.Interface, name, machineID string, labels map[string]string) (*core.Node, error) {
	node, err := client.CoreV1().Nodes().Create(ctx, &core.Node{ObjectMeta: meta.ObjectMeta{Name: name, Labels: labels}}, meta.CreateOptions{})
	if err != nil {
		return nil, err
	}
	node.Status.NodeInfo.MachineID = machineID
	return client.CoreV1().Nodes().UpdateStatus(ctx, node, meta.UpdateOptions{})
}

// MakePod makes a pod that is bound to a node and never started.
func MakePod(ctx context.Context, client kubernetes.Interface, pod *core.Pod) (*core.Pod, error) {
	pod.Spec.Containers = []core.Container{{Name: "main", Image: "none"}}
	return client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, meta.CreateOptions{})
}

// AgentToken returns a token such as a pod of a DaemonSet on a node has: of a
// service account, bound to a pod that is made for it, with the node's name in
// it. The pod's name is the account's and the node's.
func AgentToken(ctx context.Context, client kubernetes.Interface, namespace, account, node string) (string, error) {
	pod, err := MakePod(ctx, client, &core.Pod{
		ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: account + "-" + node},
		Spec:       core.PodSpec{ServiceAccountName: account, NodeName: node},
	})
	if err != nil {
		return "", err
	}
	request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{
		BoundObjectRef: &authentication.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	got, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, meta.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of %s on %s: %w", account, node, err)
	}
	return got.Status.Token, nil
}

// WriteKubeconfig writes what Multus, kubelet and kubectl read: how to reach the
// API server with a token.
func (c *Cluster) WriteKubeconfig(path, token string) error {
	as := c.As(token)
	return clientcmd.WriteToFile(api.Config{
		Clusters:       map[string]*api.Cluster{"ground": {Server: as.Host, CertificateAuthority: as.CAFile}},
		AuthInfos:      map[string]*api.AuthInfo{"user": {Token: token}},
		Contexts:       map[string]*api.Context{"ground": {Cluster: "ground", AuthInfo: "user"}},
		CurrentContext: "ground",
	}, path)
}
