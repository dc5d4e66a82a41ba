// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package counts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// There are more pods than rows, on two devices. Those with the fewest queue pairs are summed.
func TestManyPodsHaveBoundedRowsAndTheSameSum(t *testing.T) {
	t.Parallel()
	var in []Row
	for i := range 3 * MaxRows {
		in = append(in, Row{
			Device: fmt.Sprintf("rxe%d", i%2), User: User{Kind: "pod", Namespace: "ml", Pod: fmt.Sprint(i)},
			QueuePairs: map[string]int{"RC": i, "UD": 1}, Contexts: 1, Regions: 2, RegionBytes: 3, Connections: 4, HeldGIDs: 1,
		})
	}
	for range 2 { // two modules, which are one user here
		in = append(in, Row{Device: "rxe0", User: User{Kind: "kernel"}, QueuePairs: map[string]int{"RC": 1}})
	}
	in = append(in, Row{Device: "rxe0", User: User{Kind: "pod", Namespace: "ml", Pod: "0"}, QueuePairs: map[string]int{"RC": 9 * MaxRows}, HeldGIDs: 5})
	out := Bounded(in) // pod 0 has the most, in two rows
	if len(out) != MaxRows+2+1 {
		t.Fatalf("%d rows, want those of %d pods, two of others, and the kernel's", len(out), MaxRows)
	}
	total := func(rows []Row) (sum Row) {
		sum.QueuePairs = map[string]int{}
		for _, r := range rows {
			for name, n := range r.QueuePairs {
				sum.QueuePairs[name] += n
			}
			sum.Contexts, sum.Regions, sum.Connections, sum.RegionBytes = sum.Contexts+r.Contexts, sum.Regions+r.Regions, sum.Connections+r.Connections, sum.RegionBytes+r.RegionBytes
			sum.HeldGIDs += r.HeldGIDs
		}
		return sum
	}
	if diff := cmp.Diff(total(in), total(out)); diff != "" {
		t.Errorf("the sums differ (-in +out)\n%s", diff)
	}
	if out[0].Pod != "0" || out[0].Contexts != 1 || out[0].HeldGIDs != 6 || out[1].Pod != fmt.Sprint(3*MaxRows-1) {
		t.Errorf("the first row is %+v, want the pod with the most queue pairs", out[0])
	}
	seen := map[string]bool{}
	for _, r := range out {
		key := fmt.Sprint(r.Device, r.User)
		if seen[key] {
			t.Errorf("%s has two rows", key)
		}
		seen[key] = true
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	f := File{t.TempDir()}
	if _, err := f.Read(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if err := (File{f.Dir + "/none"}).Write(Counts{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
	if err := os.WriteFile(f.Dir+"/counts", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(); err == nil {
		t.Error("a file that is no JSON is read")
	}
	want := Counts{Until: time.Now().UTC().Round(0), Rows: []Row{{Device: "rxe0", User: User{Kind: "host"}, QueuePairs: map[string]int{"RC": 1}}}}
	if err := f.Write(want); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(f.Dir + "/counts"); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	got, err := f.Read()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read (-want +got)\n%s", diff)
	}
}
