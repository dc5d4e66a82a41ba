// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plugin

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
)

// The log has the lines of its level and above, each with the trace that the runtime gives, if
// it is one.
func TestTheLogIsAsTheSettingsSay(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, tt := range []struct{ level, given, want string }{
		{"debug", trace, "DEBUG INFO WARN ERROR"}, {"info", "", "INFO WARN ERROR"}, {"warn", "x" + trace, "WARN ERROR"}, {"error", trace + "-x", "ERROR"},
	} {
		t.Setenv("TRACEPARENT", tt.given)
		file := filepath.Join(t.TempDir(), "made", "log")
		log, closeLog, err := OpenLog(settings.Log{File: file, Level: tt.level})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			log.Log(context.Background(), l, "text")
		}
		closeLog()
		log.Error("text") // behind the end
		b, err := os.ReadFile(file)
		var got []string
		for _, line := range regexp.MustCompile(`level=(\w+) msg=text(.*)\n`).FindAllStringSubmatch(string(b), -1) {
			if got = append(got, line[1]); (line[2] == " trace="+trace) != strings.HasPrefix(tt.given, trace) {
				t.Errorf("with trace %q: %s", tt.given, line[0])
			}
		}
		if strings.Join(got, " ") != tt.want || err != nil {
			t.Errorf("%s: the log has %s, %v; want lines of %s", tt.level, b, err, tt.want)
		}
	}
	if _, _, err := OpenLog(settings.Log{Level: "loud"}); err == nil {
		t.Error("a level that there is not is one")
	}
	log, closeLog, err := OpenLog(settings.Log{File: t.TempDir(), Level: "error"})
	closeLog()
	if cnierr.CodeOf(err) != cnierr.IO || log.Enabled(context.Background(), slog.LevelWarn) || !log.Enabled(context.Background(), slog.LevelError) {
		t.Errorf("a log that cannot be written: %v; want an error, and standard error with the same level", err)
	}
}

// Images are cloned with their machine id, and machines of several clusters have one name.
func TestANodeIsKnownByItsMachineAndItsName(t *testing.T) {
	t.Parallel()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	machine, _ := os.ReadFile("/etc/machine-id") // a container may have none
	if id, host, err := NodeID(); id != strings.TrimSpace(string(machine))+"/"+name || host != name || err != nil {
		t.Errorf("got %q, %q, %v", id, host, err)
	}
	if boot, err := BootID(); !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(boot) || err != nil {
		t.Errorf("got %q, %v", boot, err)
	}
}
