//go:build go1.20

package lockkeeper

import "context"

// withCause makes a context whose end has a cause, for context.Cause.
func withCause(parent context.Context) (context.Context, func(error)) {
	ctx, end := context.WithCancelCause(parent)
	return ctx, end
}
