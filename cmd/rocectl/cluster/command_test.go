// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/utils/buildversion"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent/grant"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// apiServer has the objects of a cluster. It refuses the list of one resource, and a watch hears
// nothing until the server ends.
type apiServer struct {
	*httptest.Server
	forbidden string
	events    map[string]chan string // what the watch of a resource sends
	more      map[string]string      // objects of a path, instead of the usual ones

	mu    sync.Mutex
	asked []string
	heard chan string // the same, for a test that waits for it
}

const group = "/apis/roce-cni.io/v1alpha1/"

// objects are those of two pools, in no order, as a cache returns them. The node old is gone.
func objects(path string) string {
	block := func(name, pool, rack string, index, used int, node string) string {
		return fmt.Sprintf(`{"metadata": {"name": %q}, "spec": {"pool": %q, "rack": %q, "index": %d, "size": 16, "nodeName": %q, "machineID": "m"},
			"status": {"size": 16, "used": %d, "quarantined": 1, "free": %d}}`, name, pool, rack, index, node, used, 15-used)
	}
	switch path {
	case group + "railpools":
		return `{"metadata": {"name": "storage", "uid": "s"}, "spec": {"rackLabel": "rack", "rails": [{"subnets": [{"subnet": "10.{rack}.0.0/16"}]}]},
				"status": {"blocks": 4096, "claimed": 3, "size": 48, "used": 6, "quarantined": 3, "free": 39, "reserved": 2, "conditions": [{"type": "Valid", "status": "True"}]}},
			{"metadata": {"name": "gpu", "uid": "g"}, "spec": {"sticky": {"ttl": "24h", "slots": "64-79"}, "rails": [{"subnets": [{"subnet": "10.200.0.0/16"}]}]}}`
	case group + "railblocks":
		return strings.Join([]string{
			block("storage.7-10", "storage", "7", 10, 1, "n1"), block("gpu-1", "gpu", "", 1, 5, "n1"),
			block("storage.7-9", "storage", "7", 9, 2, "old"), block("storage.12-11", "storage", "12", 11, 3, "n2"),
		}, ",")
	case group + "railleases":
		return `{"metadata": {"name": "db-0", "uid": "l"}, "spec": {"pool": "gpu", "namespace": "ml", "pod": "db-0", "interface": "net1", "slot": 64,
			"holder": {"nodeName": "old", "machineID": "m"}}}`
	case "/api/v1/nodes":
		return `{"metadata": {"name": "n2"}, "status": {"nodeInfo": {"machineID": "m"}, "conditions": [{"type": "Ready", "status": "False"}]}},
			{"metadata": {"name": "n1"}, "status": {"nodeInfo": {"machineID": "m"}, "conditions": [{"type": "Ready", "status": "True"}]}}`
	case "/apis/networking.k8s.io/v1/servicecidrs":
		return `{"metadata": {"name": "kubernetes", "uid": "k", "resourceVersion": "5"}, "spec": {"cidrs": ["10.96.0.0/16"]}},
			{"metadata": {"name": "odd", "uid": "o", "resourceVersion": "6"}, "spec": {"cidrs": ["0.0.0.0/0", "10.97.0.0/16"]}}`
	}
	return ""
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r.Method+" "+r.URL.Path+" "+r.UserAgent())
	s.mu.Unlock()
	select {
	case s.heard <- r.Method + " " + r.URL.Path:
	default:
	}
	w.Header().Set("Content-Type", "application/json")
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	switch q := r.URL.Query(); {
	case resource == s.forbidden:
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "code": 403, "reason": "Forbidden", "message": "no"}`)
	case q.Has("sendInitialEvents"): // as a server without streamed lists
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "code": 422, "reason": "Invalid", "message": "no"}`)
	case q.Has("watch"):
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush() //nolint:forcetypeassert // an httptest.Server has it
		for {
			select {
			case <-r.Context().Done():
				return
			case event := <-s.events[resource]:
				_, _ = io.WriteString(w, event)
				w.(http.Flusher).Flush() //nolint:forcetypeassert // as above
			}
		}
	case resource == leaseName:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "details": {"name": "x"}}`)
	case strings.HasSuffix(r.URL.Path, "/nodes/n1"):
		_, _ = io.WriteString(w, `{"metadata": {"name": "n1"}, "status": {"nodeInfo": {"machineID": "0123456789abcdef0123456789abcdef"}}}`)
	case r.Method != http.MethodGet:
		_, _ = io.Copy(w, r.Body)
	default:
		api, kind := "roce-cni.io/v1alpha1", "RailPoolList"
		if resource == "servicecidrs" {
			api, kind = "networking.k8s.io/v1", "ServiceCIDRList"
		}
		_, _ = fmt.Fprintf(w, `{"apiVersion": %q, "kind": %q, "metadata": {"resourceVersion": "7"}, "items": [%s]}`, api, kind, cmp.Or(s.more[r.URL.Path], objects(r.URL.Path)))
	}
}

func newServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{heard: make(chan string, 1000), events: map[string]chan string{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

// runs returns what a command prints, as words with one blank between them, with its error.
func runs(t *testing.T, cmd *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	cmd.SetContext(t.Context())
	err := cmd.Execute()
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n"), err
}

// TestAnOperatorLooksAtTheCluster runs the whole commands on a cluster that returns its objects in
// no order, and on one that refuses one of the lists. No other test runs meanwhile, because gc sets
// the log of client-go, which all share.
func TestAnOperatorLooksAtTheCluster(t *testing.T) {
	for args, want := range map[string]string{
		"pools": `
