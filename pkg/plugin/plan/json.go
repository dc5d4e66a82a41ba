// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"encoding/json"
	"fmt"
)

// envelope is one operation in JSON: its kind, its place, and the fields of the
// kind.
type envelope struct {
	Kind   string          `json:"op"`
	Place  string          `json:"place"`
	Shared bool            `json:"shared,omitempty"`
	Args   json.RawMessage `json:"args"`
}

// The places in JSON.
const (
	inPod  = "pod"
	onHost = "host"
)

// MarshalJSON writes [{"op": kind, "place": place, "args": {...}}, ...].
func (o Ops) MarshalJSON() ([]byte, error) {
	out := make([]envelope, 0, len(o))
	for _, op := range o {
		args, err := json.Marshal(op.Kind)
		if err != nil {
			return nil, err
		}
		place := inPod
		if op.Place == Host {
			place = onHost
		}
		out = append(out, envelope{op.row().name, place, op.Shared, args})
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote. An unknown kind or place is an error: a
// record must not be undone in part.
func (o *Ops) UnmarshalJSON(b []byte) error {
	var in []envelope
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	ops := make(Ops, 0, len(in))
	for i, e := range in {
		op, err := e.decode()
		if err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
		ops = append(ops, op)
	}
	*o = ops
	return nil
}

func (e envelope) decode() (Op, error) {
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
