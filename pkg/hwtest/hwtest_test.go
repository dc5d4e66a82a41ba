// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/redact"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// look runs the steps on a node.
func look(t *testing.T, n Node) []Answer {
	t.Helper()
	var out []Answer
	if _, err := n.Look(t.Context(), func(a Answer) { out = append(out, a) }); err != nil {
		t.Fatal(err)
	}
	return out
}

// open opens a recording of testdata, or another folder.
func open(t *testing.T, dir string) (Node, Results) {
	t.Helper()
	n, r, end, err := Open(dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return n, r
}

// TestRecordings runs the code of the plugin on what the kernel of other machines
// told: what it says now must be what it said there.
func TestRecordings(t *testing.T) {
	t.Parallel()
	dirs, err := filepath.Glob("testdata/*")
	if err != nil || len(dirs) == 0 {
		t.Fatal("there are no recordings", err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			n, r := open(t, dir)
			// A version has steps that another one lacks, and texts of its own. Steps that
			// change things are not repeated.
			in := func(as []Answer) map[string]bool {
				out := map[string]bool{}
				for _, a := range as {
					out[a.Check] = true
				}
				return out
			}
			got := look(t, n)
			now, then := in(got), in(r.Answers)
			want := slices.DeleteFunc(r.Answers, func(a Answer) bool { return !now[a.Check] })
			got = slices.DeleteFunc(got, func(a Answer) bool { return !then[a.Check] })
			if diff := cmp.Diff(verdicts(want), verdicts(got)); diff != "" || len(got) == 0 {
				t.Errorf("(-recorded +now)\n%s", diff)
			}
		})
	}
}

// bench is the recording for the tests of lies.
const bench = "testdata/mlx5-like"

