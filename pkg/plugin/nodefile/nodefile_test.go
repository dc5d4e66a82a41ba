// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile_test

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

func among(t *testing.T, texts ...string) []netrange.Range {
	t.Helper()
	var out []netrange.Range
	for _, s := range texts {
		r, err := netrange.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// must is for what a test needs and does not test.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// plant writes a file with the folders above it.
func plant(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

func at(dir string) nodefile.Store { return nodefile.Store{Dir: dir, BootID: "boot-1"} }

func pathOf(dir string) string { return filepath.Join(dir, "pools", "gpu", "ranges") }

// sample has block 2, and the last one, of so many rails.
func sample(t *testing.T, rails int) nodefile.File {
	t.Helper()
	f := nodefile.File{Pool: "gpu", Quarantine: 2 * time.Minute}
	for i := range rails {
		s := func(format string) string { return fmt.Sprintf(format, i) }
		f.Rails = append(f.Rails, []pool.Subnet{
			{
				Prefix: netip.MustParsePrefix(s("10.%d.0.0/24")), Gateway: netip.MustParseAddr(s("10.%d.0.254")),
				Ranges:  among(t, s("10.%[1]d.0.32-10.%[1]d.0.47"), s("10.%[1]d.0.240-10.%[1]d.0.255")),
				Exclude: among(t, s("10.%d.0.40")),
			},
			{Prefix: netip.MustParsePrefix(s("fd00:0:0:%d::/64")), Ranges: among(t, s("fd00:0:0:%[1]d::20-fd00:0:0:%[1]d::2f"))},
		})
	}
	return f
}

var values = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmpopts.EquateEmpty()}

func TestWhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "roce")
	long := sample(t, 32) // longer than a first read, and a second
	for i := range 900 {
		long.Rails[0][1].Exclude = append(long.Rails[0][1].Exclude, among(t, fmt.Sprintf("fd00::1:%04x-fd00::1:%04x", 4*i, 4*i+1))...)
	}
	sticky := sample(t, 1)
	sticky.Sticky = true
	for _, want := range []nodefile.File{sample(t, 1), sticky, sample(t, 8), long} {
		must(t, at(dir).Write(want))
		got, err := at(dir).Read("gpu")
		if diff := cmp.Diff(want, got, values); err != nil || diff != "" {
			t.Errorf("error %v, (-want +got)\n%s", err, diff)
		}
	}
	for path, want := range map[string]fs.FileMode{
		dir: fs.ModeDir | 0o700, dir + "/pools": fs.ModeDir | 0o700, dir + "/pools/gpu": fs.ModeDir | 0o700, pathOf(dir): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, error %v, want %v", path, info.Mode(), err, want)
		}
	}
	if info, err := os.Stat(pathOf(dir)); err != nil || info.Size() < 33<<10 {
		t.Errorf("the long file has %d bytes, error %v", info.Size(), err)
	}
	entries, err := os.ReadDir(dir + "/pools/gpu")
	if err != nil || len(entries) != 1 {
		t.Errorf("%v beside the file, error %v", entries, err)
	}
}

func TestWithoutANodeFileTheErrorSaysToWaitForTheAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gone := func() {
		t.Helper()
		_, err := at(dir).Read("gpu")
		c := cnierr.CNI("roce", err)
		if c == nil || cnierr.Code(c.Code) != cnierr.TryAgain || !strings.Contains(c.Msg, pathOf(dir)) {
			t.Fatalf("%v", c)
		}
		for _, want := range []string{"runs on this node", "kubectl get railpools", "the pool exists", "free blocks"} {
			before, after, found := strings.Cut(c.Details, want)
			if !found {
				t.Errorf("the hint says %q, and then not %q", before, want)
			}
			c.Details = after
		}
	}
	gone()
	must(t, at(dir).Write(sample(t, 1)))
	for range 2 {
		must(t, at(dir).Remove("gpu"))
		gone()
	}
}

func TestAFileOfAnotherBootIsNotUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, at(dir).Write(sample(t, 1)))
	for _, boot := range []string{"boot-0", "boot-2", ""} {
		_, err := nodefile.Store{Dir: dir, BootID: boot}.Read("gpu")
		if cnierr.CodeOf(err) != cnierr.TryAgain || !strings.Contains(err.Error(), "of another boot") || !strings.Contains(cnierr.CNI("roce", err).Details, "since the boot") {
			t.Errorf("in boot %q: got %v, want code %d", boot, err, cnierr.TryAgain)
		}
	}
	if _, err := at(dir).Read("gpu"); err != nil {
		t.Errorf("in the boot that it was written in: %v", err)
	}
}

func TestAFileThatIsNoneIsRefusedWithAllItsFaults(t *testing.T) {
	t.Parallel()
	for content, want := range map[string][]string{
		``:                              {"unexpected end of JSON input"},
		`{"version": `:                  {"unexpected end of JSON input"},
		`[]`:                            {"cannot unmarshal array"},
		`{}`:                            {"version: the file has version 0, this program reads version 1"},
		`{"version": 2, "pool": 7}`:     {"version: the file has version 2, this program reads version 1"},
		`{"version": 1, "pool": "gpu"}`: {`rails: want 1 to 32 rails, got 0`, `quarantine: "" is not a time`},
		`{"version": 1, "pool": "gpu", "quarantine": "-1s"}`: {`quarantine: "-1s" is not a time`},
		`{"version": 1} {}`: {"invalid character '{' after top-level value"},
		`{"version": 1, "pool": "other", "quarantine": "0s", "rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.1"]}]}]}`: {`it is of pool "other"`},
		`{"version": 1, "pool": "gpu", "quarantine": "9", "rails": [
			{"subnets": [{"subnet": "10.0.0.0/24"}]},
			{"subnets": [{"subnet": "10.1.0.0/24", "ranges": ["10.1.1.1"]}, {"subnet": "10.2.0.1/24", "ranges": ["10.2.0.1"]}]},
			{"subnets": [{"subnet": "10.3.0.0/24", "ranges": ["10.3.0.0/28", "10.3.0.9"]}]},
			{"subnets": [{"subnet": "10.4.0.0/24", "ranges": ["10.4.0.1"], "exclude": ["10.4.0.3-10.4.0.2"]}]},
			{"subnets": [{"subnet": "10.5.0.0/24", "ranges": ["10.5.0.1"], "gateway": "fe80::1"}]},
			{}]}`: {
			`quarantine: "9" is not a time`, "rails[0].subnets[0]: ranges: none", "rails[1].subnets[0]: ranges: 10.1.1.1 is not inside 10.1.0.0/24",
			"rails[1].subnets[1]: subnet: 10.2.0.1/24 is not a prefix", "rails[2].subnets[0]: ranges: 10.3.0.9 does not follow 10.3.0.0-10.3.0.15",
			`rails[3].subnets[0]: exclude: range "10.4.0.3-10.4.0.2" ends before`, "rails[4].subnets[0]: gateway: fe80::1 is not of the family of 10.5.0.0/24", "rails[5].subnets: no subnet",
		},
		`{"version": 1, "pool": "gpu", "quarantine": "0s", "rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.1"], "gate": "x"}]}]}`: {`unknown field "gate"`},
	} {
		dir := t.TempDir()
		path := pathOf(dir)
		plant(t, path, content)
		_, err := at(dir).Read("gpu")
		c := cnierr.CNI("roce", err)
		if c == nil || cnierr.Code(c.Code) != cnierr.Unreadable || !strings.Contains(c.Msg, path) || !strings.Contains(c.Details, "remove the file") {
			t.Errorf("%s: %v", content, c)
			continue
		}
		for _, w := range want {
			if !strings.Contains(c.Msg, w) {
				t.Errorf("%s: no %s in %s", content, w, c.Msg)
			}
		}
	}
}

