// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
)

// NodeID returns an identity that no other node of the cluster has, and the host name
// alone. The identity is machine id and host name together, because images are cloned
// with their machine id.
func NodeID() (id, host string, err error) {
	host, err = os.Hostname()
	if err != nil {
		return "", "", cnierr.New(cnierr.IO, "read", "host name", "", "%w", err)
	}
	machine, err := os.ReadFile("/etc/machine-id")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", cnierr.New(cnierr.IO, "read", "/etc/machine-id", "", "%w", err)
	}
	return strings.TrimSpace(string(machine)) + "/" + host, host, nil
}

// BootID returns an id that no other boot of the node has.
func BootID() (string, error) {
	const path = "/proc/sys/kernel/random/boot_id"
	b, err := os.ReadFile(path)
	if err != nil {
		return "", cnierr.New(cnierr.IO, "read", path, "", "%w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// BootTime returns the time since boot, suspend included (CLOCK_BOOTTIME): no
// change of the wall clock shortens a quarantine.
func BootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("plugin: CLOCK_BOOTTIME: %v", err))
	}
	return time.Duration(ts.Nano())
}

// Book returns the leases of the node. reaped is called for attachments with leases that
// were reaped; nil: nothing is called.
func Book(stateDir, bootID string, log *slog.Logger, reaped func(context.Context, ipam.Owner)) *ipam.Book {
	return ipam.New(ipam.Config{Dir: stateDir, BootID: bootID, Now: BootTime, Observe: netns.Observe, Reaped: reaped, Log: log})
}

// Untold returns the error of an ADD with a result that could not be written. The
// runtime then does not know what was added.
func Untold(err error) error {
	return cnierr.New(cnierr.IO, "write result to", "standard output", "check why the runtime closed it; the plugin removes what it added", "%w", err)
}

// OpenLog opens the log of a call: standard error, or the file of the settings, which is
// made with its folder if need be. Beside an error, the log is standard error.
func OpenLog(l settings.Log) (log *slog.Logger, closeLog func(), err error) {
	var w io.Writer = os.Stderr
	closeLog = func() {}
	if l.File != "" {
		f, openErr := trusted.Append(l.File)
		if openErr == nil {
			w, closeLog = f, func() { _ = f.Close() }
		} else {
			err = cnierr.New(cnierr.IO, "open log", l.File, "set log.file of "+conf.SettingsFile+" to a path that can be written, or leave it out", "%w", openErr)
		}
	}
	var level slog.Level
	err = errors.Join(err, level.UnmarshalText([]byte(l.Level)))
	return Log(w, level), closeLog, err
}

// Log returns a log of a call. Its lines have the trace of the call.
func Log(w io.Writer, level slog.Level) *slog.Logger {
	log := slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
	if t := Trace(); t != "" {
		return log.With("trace", t)
	}
	return log
}

// Trace returns TRACEPARENT of the runtime, which libcni passes on: what W3C Trace Context
// defines of it, and "" for anything else.
func Trace() string {
	given := os.Getenv("TRACEPARENT")
	if given == "" {
		return "" // as with most runtimes; a call asks three times
	}
	return regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}`).FindString(given)
}
