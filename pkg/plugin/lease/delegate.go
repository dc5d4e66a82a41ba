// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Plugins leases from another IPAM plugin (SPEC.md section 4), which gets the environment of
// the current call, and the whole configuration on standard input. An error of the plugin
// keeps its code, message and hint.
type Plugins struct {
	Path    []string  // CNI_PATH
	Environ []string  // of this process, the CNI_ variables of the call included
	Stderr  io.Writer // where plugins print what is not a result
	// Guard returns a file that a plugin that works for a container inherits, so that the next
	// call for the container waits for it even if we are killed: an address that it leases
	// after DEL would be lost. Its contract is that of record.Store.
	Guard func(conf.ContainerID) (*os.File, error)
}

const pluginHint = "see that plugin's documentation and its configuration in ipam"

// Acquire implements source. Such a plugin gives addresses to one interface.
func (d Plugins) Acquire(ctx context.Context, req conf.Request, rails []plan.Rail) ([]plan.Rail, error) {
	const op = "lease addresses from IPAM plugin"
	out, err := d.run(ctx, about(op, "ADD", req))
	if err != nil {
		return nil, err
	}
	l, err := plan.ReadLease(out, req.CNIVersion)
	if err != nil {
		return nil, cnierr.New(cnierr.Decode, "read result of IPAM plugin", req.IPAM.Type, pluginHint, "%w", err)
	}
	// The child cannot hear its own master, so a probe would not find a conflict.
	for _, a := range l.Addresses {
		if req.Probe.Conflict.Mode == conf.Require && slices.Contains(rails[0].Facts.HostAddrs, a.Prefix.Addr()) {
			return nil, cnierr.New(cnierr.AddressTaken, op, req.IPAM.Type,
				"exclude the addresses of the nodes in the configuration of that plugin", "the node itself has %s", a.Prefix.Addr())
		}
	}
	return []plan.Rail{{Rail: rails[0].Rail, Facts: rails[0].Facts, Lease: l}}, nil
}

// Reject implements source. The protocol has no way to ask for another
// address.
func (Plugins) Reject(_ context.Context, req conf.Request, _ []plan.Rail, _ []plan.Target) (bool, error) {
	return false, cnierr.New(cnierr.AddressTaken, "lease another address from IPAM plugin", req.IPAM.Type,
		"find the machine with the MAC in the message, or exclude the address in the configuration of that plugin",
		"the CNI protocol cannot request another address")
}

// Release implements source. It runs DEL with the configuration of the record.
func (d Plugins) Release(ctx context.Context, rec record.Record) error {
	_, err := d.run(ctx, call{
		op: "release addresses of IPAM plugin", plugin: rec.IPAM, verb: "DEL", stdin: rec.Config,
		id: rec.ContainerID, ifName: rec.IfName, netns: rec.Netns, pod: rec.Pod,
	})
	return err
}

// ErrNoCheck says that a plugin does not implement CHECK.
var ErrNoCheck = errors.New("the plugin cannot check")

// Check forwards a CHECK to the plugin, with the result of ADD. The error has ErrNoCheck
// if the plugin does not implement CHECK, as whereabouts does not.
func (d Plugins) Check(ctx context.Context, req conf.Request) error {
	const op = "check leases of IPAM plugin"
	if !Is(req.IPAM.Type) {
		return cnierr.New(cnierr.Damaged, op, req.IPAM.Type,
			"delete the pod: the network's ipam.type has changed since ADD", "it gave the pod no addresses")
	}
	_, err := d.run(ctx, about(op, "CHECK", req))
	return err
}

// GC forwards a GC to the plugin (SPEC.md, "GC").
func (d Plugins) GC(ctx context.Context, gc conf.GC) error {
	_, err := d.run(ctx, call{op: "collect leases of IPAM plugin", plugin: gc.IPAM, verb: "GC", stdin: []byte(gc.Raw)})
	return err
}

// Status forwards a STATUS to the plugin. An error with a code of STATUS keeps
// its code. Any other error becomes cnierr.NotAvailable: ADD cannot be served.
func (d Plugins) Status(ctx context.Context, req conf.Request) error {
	_, err := d.run(ctx, call{op: "ask status of IPAM plugin", plugin: req.IPAM.Type, verb: "STATUS", stdin: req.IPAM.Raw})
	if code := cnierr.CodeOf(err); err == nil || code == cnierr.NotAvailable || code == cnierr.Limited {
		return err
	}
	return cnierr.Unavailable(err)
}

