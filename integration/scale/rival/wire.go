// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rival

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strconv"
)

// Definitions defines the objects, and who may write them: documents of YAML.
//
//go:embed others.yaml
var Definitions string

// Wire is such an object as the API server has it.
type Wire struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion,omitempty"`
	} `json:"metadata"`
	Spec spec `json:"spec"`
}

// spec has what is in a Lease, in whereabouts' IPPool, and in its
// OverlappingRangeIPReservation.
type spec struct {
	HolderIdentity       *string               `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds int                   `json:"leaseDurationSeconds,omitempty"`
	Allocations          map[string]allocation `json:"allocations,omitempty"`
	PodRef               string                `json:"podref,omitempty"`
}

// allocation is an entry of a pool: 130 to 140 bytes, as whereabouts' are.
type allocation struct {
	ID     string `json:"id"` // of the container
	PodRef string `json:"podref"`
	IfName string `json:"ifname"`
}

// Encode makes the whole object, for it is sent whole.
func Encode(o Object) ([]byte, error) {
	w := Wire{APIVersion: "scale.roce-cni.io/v1"}
	w.Metadata.Name, w.Metadata.ResourceVersion = o.Name, o.Version
	switch o.Kind {
	case Leases:
		w.APIVersion, w.Kind = "coordination.k8s.io/v1", "Lease"
		w.Spec.HolderIdentity, w.Spec.LeaseDurationSeconds = &o.Holder, 2
	case Pools:
		w.Kind, w.Spec.Allocations = "Pool", make(map[string]allocation, o.Taken)
		for i := range o.Taken {
			w.Spec.Allocations[strconv.Itoa(i)] = allocation{fmt.Sprintf("%064x", i), fmt.Sprintf("default/pod-%d", i), "net1"}
		}
	case Reservations:
		w.Kind, w.Spec.PodRef = "Reservation", "default/pod-"+o.Name
	}
	return json.Marshal(w)
}

// Object reads it.
func (w Wire) Object(k Kind) Object {
	o := Object{Kind: k, Name: w.Metadata.Name, Version: w.Metadata.ResourceVersion, Taken: len(w.Spec.Allocations)}
	if w.Spec.HolderIdentity != nil {
		o.Holder = *w.Spec.HolderIdentity
	}
	return o
}
