// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"encoding/json"
	"fmt"
)

// envelope is one operation in JSON: its kind, its place, and the fields of the
// kind.
type envelope[Args any] struct {
	Kind   string `json:"op"`
	Place  string `json:"place"`
	Shared bool   `json:"shared,omitempty"`
	Args   Args   `json:"args"`
}

// The places in JSON.
const (
	inPod  = "pod"
	onHost = "host"
)

// MarshalJSON writes [{"op": kind, "place": place, "args": {...}}, ...].
func (o Ops) MarshalJSON() ([]byte, error) {
	out := make([]envelope[Kind], 0, len(o))
	for _, op := range o {
		place := inPod
		if op.Place == Host {
			place = onHost
		}
		out = append(out, envelope[Kind]{op.row().name, place, op.Shared, op.Kind})
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote. An unknown kind or place is an error: a
// record must not be undone in part.
func (o *Ops) UnmarshalJSON(b []byte) error {
	var in []envelope[json.RawMessage]
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	ops := make(Ops, 0, len(in))
	for i, e := range in {
		op, err := decode(e)
		if err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
		ops = append(ops, op)
	}
	*o = ops
	return nil
}

func decode(e envelope[json.RawMessage]) (Op, error) {
	op := Op{Shared: e.Shared}
	switch e.Place {
	case inPod:
	case onHost:
		op.Place = Host
	default:
		return Op{}, fmt.Errorf("unknown place %q", e.Place)
	}
	for _, r := range kinds {
		if r.name == e.Kind {
			var err error
			op.Kind, err = r.decode(e.Args)
			return op, err
		}
	}
	return Op{}, fmt.Errorf("unknown kind %q", e.Kind)
}