// lying returns a node that tells the truth but for files of sysfs.
func lying(t *testing.T, lies map[string]string) Node {
	t.Helper()
	rec, err := recording.Read(os.DirFS(bench))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range lies {
		names := slices.DeleteFunc(slices.Collect(maps.Keys(rec.Sys.Files)), func(f string) bool { return !strings.HasSuffix(f, name) })
		if len(names) != 1 {
			t.Fatalf("%s: %v", name, names)
		}
		if text == "" {
			delete(rec.Sys.Files, names[0])
		} else {
			rec.Sys.Files[names[0]] = text + "\n"
		}
	}
	sys := fstest.MapFS{}
	for name, text := range rec.Sys.Files {
		sys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	for name, target := range rec.Sys.Links {
		sys[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink}
	}
	return Play(&rec, sys, Results{})
}

func TestLiesAreFound(t *testing.T) {
	t.Parallel()
	const dir = "infiniband/mlx5_0/"
	for _, c := range []struct {
		name, step, want string
		lies             map[string]string
	}{
		{"the GUID of another device", "devices", "its GUID is 0252:4f00:ff00:0001 in netlink, and", map[string]string{dir + "node_guid": "0252:4f00:ff00:0009"}},
		{"no GUID", "devices", "irdma0: it has no GUID", nil},
		{"no table", "ports", "mlx5_2/1: it has no GID table", nil},
		{"another state", "ports", `its state is ACTIVE in netlink, and "1: DOWN" in sysfs`, map[string]string{dir + "ports/1/state": "1: DOWN"}},
		{"another link layer", "ports", `its link layer is "InfiniBand"`, map[string]string{dir + "ports/1/link_layer": "InfiniBand"}},
		{"no device file", "devices", "mlx5_0: it has 0 device files", map[string]string{"uverbs0/ibdev": ""}},
		{"two device files", "devices", "mlx5_0: it has 2 device files", map[string]string{"uverbs1/ibdev": "mlx5_0"}},
		{"an address without an entry", "host-gids", "mlx5_0/1: 0 RoCE v2 entries are for 240.0.1.1", map[string]string{dir + "ports/1/gids/3": strings.Repeat("0000:", 7) + "0000"}},
		{"an entry of RoCE v1 at the place of v2", "host-gids", "0 RoCE v2 entries are for 240.0.1.1", map[string]string{dir + "ports/1/gid_attrs/types/3": "IB/RoCE v1"}},
		{"an unknown type", "host-gids", `index 3 has the type "RoCE v3"`, map[string]string{dir + "ports/1/gid_attrs/types/3": "RoCE v3"}},
		{"RoCE v1 somewhere else", "host-gids", "index 3 has the RoCE v2 entry of 240.0.1.1, and index 4", map[string]string{
			dir + "ports/1/gids/4": "0000:0000:0000:0000:0000:ffff:f000:0101", dir + "ports/1/gids/2": "fe80:0000:0000:0000:0000:0000:0000:0009",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var problems []string
			for _, a := range look(t, lying(t, c.lies)) {
				if a.Verdict == report.Problem {
					problems = append(problems, a.Check+" "+a.Of+": "+a.Found)
				}
			}
			if !slices.ContainsFunc(problems, func(p string) bool { return strings.HasPrefix(p, c.step) && strings.Contains(p, c.want) }) {
				t.Errorf("no problem of %s says %q:\n%s", c.step, c.want, strings.Join(problems, "\n"))
			}
		})
	}
}

// identified copies the files of a recording, with values of a user in place of the
// replacements.
func identified(t *testing.T) string {
	t.Helper()
	values := strings.NewReplacer(
		"02524f", "525400", "0052:4fff", "5054:00ff", // MACs
		"0252:4f00", "5254:0000", "ff004f5202", "ff00005452", // GUIDs
		"240.0.", "172.16.", "f000:0", "ac10:0", "f00001", "ac1001", "f00002", "ac1002", "f00003", "ac1003", "2001:0db8:524f", "fd00:0db8:524f", "2001:db8:524f", "fd00:db8:524f", "20010db8524f", "fd000db8524f",
	)
	dir := t.TempDir()
	for _, name := range archived {
		b, err := os.ReadFile(filepath.Join(bench, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), []byte(values.Replace(string(b))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var archived = []string{"results.json", "netlink.json", "sys.json"}

// TestTheFileHasNothingOfTheUser writes a recording, and looks for all that it had.
func TestTheFileHasNothingOfTheUser(t *testing.T) {
	t.Parallel()
	before := identified(t)
	n, r := open(t, before)
	rec, err := recording.Read(os.DirFS(before))
	if err != nil {
		t.Fatal(err)
	}
	const firmware = "218.0.219.1/pkg 24.10-1.1.4.0" // it looks like addresses
	r.Ports[0].Firmware, rec.Sys.Files["module/mlx_compat/version"] = firmware, "24.10-1.1.4.0\n"
	r.Answers = append(look(t, n), Answer{Answer: report.Answer{Finding: report.Finding{Found: "on gpu-07"}}})
	with := redact.NewAlike()
	with.Name("node", "gpu-07")
	var b bytes.Buffer
	if err := Write(&b, r, rec, with); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := Unpack(&b, dir); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		"525400", "5054:00ff", "5254:0000", "ff00005452", "172.16.", "ac10:0", "ac1001", "fd00:", "fd000db8", "gpu-07",
	} {
		had := s == "gpu-07"
		for _, name := range archived {
			was, err := os.ReadFile(filepath.Join(before, name))
			if err != nil {
				t.Fatal(err)
			}
			is, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			had = had || strings.Contains(string(was), s)
			if strings.Contains(string(is), s) {
				t.Errorf("%s has %s", name, s)
			}
		}
		if !had {
			t.Errorf("no file had %s: the test proves nothing", s)
		}
	}
	// It can still be read, and means the same.
	again, results := open(t, dir)
	if got := results.Ports[0].Firmware; got != firmware {
		t.Errorf("the firmware is %q, want %q", got, firmware)
	}
	if was, is := verdicts(look(t, n)), verdicts(look(t, again)); !slices.Equal(was, is) {
		t.Errorf("(-before +after)\n%s", cmp.Diff(was, is))
	}
}

// TestAFileHasTheDriversOfAllInterfaces has one that is no port of the inventory, as that
// of a virtual function.
func TestAFileHasTheDriversOfAllInterfaces(t *testing.T) {
	t.Parallel()
	var r Results
	n := Node{Driver: func(netdev string) (nic.Driver, error) { return nic.Driver{Name: "of " + netdev}, nil }}.Keeping(&r)
	for range 2 {
		if _, err := n.Driver("v0"); err != nil {
			t.Fatal(err)
		}
	}
	d, err := Play(&recording.Recording{}, nil, r).Driver("v0")
	if err != nil || d.Name != "of v0" || len(r.Drivers) != 1 {
		t.Errorf("got %+v, %v, and the results have %v", d, err, r.Drivers)
	}
}

func verdicts(as []Answer) []string {
	var out []string
	for _, a := range as {
		out = append(out, a.Check+" "+a.Of+" "+string(a.Verdict))
	}
	return out
}

// TestWithoutALibraryForTheDeviceATransferSaysNothingAboutTheNIC has what perftest 4.5 prints.
func TestWithoutALibraryForTheDeviceATransferSaysNothingAboutTheNIC(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]report.Verdict{
		"ib_write_bw -d mlx5_0: exit status 1: Unable to find the Infiniband/RoCE device": report.CannotTell,
		"ib_write_bw -d mlx5_0: exit status 1: Couldn't connect to 198.18.0.69:18515":     report.Problem,
	} {
		if got := clientFailed("mlx5_0/1", said); got.Verdict != want {
			t.Errorf("%s: got %+v, want %v", said, got, want)
		}
	}
}

func TestATransferOfSoftRoCEIsNoFaultOfANIC(t *testing.T) {
	t.Parallel()
	n := Node{Sys: fstest.MapFS{
		"class/infiniband/mlx5_0/device": {Data: []byte("../../../devices/x"), Mode: fs.ModeSymlink},
		"devices/x/subsystem":            {Data: []byte("../../bus/pci"), Mode: fs.ModeSymlink},
	}}
	for device, want := range map[string]report.Verdict{"mlx5_0": report.Problem, "rxe0": report.CannotTell} {
		p := nic.Port{Match: discover.Match{Device: nldev.Device{Name: device}}}
		if got := n.ofNIC(p, problem(device, "ib_write_bw does not end", aKnownFault)); got.Verdict != want || got.Of != device {
			t.Errorf("%s: got %+v, want %v", device, got, want)
		}
		if got := n.ofNIC(p, ok(device, "ib_write_bw transfers")); got.Verdict != report.OK {
			t.Errorf("%s: got %+v, want ok", device, got)
		}
	}
}

func TestAnArchiveOfAStrangerStaysInItsFolder(t *testing.T) {
	t.Parallel()
	tree := recording.Tree{Files: map[string]string{"../out": "x"}}
	dir := t.TempDir()
	if err := tree.Unpack(dir); err == nil {
		t.Error("a file was written outside of the folder")
	}
	tree = recording.Tree{Files: map[string]string{"a": "x"}, Links: map[string]string{"class": "/etc"}}
	if err := tree.Unpack(dir); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := fs.ReadFile(root.FS(), "class/passwd"); err == nil {
		t.Error("a link leads out of the folder")
	}
}

// archive returns an archive with these files.
func archive(t *testing.T, names []string, content []byte) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestAnArchiveOfAStrangerTakesLittle(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]*bytes.Buffer{
		"a large file":    archive(t, []string{"roce-hwtest/results.json"}, make([]byte, 40<<20)),
		"another name":    archive(t, []string{"roce-hwtest/a.json"}, nil),
		"a file twice":    archive(t, []string{"roce-hwtest/results.json", "roce-hwtest/results.json"}, nil),
		"a folder before": archive(t, []string{"roce-hwtest/roce-hwtest/results.json"}, nil),
		"no folder":       archive(t, []string{"results.json"}, nil),
	} {
		dir := t.TempDir()
		if err := Unpack(b, dir); err == nil {
			t.Errorf("%s was unpacked", name)
		}
		if got, err := os.ReadDir(dir); err != nil || len(got) > 1 {
			t.Errorf("%s: %d files, %v", name, len(got), err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "results.json"), []byte(`{"ports": [`+strings.Repeat("{},", 200_000)+"{}]}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := Open(dir, t.TempDir()); err == nil || !strings.Contains(err.Error(), "objects") {
		t.Errorf("200,000 empty ports: %v", err)
	}
	tree := recording.Tree{Files: map[string]string{}}
	for i := range 60_000 {
		tree.Files[strconv.Itoa(i)] = ""
	}
	if err := tree.Unpack(t.TempDir()); err == nil {
		t.Error("60,000 files were made")
	}
}

func TestARequestThatWasNotRecordedIsAnError(t *testing.T) {
	t.Parallel()
	var rec recording.Recording
	if _, err := Play(&rec, os.DirFS(t.TempDir()), Results{}).open(t.Context()); err == nil || !strings.Contains(err.Error(), "no answer to this request") {
		t.Errorf("got %v", err)
	}
	if sock := rec.Play(unix.NETLINK_RDMA); sock == nil {
		t.Error("no socket")
	}
}

func TestResultsAreRead(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(Answer{Answer: report.Answer{Check: "ports", Finding: report.Finding{Verdict: report.OK, Of: "mlx5_0/1"}}, Expected: "x"})
	if want := `{"check":"ports","verdict":"ok","of":"mlx5_0/1","found":"","expected":"x"}`; err != nil || string(b) != want {
		t.Errorf("got %s, %v", b, err)
	}
}

// FuzzReplay: no row in a recording of a stranger makes a step panic, or the redaction.
func FuzzReplay(f *testing.F) {
	rec, err := recording.Read(os.DirFS(bench))
	if err != nil {
		f.Fatal(err)
	}
	scratch := f.TempDir()
	_, r, end, err := Open(bench, scratch)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(end)
	seen := map[uint16]bool{}
	for i, m := range rec.Netlink {
		if seen[m.Type] || len(m.Rows) == 0 {
			continue
		}
		seen[m.Type] = true
		row := []byte(m.Rows[0])
		for _, b := range [][]byte{{}, row[:7], row[:len(row)*2/3], row} {
			f.Add(uint16(i), b)
		}
	}
	f.Fuzz(func(t *testing.T, at uint16, row []byte) {
		changed := recording.Recording{Netlink: slices.Clone(rec.Netlink)}
		changed.Netlink[int(at)%len(rec.Netlink)].Rows = []recording.Bytes{row}
		changed.Redact(redact.NewAlike())
		_, err := Play(&changed, os.DirFS(scratch), r).Look(t.Context(), func(a Answer) {
			if strings.Contains(a.Found, "the step itself failed") {
				t.Errorf("%s: %s", a.Check, a.Found)
			}
		})
		if err != nil && cnierr.CodeOf(err) == cnierr.Bug {
			t.Errorf("an error without a reason: %v", err)
		}
	})
}

// FuzzArchive: whatever the archive of a stranger has, it writes nothing outside of its folders.
func FuzzArchive(f *testing.F) {
	link := []byte(`{"files": {"class/net/a": "1"}, "links": {"class/x": "../../etc", "b": "/"}}`)
	f.Add("results.json", byte(tar.TypeReg), []byte(`{"ports": [{}]}`), []byte(`[{"type": 18, "rows": ["0a"]}]`), link)
	f.Add("../results.json", byte(tar.TypeSymlink), []byte(`{}`), []byte(`[]`), []byte(`{"files": {"../out": "x", "b/c": "y"}, "links": {"b": ".."}}`))
	f.Fuzz(func(t *testing.T, name string, kind byte, results, netlink, sys []byte) {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		w := tar.NewWriter(z)
		for _, e := range []struct {
			name    string
			kind    byte
			content []byte
		}{{"results.json", tar.TypeReg, results}, {"netlink.json", tar.TypeReg, netlink}, {"sys.json", tar.TypeReg, sys}, {name, kind, results}} {
			h := &tar.Header{Name: folder + e.name, Typeflag: e.kind, Linkname: "../..", Mode: 0o600, Size: int64(len(e.content))}
			if w.WriteHeader(h) == nil {
				_, _ = w.Write(e.content) // only a file has content
			}
		}
		if z.Close() != nil { // the archive of a stranger may end anywhere
			t.Fatal("the archive was not made")
		}
		both := t.TempDir()
		dir, scratch := filepath.Join(both, "dir"), filepath.Join(both, "scratch")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(scratch, 0o700)); err != nil {
			t.Fatal(err)
		}
		_ = Unpack(&b, dir)
		if _, _, end, err := Open(dir, scratch); err == nil {
			end()
		}
		there, err := os.ReadDir(both)
		if err != nil || len(there) != 2 {
			t.Errorf("%v, %v", there, err)
		}
	})
}
