// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package record

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

func TestASaveThatFailsKeepsTheRecordOfBefore(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	locked(t, s, func() {
		if err := s.Save(example()); err != nil {
			t.Fatal(err)
		}
		changed := example()
		changed.Network = "other"
		changed.Netns = strings.Repeat("x", trusted.MaxSize)
		if err := s.Save(changed); err == nil {
			t.Error("Save of a record that is too long: no error")
		}
		got, err := s.Load(conf.Attachment{ContainerID: "c1", IfName: "net1"})
		if err != nil || got.Network != "rail" || len(got.Plan.Ops) == 0 {
			t.Errorf("Load() = network %q, %d operations, %v; want the record of before", got.Network, len(got.Plan.Ops), err)
		}
	})
}

// behind makes a link in the store to a file that is not of the store, which must
// stay as it is.
func behind(t *testing.T, link string) {
	t.Helper()
	legit := filepath.Join(t.TempDir(), "legit")
	if err := os.WriteFile(legit, []byte("legit"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(legit, link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if b, err := os.ReadFile(legit); err != nil || string(b) != "legit" {
			t.Errorf("behind the link: %q, %v", b, err)
		}
	})
}

func TestNothingIsWrittenThroughALink(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	behind(t, s.path(conf.Attachment{ContainerID: "c1", IfName: "net1"}))
	locked(t, s, func() {
		if err := s.Save(example()); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := s.Load(conf.Attachment{ContainerID: "c1", IfName: "net1"}); err != nil {
		t.Error(err)
	}
}

func TestNothingIsReadOrLockedThroughALink(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	behind(t, s.path(conf.Attachment{ContainerID: "c1", IfName: "net1"}))
	behind(t, filepath.Join(s.folder("c2"), lockName))
	if _, err := s.Load(conf.Attachment{ContainerID: "c1", IfName: "net1"}); err == nil {
		t.Error("Load through a link: no error")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := s.Lock(ctx, "c2"); err == nil || ctx.Err() != nil {
		t.Errorf("Lock of a link: %v", err)
	}
}

func TestARecordThatCouldNotBeReadIsNotWritten(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	locked(t, s, func() {
		r := example()
		r.Config = []byte(`{"note":"` + strings.Repeat("<", trusted.MaxSize/4) + `"}`) // JSON escapes it
		if err := s.Save(r); cnierr.CodeOf(err) != cnierr.BadConfig {
			t.Errorf("Save: %v, want code %d", err, cnierr.BadConfig)
		}
		if _, err := s.Load(conf.Attachment{ContainerID: "c1", IfName: "net1"}); !errors.Is(err, ErrNotExist) {
			t.Errorf("Load: %v, want no record", err)
		}
	})
}

func TestWhatIsNoRecordIsUnreadable(t *testing.T) {
	t.Parallel()
	s := Store{Dir: t.TempDir(), BootID: "boot-1"}
	behind(t, s.path(conf.Attachment{ContainerID: "c1", IfName: "link"}))
	if err := os.WriteFile(s.path(conf.Attachment{ContainerID: "c1", IfName: "long"}), make([]byte, trusted.MaxSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ifName := range []conf.LinkName{"link", "long"} {
		if _, err := s.Load(conf.Attachment{ContainerID: "c1", IfName: ifName}); cnierr.CodeOf(err) != cnierr.Unreadable {
			t.Errorf("%s: %v, want code %d: DEL would not come to an end", ifName, err, cnierr.Unreadable)
		}
	}
}