// Installed returns an error if an ipam.type needs a plugin that cannot be
// found.
func (d Plugins) Installed(ipamType string) error {
	if !Is(ipamType) {
		return nil
	}
	_, err := d.find(ipamType)
	return err
}

// Is says whether addresses of an ipam.type come from another plugin. The interface must
// then be there, up, before Acquire and until after Release, because roce cannot know which
// plugins need it, as dhcp does.
func Is(ipamType string) bool { return ipamType != "" && ipamType != conf.PoolType }

// call is one call of a plugin. GC and STATUS have no attachment.
type call struct {
	op     string
	plugin string
	verb   string
	stdin  []byte
	id     conf.ContainerID
	ifName conf.LinkName
	netns  string
	pod    conf.Pod
}

// about returns a call about the attachment of a request.
func about(op, verb string, req conf.Request) call {
	return call{op, req.IPAM.Type, verb, req.IPAM.Raw, req.ContainerID, req.IfName, req.Netns, req.Pod}
}

// environ returns the environment of the call: ours, with the variables of the
// call instead of ours. A GC has no CNI_ARGS: then they name the recorded pod, because
// without a pod whereabouts releases nothing and reports success.
func (c call) environ(ours []string) []string {
	out := append(slices.Clone(ours), "CNI_COMMAND="+c.verb)
	if c.id == "" {
		return out
	}
	named := func(v string) bool { return strings.HasPrefix(v, "CNI_ARGS=") && v != "CNI_ARGS=" }
	if c.pod.Name != "" && !slices.ContainsFunc(ours, named) {
		out = append(out, fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s;K8S_POD_INFRA_CONTAINER_ID=%s",
			c.pod.Namespace, c.pod.Name, c.pod.UID, c.id))
	}
	return append(out, "CNI_CONTAINERID="+string(c.id), "CNI_IFNAME="+string(c.ifName), "CNI_NETNS="+c.netns)
}

// run runs a plugin. The plugin has two thirds of the time that is left to the call. The
// rest is for undoing what the call did, because the plugin may never answer.
func (d Plugins) run(ctx context.Context, c call) ([]byte, error) {
	began := time.Now()
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, began.Add(end.Sub(began)*2/3))
		defer cancel()
	}
	path, err := d.find(c.plugin)
	if err != nil {
		return nil, err
	}
	p := program{path: path, environ: c.environ(d.Environ), stdin: c.stdin, stderr: d.Stderr}
	if c.id != "" {
		guard, err := d.Guard(c.id)
		if err != nil {
			return nil, err
		}
		defer guard.Close()
		p.inherit = []*os.File{guard}
	}
	out, err := p.run(ctx)
	if err != nil {
		return nil, pluginError(c, err, time.Since(began))
	}
	return out, nil
}

// ErrNotInstalled says that a plugin is in no folder of CNI_PATH.
var ErrNotInstalled = errors.New("it is in no folder of CNI_PATH")

// find returns the path of a plugin. It refuses a name with a slash: that could
// lead to any program. It refuses our own program: we would wait for ourselves.
func (d Plugins) find(plugin string) (string, error) {
	if !strings.Contains(plugin, "/") && plugin != conf.PluginType {
		for _, dir := range d.Path {
			path := dir + "/" + plugin
			if f, err := os.Stat(path); err == nil && f.Mode().IsRegular() {
				return path, nil
			}
		}
	}
	return "", cnierr.New(cnierr.BadConfig, "find IPAM plugin", plugin,
		"install it next to roce, or set ipam.type to "+conf.PoolType, "%w, which has %q", ErrNotInstalled, d.Path)
}

