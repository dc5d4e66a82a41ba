// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package heal

import (
	"errors"
	"os"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
)

func TestNextEndsWhenTheListenerIsClosed(t *testing.T) {
	t.Parallel()
	l, err := listenNetwork()
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error)
	go func() {
		_, _, err := l.next()
		waits <- err
	}()
	l.close()
	_, _, after := l.next()
	for _, err := range []error{<-waits, after} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("next: %v, want os.ErrClosed", err)
		}
	}
}

func TestANamespaceThatIsGoneHasNoNumber(t *testing.T) {
	t.Parallel()
	if n, err := new(Watcher).Number(t.Context(), "/run/netns/gone", netns.ID{Dev: 4, Ino: 1}); !errors.Is(err, netns.ErrGone) {
		t.Errorf("got %d, %v", n, err)
	}
}