POOL BLOCKS CLAIMED USED FREE STATE
gpu 0 0 0 0 not seen by the reaper yet: kubectl -n roce-cni get pods
storage 4096 3 6 39 ok`,
		"pools -o wide": `
POOL BLOCKS CLAIMED USED FREE STATE SIZE QUARANTINED RESERVED
gpu 0 0 0 0 not seen by the reaper yet: kubectl -n roce-cni get pods 0 0 0
storage 4096 3 6 39 ok 48 3 2`,
		"pools --by block -o wide": `
BLOCK NODE FIRST RAIL SIZE USED FREE CONFIRMED QUARANTINED POOL RACK
gpu-1 n1 10.200.0.16-10.200.0.31 16 5 10 never 1 gpu -
storage.12-11 n2 10.12.0.176-10.12.0.191 16 3 12 never 1 storage 12
storage.7-9 old 10.7.0.144-10.7.0.159 16 2 13 never 1 storage 7
storage.7-10 n1 10.7.0.160-10.7.0.175 16 1 14 never 1 storage 7`,
		"pools --by node --no-headers": `
n1 Ready gpu 1 16 5 10
n1 Ready storage 1 16 1 14
n2 not Ready storage 1 16 3 12
old gone storage 1 16 2 13`,
		"gc --cluster --once": `
BLOCK NODE ITS NODE IS WRITTEN FREED WHEN
storage.7-9 old gone never the node has been gone for an hour

LEASE POD NODE ITS NODE IS WRITTEN NEXT
db-0 ml/db-0 old gone never another node may have it when the node has been gone for an hour

