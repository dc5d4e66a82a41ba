// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// This file has what several commands show of an attachment.

// attachments returns all records that can be read, and the errors of those that
// cannot.
func attachments(s record.Store) ([]record.Record, error) {
	rows := []record.Record{}
	var errs []error
	for r, err := range s.All() {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		rows = append(rows, r)
	}
	return rows, errors.Join(errs...)
}

// ended says whether an earlier boot of the node ended the attachment: the
// store returns its record without operations.
func ended(r record.Record) bool { return len(r.Plan.Ops) == 0 }

func addresses(i plan.Interface) string {
	out := make([]string, 0, len(i.Addresses))
	for _, a := range i.Addresses {
		out = append(out, a.Prefix.String())
	}
	return strings.Join(out, ",")
}

func parent(p plan.Plan, i plan.Interface) string {
	for m := range plan.All[plan.Child](p.Ops) {
		if m.Name == i.Name {
			return string(m.Parent)
		}
	}
	return ""
}

// tables returns the routing tables for packets from the addresses of the interface.
func tables(p plan.Plan, i plan.Interface) string {
	var out []string
	for r := range plan.All[plan.Rule](p.Ops.At(plan.Pod)) {
		if r.Table == 0 {
			continue
		}
		mine := func(a plan.LeasedAddress) bool { return a.Prefix.Addr() == r.From.Addr() }
		if t := fmt.Sprint(r.Table); slices.ContainsFunc(i.Addresses, mine) && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return strings.Join(out, ",")
}
