//go:build !go1.20

package lockkeeper

import "context"

// withCause makes a context. This version of Go has no context.Cause.
func withCause(parent context.Context) (context.Context, func(error)) {
	ctx, end := context.WithCancel(parent)
	return ctx, func(error) { end() }
}
