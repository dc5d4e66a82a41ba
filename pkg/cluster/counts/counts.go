// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package counts keeps what each pod of a node has on the RDMA devices, in a file of the state
// folder.
//
// rocectl heal, which may look at the processes of pods, writes it, and the agent, which may
// not, makes metrics of it. So what pods can make it say is bounded here. Everything is in
// this file.
package counts

import (
	"cmp"
	"encoding/json"
	"path/filepath"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/trusted"
)

// MaxRows is how many rows have names of pods. A row is a pod on a device, so this is enough
// for 32 pods on eight NICs.
const MaxRows = 256

// Counts is what all users of a node had at a time.
type Counts struct {
	// Until is when it is too old to be shown.
	Until time.Time `json:"until"`
	Rows  []Row     `json:"rows"`
}

// User is who has a Row. Kind is pod, gone, host, kernel, unknown, or Others.
type User struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
}

// Others is the kind of the pods for which there was no row.
const Others = "others"

// Row is what a user has on a device.
type Row struct {
	Device string `json:"device"`
	User
	QueuePairs  map[string]int `json:"queuePairs"` // by type
	Contexts    int            `json:"contexts"`
	Regions     int            `json:"regions"`
	RegionBytes uint64         `json:"regionBytes"`
	Connections int            `json:"connections"`
	HeldGIDs    int            `json:"heldGIDs,omitempty"`
}

func (r Row) total() (n int) {
	for _, of := range r.QueuePairs {
		n += of
	}
	return n
}

// Bounded returns the rows with one for each user and device. If there are more than MaxRows
// rows of pods, those with the fewest queue pairs become one row of Others for each device.
func Bounded(rows []Row) []Row {
	rows = merge(rows)
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(b.total(), a.total()) })
	pods := 0
	for i := range rows {
		if rows[i].Pod == "" {
			continue
		}
		if pods++; pods > MaxRows {
			rows[i].User = User{Kind: Others}
		}
	}
	return merge(rows)
}

// merge returns the sum of the rows of each user and device.
func merge(rows []Row) []Row {
	type key struct {
		string
		User
	}
	at := map[key]int{}
	var out []Row
	for _, r := range rows {
		i, have := at[key{r.Device, r.User}]
		if !have {
			i = len(out)
			at[key{r.Device, r.User}] = i
			out = append(out, Row{Device: r.Device, User: r.User, QueuePairs: map[string]int{}})
		}
		sum := &out[i]
		for name, n := range r.QueuePairs {
			sum.QueuePairs[name] += n
		}
		sum.Contexts, sum.Regions, sum.Connections = sum.Contexts+r.Contexts, sum.Regions+r.Regions, sum.Connections+r.Connections
		sum.RegionBytes, sum.HeldGIDs = sum.RegionBytes+r.RegionBytes, sum.HeldGIDs+r.HeldGIDs
	}
	return out
}

// File is the file in a state folder.
type File struct{ Dir string }

func (f File) path() string { return filepath.Join(f.Dir, "counts") }

// Write replaces the counts. A reader finds the old ones or the new ones.
func (f File) Write(c Counts) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return trusted.Replace(f.path(), b, 0o600)
}

// Read returns the counts. Errors: those of trusted.ReadInside, such as fs.ErrNotExist, and of
// JSON.
func (f File) Read() (c Counts, err error) {
	b, err := trusted.ReadInside(f.path())
	if err != nil {
		return Counts{}, err
	}
	return c, json.Unmarshal(b, &c)
}
