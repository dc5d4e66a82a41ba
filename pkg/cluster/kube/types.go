// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kube

import (
	"encoding/json"
	"slices"

	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
)

// Version is the API group of our objects and its version.
func Version() schema.GroupVersion {
	return schema.GroupVersion{Group: "roce-cni.io", Version: "v1alpha1"}
}

// The labels of a RailBlock, which lists use as filters. They repeat its spec and
// never change.
const (
	PoolLabel      = "roce-cni.io/pool"
	RackLabel      = "roce-cni.io/rack"
	MachineIDLabel = "roce-cni.io/machine-id"
)

// RailPool is block.Pool as the API server stores it.
type RailPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec   block.PoolSpec `json:"spec"`
	Status PoolStatus     `json:"status,omitzero"`
}

// RailPoolList is a list of them.
type RailPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []RailPool `json:"items"`
}

// DeepCopyObject is runtime.Object's, which client-go wants of what a watch decodes.
func (p *RailPool) DeepCopyObject() runtime.Object { return copied(p) }

// DeepCopyObject is runtime.Object's.
func (l *RailPoolList) DeepCopyObject() runtime.Object { return copied(l) }

// copied goes by way of JSON: a watch copies nothing, so this need not be fast.
func copied[T any](o *T) *T {
	out := new(T)
	b, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil {
		panic("kube: copy of an object that came as JSON: " + err.Error())
	}
	return out
}

// PoolStatus is the reconciler's report about a pool: the sum over the racks that it knows.
type PoolStatus struct {
	Blocks      int `json:"blocks"`  // how many blocks there are to claim
	Claimed     int `json:"claimed"` // how many of them have an owner
	block.Usage     // of all blocks, claimed or not, by the reports of the owners
	Reserved    int `json:"reserved"` // addresses that reservations keep from pods
	// Conditions has the ones named below.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// InUse is the finalizer of a RailPool: see block.Pool.
const InUse = "roce-cni.io/in-use"

// ValidCondition is True for a pool from which blocks may be claimed. Otherwise its
// message says why not, as block.Pool.Validate and block.Space.Apart do.
const ValidCondition = "Valid"

// AttentionCondition is True if something of a pool looks wrong that stops no claim, such
// as a block that does not fit the pool. Its message says what.
const AttentionCondition = "NeedsAttention"

// BlockStatus is the owner's report about a block.
type BlockStatus struct {
	// Asserted is the time of the owner's last write of the block, by the owner's
	// clock. It is for people. It also makes every write a change: without a change,
	// the API server keeps the old resourceVersion.
	Asserted metav1.MicroTime `json:"asserted,omitzero"`
	block.Usage
}

// NodeStatus is the report of a node, and when it was written, as in BlockStatus.
type NodeStatus struct {
	Asserted metav1.MicroTime `json:"asserted,omitzero"`
	// Interfaces has the NICs of all rails, and State each state that one of them has: a
	// column of kubectl get shows one value of a list.
	Interfaces string `json:"interfaces"`
	State      string `json:"state"`
	fleet.Report
}

// Pool returns what package block knows of a RailPool.
func (p *RailPool) Pool() block.Pool {
	return block.Pool{
		Name: p.Name, UID: string(p.UID), Created: p.CreationTimestamp.Time,
		InUse: slices.Contains(p.Finalizers, InUse), Deleted: p.DeletionTimestamp != nil, Spec: p.Spec,
	}
}

// newScheme knows our types and ServiceCIDRs, so that client-go can decode what a watch
// sends.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypes(Version(), &RailPool{}, &RailPoolList{})
	metav1.AddToGroupVersion(s, Version())
	s.AddKnownTypes(networking.SchemeGroupVersion, &networking.ServiceCIDR{}, &networking.ServiceCIDRList{})
	metav1.AddToGroupVersion(s, networking.SchemeGroupVersion)
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"}) // Status is always of that one
	return s
}
