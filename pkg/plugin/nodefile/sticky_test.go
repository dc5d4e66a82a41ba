// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile_test

import (
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

func db(pod string) nodefile.Key {
	return nodefile.Key{Namespace: "default", Pod: pod, Interface: "net1"}
}

// granted has one address of each subnet.
func granted(t *testing.T, pod string) nodefile.Answer {
	t.Helper()
	return nodefile.Answer{Key: db(pod), Rails: [][]pool.Subnet{
		{
			{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Ranges: among(t, "10.0.0.70"), Gateway: netip.MustParseAddr("10.0.0.254")},
			{Prefix: netip.MustParsePrefix("fd00::/64"), Ranges: among(t, "fd00::46")},
		},
		{{Prefix: netip.MustParsePrefix("10.1.0.0/24"), Ranges: among(t, "10.1.0.70")}},
	}}
}

func TestPodsThatComeBackUnderTheirNameAreThoseWithANumber(t *testing.T) {
	t.Parallel()
	for pod, want := range map[string]bool{
		"db-0": true, "db-12": true, "a-b-9999": true,
		"db": false, "db-": false, "-1": false, "": false, "db-01": false, "db-00": false, "db-1a": false, "db--": false, "db-+1": false,
		"web-5d8f7c9b4d-24567": false, "daemon-22222": false, "job-10000": false,
	} {
		k, got := nodefile.Sticky("default", pod, "net1")
		if got != want || got && k != db(pod) {
			t.Errorf("%q: %t, %+v", pod, got, k)
		}
	}
	for _, k := range []nodefile.Key{{Pod: "db-0", Interface: "net1"}, {Namespace: "default", Pod: "db-0"}} {
		if _, ok := nodefile.Sticky(k.Namespace, k.Pod, k.Interface); ok {
			t.Errorf("%+v is known too little of", k)
		}
	}
}

func TestTheNameOfAKeyIsItsHash(t *testing.T) {
	t.Parallel()
	// printf 'default/db-0/net1' | sha256sum | cut -c 1-32
	if got, want := db("db-0").String(), "d350b97146d65205632441f3e5908410"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestARequestIsSeenUntilItIsTakenAway(t *testing.T) {
	t.Parallel()
	s := at(t.TempDir())
	if keys, err := s.Wanted("gpu"); err != nil || len(keys) > 0 {
		t.Errorf("%v, error %v", keys, err)
	}
	for _, pod := range []string{"db-0", "db-1", "db-0"} {
		if err := s.Want("gpu", db(pod)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		keys, err := s.Wanted("gpu")
		if len(keys) != 2 || err != nil || !cmp.Equal(keysOf(keys), map[nodefile.Key]bool{db("db-0"): true, db("db-1"): true}) {
			t.Errorf("%v, error %v", keys, err)
		}
	}
	for range 2 {
		if err := s.Unwant("gpu", db("db-0")); err != nil {
			t.Fatal(err)
		}
	}
	if keys, err := s.Wanted("gpu"); err != nil || !cmp.Equal(keys, []nodefile.Key{db("db-1")}) {
		t.Errorf("%v, error %v", keys, err)
	}
}

func keysOf(keys []nodefile.Key) map[nodefile.Key]bool {
	out := map[nodefile.Key]bool{}
	for _, k := range keys {
		out[k] = true
	}
	return out
}

func TestAnAnswerIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "roce")
	s := at(dir)
	if _, there, err := s.Answer("gpu", db("db-0")); there || err != nil {
		t.Errorf("%t, error %v", there, err)
	}
	none := nodefile.Answer{Key: db("db-0"), None: "node-7 holds it"}
	for _, want := range []nodefile.Answer{granted(t, "db-0"), none, granted(t, "db-0")} {
		if err := s.WriteAnswer("gpu", want); err != nil {
			t.Fatal(err)
		}
		got, there, err := s.Answer("gpu", want.Key)
		if diff := cmp.Diff(want, got, values); err != nil || !there || diff != "" || !got.Equal(want) || got.Granted() != (want.None == "") {
			t.Errorf("%t, error %v, (-want +got)\n%s", there, err, diff)
		}
		if all, err := s.Answers("gpu"); err != nil || len(all) != 1 || !all[0].Equal(want) {
			t.Errorf("%v, error %v", all, err)
		}
	}
	other := granted(t, "db-0")
	other.Rails[1][0].Ranges = among(t, "10.1.0.71")
	if other.Equal(granted(t, "db-0")) || none.Equal(other) {
		t.Error("other addresses are the same")
	}
	for path, want := range map[string]fs.FileMode{
		dir + "/pools/gpu/sticky": fs.ModeDir | 0o700, dir + "/pools/gpu/sticky/" + db("db-0").String(): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, error %v, want %v", path, info.Mode(), err, want)
		}
	}
	for range 2 {
		if err := s.RemoveAnswer("gpu", db("db-0")); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(dir + "/pools/gpu/sticky"); err != nil || len(entries) > 0 {
		t.Errorf("%v are left, error %v", entries, err)
	}
	if pools, err := s.Pools(); err != nil || len(pools) > 0 {
		t.Errorf("pools %v, error %v", pools, err)
	}
}

func TestAnswersAndRequestsOfAnotherBootDoNotCount(t *testing.T) {
	t.Parallel()
	before := at(t.TempDir())
	if err := before.WriteAnswer("gpu", granted(t, "db-0")); err != nil {
		t.Fatal(err)
	}
	if err := before.Want("gpu", db("db-0")); err != nil {
		t.Fatal(err)
	}
	now := before
	now.BootID = "boot-2"
	if _, there, err := now.Answer("gpu", db("db-0")); there || err != nil {
		t.Errorf("%t, error %v", there, err)
	}
	if keys, err := now.Wanted("gpu"); err != nil || len(keys) > 0 {
		t.Errorf("%v, error %v", keys, err)
	}
	if all, err := now.Answers("gpu"); err != nil || len(all) > 0 {
		t.Errorf("%v, error %v", all, err)
	}
	for _, dir := range []string{"wanted", "sticky"} {
		if entries, err := os.ReadDir(filepath.Join(now.Dir, "pools/gpu", dir)); err != nil || len(entries) > 0 {
			t.Errorf("%v are left in %s, error %v", entries, dir, err)
		}
	}
}

func TestUnknownFilesAreRemovedAndLogged(t *testing.T) {
	t.Parallel()
	k := db("db-0")
	head := `{"version": 1, "bootID": "boot-1", "namespace": "default", "pod": "db-0", "interface": "net1"`
	for name, tt := range map[string]struct{ file, content, want string }{
		"empty":                {k.String(), ``, "EOF"},
		"half":                 {k.String(), head, "EOF"},
		"another version":      {k.String(), `{"version": 2}`, "has version 2"},
		"another key":          {k.String(), strings.Replace(head, "db-0", "db-1", 1) + `, "none": "x"}`, `default/db-1, interface "net1"`},
		"another name":         {"x", head + `, "none": "x"}`, `default/db-0`},
		"unknown":              {k.String(), head + `, "rail": []}`, `"rail"`},
		"neither":              {k.String(), head + `}`, "why it has none"},
		"both":                 {k.String(), head + `, "none": "x", "rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.7"]}]}]}`, "why it has none"},
		"more than an address": {k.String(), head + `, "rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.7-10.0.0.8"]}]}]}`, "rails[0].subnets[0].ranges: not one address"},
		"no address":           {k.String(), head + `, "rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": []}]}]}`, "rails[0].subnets[0]: ranges: none"},
	} {
		t.Run(name, func(t *testing.T) {
			s := at(t.TempDir())
			dir := filepath.Join(s.Dir, "pools/gpu/sticky")
			put := func() {
				t.Helper()
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, tt.file), []byte(tt.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			put()
			if err := s.WriteAnswer("gpu", granted(t, "db-9")); err != nil {
				t.Fatal(err)
			}
			if tt.file == k.String() {
				_, there, err := s.Answer("gpu", k)
				if there || cnierr.CodeOf(err) != cnierr.Unreadable || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%t, error %v, want %q in it", there, err, tt.want)
				}
			}
			all, err := s.Answers("gpu")
			if len(all) != 1 || cnierr.CodeOf(err) != cnierr.Unreadable || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, error %v, want %q in it", all, err, tt.want)
			}
			if all, err := s.Answers("gpu"); len(all) != 1 || err != nil {
				t.Errorf("again: %v, error %v", all, err)
			}
		})
	}
}