// pluginError converts an error of a plugin that ran for some time to our form.
func pluginError(c call, err error, ran time.Duration) error {
	var said *types.Error
	switch {
	case errors.As(err, &said):
		e := &cnierr.Error{Code: cnierr.Code(said.Code), Op: c.op, Subject: c.plugin, Hint: said.Details, Err: errors.New(said.Msg)}
		if e.Code == 0 {
			e.Code = cnierr.IO
		}
		if e.Hint == "" {
			e.Hint = pluginHint
		}
		// The specification has no code for that: one that does not know the verb says BadEnv.
		if c.verb == "CHECK" && (e.Code == cnierr.BadEnv || strings.Contains(said.Msg, "not implement")) {
			e.Err = fmt.Errorf("%w: %s", ErrNoCheck, said.Msg)
		}
		return e
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return cnierr.New(cnierr.TryAgain, c.op, c.plugin,
			"check what the plugin waits for: its daemon, its store or, as whereabouts does, the API server; the runtime tries again automatically",
			"its %s did not end in %v: %w", c.verb, ran.Round(time.Second), err)
	}
	return cnierr.New(cnierr.IO, c.op, c.plugin, "run the plugin by hand: it did not answer as the CNI specification says", "%w", err)
}

const (
	// busyTries and busyPause are for a program that is being installed.
	busyTries = 10
	busyPause = 100 * time.Millisecond
	// pipeDelay is how long the children of a program may keep its output open
	// after it ended.
	pipeDelay = time.Second
	// maxOutput is how many bytes a program may print on each of its outputs.
	maxOutput = 1 << 20
	// maxSaid is how many bytes of a program's output an error shows.
	maxSaid = 300
)

// ErrFlood says that a program printed more than maxOutput.
var ErrFlood = errors.New("it printed more than 1 MiB, and was stopped")

// program is a CNI plugin that is to be run.
type program struct {
	path    string
	environ []string
	stdin   []byte
	stderr  io.Writer
	inherit []*os.File
}

// run runs the plugin and returns its output. The error is the *types.Error
// that the plugin printed, the context's, or one of os/exec. The plugin and its
// children end with the context.
func (p program) run(ctx context.Context) ([]byte, error) {
	for try := 1; ; try++ {
		out, err := p.once(ctx)
		if !errors.Is(err, unix.ETXTBSY) || try == busyTries {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(busyPause):
		}
	}
}

func (p program) once(ctx context.Context) ([]byte, error) {
	var stdout, stderr output
	cmd := exec.CommandContext(ctx, p.path) //nolint:gosec // a plugin of CNI_PATH, which the runtime chooses
	cmd.Env, cmd.Stdin, cmd.ExtraFiles = p.environ, bytes.NewReader(p.stdin), p.inherit
	cmd.Stdout, cmd.Stderr = &stdout, io.MultiWriter(p.stderr, &stderr)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		if err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL); !errors.Is(err, unix.ESRCH) {
			return err
		}
		return os.ErrProcessDone
	}
	cmd.WaitDelay = pipeDelay
	err := cmd.Run()
	var exit *exec.ExitError
	var said types.Error
	switch {
	case stdout.flood || stderr.flood:
		return nil, fmt.Errorf("%w: %q", ErrFlood, head(append(stdout.printed, stderr.printed...)))
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // it ended well, with its output open
		return stdout.printed, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w; the last that it printed is %q", ctx.Err(), tail(append(stdout.printed, stderr.printed...)))
	case !errors.As(err, &exit):
		return nil, err
	case json.Unmarshal(stdout.printed, &said) == nil && (said.Msg != "" || said.Code != 0):
		return nil, &said
	}
	return nil, fmt.Errorf("%w; it printed %q", err, head(append(stdout.printed, stderr.printed...)))
}

// output is what a program printed. When that is too much, Write refuses the rest: the pipe
// closes, and the next write of the program ends it. Without a limit one that prints in a
// loop would take the memory of the node.
type output struct {
	printed []byte
	flood   bool
}

func (o *output) Write(b []byte) (int, error) {
	if o.flood = o.flood || len(o.printed)+len(b) > maxOutput; o.flood {
		return 0, ErrFlood
	}
	o.printed = append(o.printed, b...)
	return len(b), nil
}

func head(b []byte) []byte { return bytes.TrimSpace(b[:min(len(b), maxSaid)]) }

func tail(b []byte) []byte { return bytes.TrimSpace(b[max(0, len(b)-maxSaid):]) }