func TestWhatCannotBeReadIsAnIOError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.MkdirAll(pathOf(dir), 0o700))
	if _, err := at(dir).Read("gpu"); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("read: %v", err)
	}
	if err := at(dir).Write(sample(t, 1)); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("write: %v", err)
	}
}

func TestWhatWouldNotBeReadIsNotWritten(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*nodefile.File){
		"a pool that leads elsewhere": func(f *nodefile.File) { f.Pool = "../gpu" },
		"a rail without ranges":       func(f *nodefile.File) { f.Rails[0][0].Ranges = nil },
		"no rails":                    func(f *nodefile.File) { f.Rails = nil },
		"nothing left":                func(f *nodefile.File) { f.Rails[0][0].Exclude = f.Rails[0][0].Ranges },
	} {
		dir, f := t.TempDir(), sample(t, 2)
		change(&f)
		if err := at(dir).Write(f); cnierr.CodeOf(err) != cnierr.Bug || err == nil {
			t.Errorf("%s: %v", name, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%s: %v was written, error %v", name, entries, err)
		}
	}
}

func TestAFolderThatIsAFileIsAnIOError(t *testing.T) {
	t.Parallel()
	s := at(t.TempDir())
	plant(t, filepath.Join(s.Dir, "pools"), "")
	_, read := s.Read("gpu")
	_, services := s.Services()
	_, pools := s.Pools()
	_, quarantines := s.Quarantines()
	wrote, written := s.WriteServices(cidrs("10.96.0.0/12"))
	if wrote {
		t.Error("Services are said to be written")
	}
	for what, err := range map[string]error{
		"Read": read, "Services": services, "Pools": pools, "Quarantines": quarantines, "WriteServices": written,
		"Write": s.Write(sample(t, 1)), "Remove": s.Remove("gpu"),
	} {
		if cnierr.CodeOf(err) != cnierr.IO {
			t.Errorf("%s: got %v, want code %d", what, err, cnierr.IO)
		}
	}
}

func TestReadersNeverSeeHalfAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	small, big := sample(t, 1), sample(t, 16)
	must(t, at(dir).Write(small))
	done := make(chan struct{})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if f, err := at(dir).Read("gpu"); err != nil || len(f.Rails) != 1 && len(f.Rails) != 16 {
					t.Errorf("%d rails, error %v", len(f.Rails), err)
					return
				}
			}
		})
	}
	for range 20 {
		for _, f := range []nodefile.File{big, small} {
			if err := at(dir).Write(f); err != nil {
				t.Error(err)
			}
		}
	}
	close(done)
	all.Wait()
}

// TestARequestTakesThem puts what is read into a request, and asks for
// addresses of the node and of another one.
func TestARequestTakesThem(t *testing.T) {
	t.Parallel()
	f := sample(t, 2)
	for asked, ok := range map[string]bool{
		"10.1.0.33": true, "10.1.0.255": false, "10.1.0.254": false, "10.1.0.40": false, "10.1.0.48": false, "fd00:0:0:1::30": false, "fd00::2f": true,
	} {
		r := conf.Request{Network: "net", Rails: make([]conf.Rail, 2), IPAM: conf.IPAM{Type: conf.PoolType, Requested: []netip.Addr{netip.MustParseAddr(asked)}}}
		got, err := r.WithSubnets(f.Subnets())
		if (err == nil) != ok {
			t.Errorf("%s: %v", asked, err)
		}
		if err == nil && (len(got.Rails[0].Subnets) != 2 || got.Rails[1].Subnets[0].Gateway != netip.MustParseAddr("10.1.0.254")) {
			t.Errorf("%s: %+v", asked, got.Rails)
		}
	}
	if diff := cmp.Diff(sample(t, 2), f, values); diff != "" {
		t.Errorf("Subnets has changed the file (-before +after)\n%s", diff)
	}
}