func TestAMalformedRequestIsRemovedAndLogged(t *testing.T) {
	t.Parallel()
	s := at(t.TempDir())
	if err := s.Want("gpu", db("db-0")); err != nil {
		t.Fatal(err)
	}
	junk := filepath.Join(s.Dir, "pools/gpu/wanted/junk")
	if err := os.WriteFile(junk, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := s.Wanted("gpu")
	if len(keys) != 1 || cnierr.CodeOf(err) != cnierr.Unreadable || !strings.Contains(err.Error(), junk) {
		t.Errorf("%v, error %v", keys, err)
	}
	if keys, err = s.Wanted("gpu"); len(keys) != 1 || err != nil {
		t.Errorf("again: %v, error %v", keys, err)
	}
}

func TestAFileThatCannotBeReadIsLeft(t *testing.T) {
	t.Parallel()
	s := at(t.TempDir())
	path := filepath.Join(s.Dir, "pools/gpu/sticky", db("db-0").String())
	if err := os.MkdirAll(path, 0o700); err != nil { // EISDIR
		t.Fatal(err)
	}
	if _, _, err := s.Answer("gpu", db("db-0")); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("error %v", err)
	}
	if _, err := s.Answers("gpu"); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("error %v", err)
	}
	if err := s.WriteAnswer("gpu", granted(t, "db-0")); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("error %v", err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, error %v", entries, err)
	}
}

