// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package heal

import (
	"errors"
	"os"
	"testing"
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
