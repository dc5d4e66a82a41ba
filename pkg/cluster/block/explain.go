// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"errors"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// Explain gives a code and a hint to the answers of a Store that have none. Other
// errors stay as they are.
func Explain(err error) error {
	var busy *BusyError
	switch {
	case errors.As(err, new(*cnierr.Error)):
	case errors.Is(err, ErrUnknown), errors.As(err, &busy), errors.Is(err, ErrConflict), errors.Is(err, ErrExists), errors.Is(err, ErrNotFound):
		return cnierr.New(cnierr.TryAgain, "ask the API server", "", "check that it answers: kubectl get --raw /readyz", "%w", err)
	}
	return err
}