func TestAGrantThatCannotBeReadIsNotWritten(t *testing.T) {
	t.Parallel()
	s := at(t.TempDir())
	wide := granted(t, "db-0")
	wide.Rails[0][0].Ranges = among(t, "10.0.0.70-10.0.0.71")
	for _, a := range []nodefile.Answer{wide, {Key: db("db-0")}} {
		if err := s.WriteAnswer("gpu", a); cnierr.CodeOf(err) != cnierr.Bug {
			t.Errorf("%+v: error %v", a, err)
		}
	}
}

func TestAReaderNeverSeesHalfARequest(t *testing.T) {
	t.Parallel()
	s := at(t.TempDir())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				if err := s.Want("gpu", db("db-0")); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 200 {
		if keys, err := s.Wanted("gpu"); err != nil || len(keys) > 1 {
			t.Fatalf("%v, error %v", keys, err)
		}
	}
	all.Wait()
	entries, err := os.ReadDir(filepath.Join(s.Dir, "pools/gpu/wanted"))
	if err != nil || len(entries) != 1 {
		t.Errorf("%v are left, error %v", entries, err)
	}
}

func TestAFileWithTheAddressesOfAnAnswerHasNoOthers(t *testing.T) {
	t.Parallel()
	f := sample(t, 2)
	f.Sticky = true
	dir := t.TempDir()
	if err := at(dir).Write(f); err != nil {
		t.Fatal(err)
	}
	got, err := at(dir).Read("gpu")
	if err != nil || !got.Sticky {
		t.Fatalf("sticky %t, error %v", got.Sticky, err)
	}
	a := granted(t, "db-0")
	only := got.Only(a)
	if diff := cmp.Diff(a.Rails, only.Rails, values); diff != "" || only.Quarantine != f.Quarantine || only.Pool != "gpu" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// What is asked for by name must be the address of the answer, too.
	if diff := cmp.Diff(among(t, "10.0.0.0-10.0.0.69", "10.0.0.71-10.0.0.255"), only.Subnets()[0][0].Exclude, values); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