NODE POOL BLOCKS HOST INDEXES IN USE LEASES FOR PODS OF OTHER NODES
n1 gpu 1 5 of 16 0 0
n1 storage 1 1 of 16 0 0
n2 storage 1 3 of 16 0 0
old storage 1 2 of 16 0 0
old gpu 0 0 of 0 1 0`,
	} {
		s := newServer(t)
		name, flags, _ := strings.Cut(args, " ")
		command := map[string]func() *cobra.Command{"pools": PoolsCommand, "gc": gcCommand}[name]
		words := append(strings.Fields(flags), "--kubeconfig", kubeconfigOf(t, s.URL))
		got, err := runs(t, command(), words...)
		if diff := gocmp.Diff(strings.TrimPrefix(want, "\n"), got); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got)\n%s", args, err, diff)
		}
		for _, line := range s.asked {
			if !strings.HasPrefix(line, "GET ") || !strings.HasSuffix(line, " rocectl/"+buildversion.BuildVersion) {
				t.Errorf("%s sends %s", args, line)
			}
		}
		for _, resource := range []string{"railpools", "railblocks", "nodes"} {
			refused := newServer(t)
			refused.forbidden = resource
			words[len(words)-1] = kubeconfigOf(t, refused.URL)
			got, err := runs(t, command(), words...)
			if got != "" || cnierr.CodeOf(err) != cnierr.NotAvailable || !strings.Contains(err.Error(), "no") {
				t.Errorf("%s without the right to list %s: %v, and it prints\n%s", args, resource, err, got)
			}
			if hint := cnierr.CNI("", err).Details; name == "pools" && !strings.HasPrefix(hint, "an administrator gives you the right to read: kubectl create clusterrole ") {
				t.Errorf("%s: the hint is %s", args, hint)
			}
		}
	}
}

// TestWhatACommandCannotDoIsSaidAtOnce has each step of a start fail in turn. It sets the log of client-go,
// so no other test runs meanwhile.
func TestWhatACommandCannotDoIsSaidAtOnce(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("node/etc/machine-id", "0123456789abcdef0123456789abcdef\n", 0o600)
	f.write("file", "", 0o600)
	must := func(err error) {
		if t.Helper(); err != nil {
			t.Fatal(err)
		}
	}
	boot, err := plugin.BootID()
	must(err)
	another, err := grant.Listen(nodefile.Store{Dir: filepath.Join(f.root, "taken"), BootID: boot})
	must(err)
	defer another.Close()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	defer busy.Close()
	s := newServer(t)
	agent := "agent @state --node n1 --host-root @node --kubeconfig " + kubeconfigOf(t, s.URL) + " --listen " + freeAddress(t) + " "
	for args, want := range map[string]string{
		strings.Replace(agent, "@state", "?", 1) + "--rails 0": `5 find "state folder": there is none`,
		agent + "--node=":                             `7 use flag "--node": the node has no name`,
		agent + "--kubeconfig @none":                  `7 connect to the API server "@none": stat @none: no such file or directory`,
		strings.Replace(agent, "@state", "@file", 1):  `5 prepare state folder "@file/pools": not a directory`,
		agent + "--service-cluster-ip-range=10.96":    `7 read flag "--service-cluster-ip-range": "10.96" is no CIDR of Services`,
		agent + "--listen " + busy.Addr().String():    `5 listen at "` + busy.Addr().String() + `": listen tcp ` + busy.Addr().String() + `: bind: address already in use`,
		strings.Replace(agent, "@state", "@taken", 1): `5 listen at "@taken/pools/_agent": another process listens there`,
		"gc -":                              `7 use command "gc": gc works only on a cluster`,
		"gc - --cluster --interval 999ms":   `7 use option "--interval": 999ms would ask the API server without a pause`,
		"gc - --cluster --kubeconfig @none": `7 connect to the API server "@none": stat @none: no such file or directory`,
		"gc - --cluster --once":             `7 connect to the API server: unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined`,
		"pools - --by rack":                 `7 read flag "--by": got "rack"`,
		"uninstall @file --to @bin":         `5 list records "@file/attachments": open @file/attachments: not a directory`,
	} {
		words := strings.Fields(strings.ReplaceAll(args, "@", f.root+"/"))
		state := func() (string, error) {
			if words[1] == "?" {
				return "", cnierr.New(cnierr.IO, "find", "state folder", "", "there is none")
			}
			return words[1], nil
		}
		cmd := map[string]func() *cobra.Command{
			"agent": func() *cobra.Command { return agentCommand(state) }, "gc": gcCommand, "pools": PoolsCommand,
			"uninstall": func() *cobra.Command { return uninstallCommand(state) },
		}[words[0]]()
		_, err := runs(t, cmd, words[2:]...)
		if got := strings.ReplaceAll(fmt.Sprint(cnierr.CodeOf(err), " ", err), f.root+"/", "@"); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", args, got, want)
		}
	}
	for _, asked := range s.asked {
		t.Errorf("the API server is asked: %s", asked)
	}
}

// TestTheReaperTaintsNodesIfItIsTold has two nodes with dead rails, of which one may have the taint. It sets
// the log of client-go, so no other test runs meanwhile.
func TestTheReaperTaintsNodesIfItIsTold(t *testing.T) {
	for flag, last := range map[string]string{"--rail-taint": "PATCH /api/v1/nodes/n1", "--rail-taint=false": "PATCH /api/v1/nodes/n2/status"} {
		s := newServer(t)
		s.more = map[string]string{group + "railnodes": strings.ReplaceAll(`{"metadata": {"name": "n1", REST}, {"metadata": {"name": "n2", REST}`, "REST",
			`"resourceVersion": "1"}, "status": {"rails": [{"rail": 0, "netdev": "ens1", "state": "DOWN", "faults": ["Down"]}]}`)}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		cmd := gcCommand()
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"--cluster", "--kubeconfig", kubeconfigOf(t, s.URL), "--interval", "1h", "--rails", "1h", flag})
		ended := make(chan error, 1)
		go func() { ended <- cmd.ExecuteContext(ctx) }()
		var asked []string
		for ctx.Err() == nil && !slices.Contains(asked, last) {
			select {
			case one := <-s.heard:
				asked = append(asked, one)
			case <-ctx.Done():
				t.Error(flag, ": it sends\n", strings.Join(asked, "\n"))
			}
		}
		stop()
		if err := <-ended; err != nil || slices.Contains(asked, "PATCH /api/v1/nodes/n1") != (flag == "--rail-taint") {
			t.Errorf("%s: %v, it sends\n%s", flag, err, strings.Join(asked, "\n"))
		}
	}
}

// freeAddress returns an address of the machine that is unused.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestAnAgentServesItsNodeUntilItIsStopped: it reports, writes the CIDRs of the Services for the
// plugins, and answers at its address and its socket. It leaves neither behind. It sets the log of
// client-go, so no other test runs meanwhile.
func TestAnAgentServesItsNodeUntilItIsStopped(t *testing.T) {
	for given, want := range map[string][]string{"": {"10.96.0.0/16", "10.97.0.0/16"}, "10.98.0.0/16": {"10.98.0.0/16"}} {
		s := newServer(t)
		root := t.TempDir()
		err := errors.Join(os.Mkdir(filepath.Join(root, "etc"), 0o700), os.Mkdir(filepath.Join(root, "state"), 0o755), os.Chmod(filepath.Join(root, "state"), 0o755),
			os.WriteFile(filepath.Join(root, "etc/machine-id"), []byte("0123456789abcdef0123456789abcdef\n"), 0o600))
		boot, err2 := plugin.BootID()
		if err = errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		files := nodefile.Store{Dir: filepath.Join(root, "state"), BootID: boot}
		modes := []os.FileMode{0o700, 0o700} // of the state folder, and of the pools
		if given != "" {                     // another program has made the folder of the pools
			modes[0] = 0o755
			if err := errors.Join(os.Mkdir(filepath.Join(files.Dir, "pools"), 0o755), os.Chmod(filepath.Join(files.Dir, "pools"), 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		listen := freeAddress(t)
		cmd := agentCommand(func() (string, error) { return files.Dir, nil })
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		var log bytes.Buffer
		cmd.SetErr(&log)
		cmd.SetArgs([]string{
			"--node", "n1", "--host-root", root, "--kubeconfig", kubeconfigOf(t, s.URL), "--listen", listen, "--" + ServiceRange, given, "--rails", "1ms", "--unused=ens9", "--lldp",
		})
		ended := make(chan error, 1)
		go func() { ended <- cmd.ExecuteContext(ctx) }()
		for asked := ""; asked != "PATCH "+group+"railnodes/n1"; {
			select {
			case asked = <-s.heard:
			case err := <-ended:
				t.Fatal(err, "\n", log.String())
			}
		}
		for text := ""; !strings.Contains(text, `resource="railnodes",verb="patch"} 1`); {
			text = fetch(t, "http://"+listen+"/metrics")
		}
		var cidrs []netip.Prefix
		for len(cidrs) == 0 && ctx.Err() == nil {
			cidrs, _ = files.Services()
		}
		var got []string
		for _, c := range cidrs {
			got = append(got, c.String())
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("with the flag %q, the plugins read %v, want %v", given, got, want)
		}
		socket, err := net.Dial("unix", files.Socket())
		if err != nil {
			t.Error(err)
		} else {
			_ = socket.Close()
		}
		stop()
		if err := <-ended; err != nil || !strings.Contains(log.String(), `msg="the agent was stopped" node=n1`) {
			t.Errorf("stopped: %v, the log is\n%s", err, log.String())
		}
		if odd := strings.Contains(log.String(), "a CIDR of Services is left out"); odd != (given == "") {
			t.Errorf("with the flag %q, the log is\n%s", given, log.String())
		}
		if _, err := net.Dial("tcp", listen); err == nil {
			t.Error("it still listens")
		}
		for i, dir := range []string{files.Dir, filepath.Join(files.Dir, "pools")} {
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != modes[i] {
				t.Errorf("%s is %v, %v", dir, info.Mode(), err)
			}
		}
	}
}
