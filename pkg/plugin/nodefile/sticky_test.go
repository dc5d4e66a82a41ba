// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile_test

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile/nodefiletest"
)

func db(pod string) nodefile.Key {
	return nodefile.Key{Namespace: "default", Pod: pod, Interface: "net1"}
}

// granted has one address of each subnet.
func granted(t *testing.T) nodefile.Answer {
	t.Helper()
	return nodefile.Answer{Until: time.Hour, Rails: [][]pool.Subnet{
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
		"d-0": true, "db-0": true, "db-12": true, "a-b-9999": true,
		"db": false, "db-": false, "-1": false, "": false, "db-01": false, "db-00": false, "db-1a": false, "db--": false, "db-+1": false,
		"web-5d8f7c9b4d-24567": false, "daemon-22222": false, "job-10000": false,
	} {
		k, got := nodefile.Sticky("default", pod, "net1")
		if got != want || k != db(pod) {
			t.Errorf("%q: %t, %+v", pod, got, k)
		}
	}
	for _, k := range []nodefile.Key{{Pod: "db-0", Interface: "net1"}, {Namespace: "default", Pod: "db-0"}} {
		if _, ok := nodefile.Sticky(k.Namespace, k.Pod, k.Interface); ok {
			t.Errorf("%+v is known too little of", k)
		}
	}
}

func TestOnlyTheAddressesOfAnAnswerAreLeft(t *testing.T) {
	t.Parallel()
	f, a := sample(t, 2), granted(t)
	want := f
	want.Rails = a.Rails
	if diff := cmp.Diff(want, f.Only(a), values); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestTheNameOfAKeyIsItsHash(t *testing.T) {
	t.Parallel()
	// printf 'default/db-0/net1' | sha256sum | cut -c 1-32
	if got, want := db("db-0").String(), "d350b97146d65205632441f3e5908410"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestWhatAnotherReleaseReads has the texts that plugins and agents of other releases write and read.
func TestWhatAnotherReleaseReads(t *testing.T) {
	t.Parallel()
	s, f := at(t.TempDir()), sample(t, 1)
	f.Sticky = true
	must(t, s.Write(f))
	_, err := s.WriteServices(cidrs("10.96.0.0/12"))
	must(t, err)
	var answer bytes.Buffer
	must(t, nodefile.WriteAnswer(&answer, granted(t)))
	file, err := os.ReadFile(pathOf(s.Dir))
	must(t, err)
	services, err := os.ReadFile(servicesOf(s.Dir))
	must(t, err)
	for got, want := range map[string]string{
		string(file): `{"version":1,"bootID":"boot-1","pool":"gpu","quarantine":"2m0s","rails":[{"subnets":[` +
			`{"subnet":"10.0.0.0/24","ranges":["10.0.0.32-10.0.0.47","10.0.0.240-10.0.0.255"],"exclude":["10.0.0.40"],"gateway":"10.0.0.254"},` +
			`{"subnet":"fd00::/64","ranges":["fd00::20-fd00::2f"]}]}],"sticky":true}`,
		string(services): `{"version":1,"bootID":"boot-1","services":["10.96.0.0/12"]}`,
		answer.String(): `{"version":1,"rails":[{"subnets":[{"subnet":"10.0.0.0/24","ranges":["10.0.0.70"],"gateway":"10.0.0.254"},` +
			`{"subnet":"fd00::/64","ranges":["fd00::46"]}]},{"subnets":[{"subnet":"10.1.0.0/24","ranges":["10.1.0.70"]}]}],"until":3600000000000}`,
		s.Socket(): filepath.Join(s.Dir, "pools", "_agent"),
	} {
		if diff := cmp.Diff(want, strings.Join(strings.Fields(got), "")); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	const request = `{"version":1,"pool":"gpu","namespace":"default","pod":"db-0","interface":"net1"}`
	heard := make(chan string, 1)
	defer nodefiletest.Listen(t, s, func(conn net.Conn) {
		b := make([]byte, 1024)
		n, _ := conn.Read(b)
		heard <- string(b[:n])
	})()
	_, err = s.Ask("gpu", db("db-0"))
	if got := strings.TrimSpace(<-heard); got != request {
		t.Errorf("the request is %s, and then %v; want %s", got, err, request)
	}
	if pool, k, err := nodefile.ReadRequest(strings.NewReader(request)); pool != "gpu" || k != db("db-0") || err != nil {
		t.Errorf("the request is read as %s, %+v, %v", pool, k, err)
	}
}

// deep is a store with a path that no socket's address has room for.
func deep(t *testing.T) nodefile.Store {
	t.Helper()
	return at(filepath.Join(t.TempDir(), strings.Repeat("d", 108)))
}

func TestTheAgentsAnswerIsHeard(t *testing.T) {
	s := deep(t)
	for _, want := range []nodefile.Answer{granted(t), {None: "node-7 holds it"}, {Wait: "the API server does not answer"}} {
		t.Run("", func(t *testing.T) {
			nodefiletest.Answer(t, s, func(pool string, k nodefile.Key) nodefile.Answer {
				if pool != "gpu" || k != db("db-0") {
					t.Errorf("request for %+v in %s", k, pool)
				}
				return want
			})
			got, err := s.Ask("gpu", db("db-0"))
			if diff := cmp.Diff(want, got, values); err != nil || diff != "" || got.Granted() != (len(want.Rails) > 0) {
				t.Errorf("error %v, (-want +got)\n%s", err, diff)
			}
		})
	}
}

func TestWithoutAnAnswerThatCanBeReadThereIsAnError(t *testing.T) {
	t.Parallel()
	say := func(text string) func(net.Conn) {
		return func(conn net.Conn) {
			_, _, _ = nodefile.ReadRequest(conn)
			_, _ = io.WriteString(conn, text)
		}
	}
	const address = `{"version": 1, "rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.7"]}]}]`
	for name, tt := range map[string]struct {
		agent func(net.Conn)
		want  string
	}{
		"it hangs": {func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }, "timeout"},
		"it sends byte after byte": {func(conn net.Conn) {
			for err := error(nil); err == nil; time.Sleep(50 * time.Millisecond) {
				_, err = io.WriteString(conn, " ")
			}
		}, "timeout"},
		"it dies at once":      {func(net.Conn) {}, ""},
		"it dies":              {say(""), "EOF"},
		"it dies in between":   {say(`{"version": 1, "none": "no`), "EOF"},
		"endless":              {func(conn net.Conn) { _, _ = io.WriteString(conn, strings.Repeat(" ", 1<<20)) }, ""},
		"no JSON":              {say("Hello"), "invalid character"},
		"another version":      {say(`{"version": 2, "none": "x"}`), "version 2"},
		"unknown":              {say(`{"version": 1, "none": "x", "rail": []}`), `"rail"`},
		"neither":              {say(`{"version": 1}`), "why it has none"},
		"both":                 {say(address + `, "none": "x"}`), "why it has none"},
		"more than an address": {say(strings.Replace(address, `.7"`, `.7-10.0.0.8"`, 1) + `}`), "rails[0].subnets[0].ranges: not one address"},
		"two ranges":           {say(strings.Replace(address, `"10.0.0.7"`, `"10.0.0.7", "10.0.0.9"`, 1) + `}`), "rails[0].subnets[0].ranges: not one address"},
		"an excluded address":  {say(strings.Replace(address, `]}]}]`, `], "exclude": ["10.0.0.7"]}]}]`, 1) + `}`), "rails[0].subnets[0].ranges: not one address"},
		"no address":           {say(strings.Replace(address, `"10.0.0.7"`, ``, 1) + `}`), "rails[0].subnets[0]: ranges: none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := deep(t)
			nodefiletest.Listen(t, s, tt.agent)
			began := time.Now()
			a, err := s.Ask("gpu", db("db-0"))
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "rocectl agent") {
				t.Errorf("got %+v, error %v, want %q", a, err, tt.want)
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it took %v", took)
			}
		})
	}
}

func TestWithoutAnAgentThereIsAnErrorAtOnce(t *testing.T) {
	s := deep(t)
	if _, err := s.Ask("gpu", db("db-0")); err == nil || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("got %v", err)
	}
	for name, put := range irregular() {
		t.Run(name, func(t *testing.T) {
			s := deep(t)
			must(t, os.MkdirAll(filepath.Dir(s.Socket()), 0o700))
			must(t, put(t, s.Socket()))
			mustEnd(t, func() {
				if _, err := s.Ask("gpu", db("db-0")); err == nil || !strings.Contains(err.Error(), "rocectl agent") {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

func TestALinkToASocketIsNotFollowed(t *testing.T) {
	other, s := at(t.TempDir()), at(t.TempDir())
	nodefiletest.Listen(t, other, func(net.Conn) { t.Error("the plugin connects") })
	must(t, os.MkdirAll(filepath.Dir(s.Socket()), 0o700))
	must(t, os.Symlink(other.Socket(), s.Socket()))
	if a, err := s.Ask("gpu", db("db-0")); err == nil {
		t.Errorf("got %+v", a)
	}
}

func TestARequestIsReadOnlyIfItIsOne(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "x", `{"version": 1, "pool": "gpu"`, `{"version": 2, "pool": "gpu"}`, `{"version": 1, "key": 7}`, strings.Repeat(" ", 1<<20) + `{"version": 1}`} {
		if pool, k, err := nodefile.ReadRequest(bytes.NewBufferString(text)); err == nil {
			t.Errorf("%.40q: %s, %+v", text, pool, k)
		}
	}
}
