// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
)

// movedIndexes are the findings about GID indexes that changed, by RDMA port. One event
// of a NIC changes those of all its pods, so they are printed together.
type movedIndexes map[string][]movedIndex

type movedIndex struct {
	label   string // of the attachment
	finding error
	what    *rdma.MovedError
}

// take keeps a finding of an attachment if it is about an index that changed.
func (m movedIndexes) take(label string, finding error) bool {
	var what *rdma.MovedError
	if !errors.As(finding, &what) {
		return false
	}
	m[what.Port] = append(m[what.Port], movedIndex{label, finding, what})
	return true
}

// print writes one line for each port, or one for each finding if they are all of one
// attachment.
func (m movedIndexes) print(w io.Writer) {
	for _, port := range slices.Sorted(maps.Keys(m)) {
		var of, texts []string
		for _, i := range m[port] {
			if !slices.Contains(of, i.label) {
				of = append(of, i.label)
			}
			texts = append(texts, fmt.Sprintf("%s: %s from %d to %d", i.label, i.what.Addr, i.what.Was, i.what.Is))
		}
		if len(of) == 1 {
			for _, i := range m[port] {
				fmt.Fprintf(w, "%s: %s\n", i.label, findingLine(i.finding))
			}
			continue
		}
		fmt.Fprintf(w, "%s: GID indexes of %d attachments changed, as after a failover of a bond or a reset of the NIC: %s; %s\n",
			port, len(of), strings.Join(texts, ", "), rdma.NewIndex)
	}
}
