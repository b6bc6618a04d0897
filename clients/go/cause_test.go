//go:build go1.20

package lockkeeper

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestTheCauseOfALossIsItsError(t *testing.T) {
	err := forced(t).WithLock(background, "a", Options{TTL: 600 * time.Millisecond}, func(ctx context.Context, lease *Lease) error {
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		<-child.Done()
		if cause := context.Cause(child); !errors.Is(cause, ErrLeaseLost) || cause != lease.Err() {
			t.Error(cause)
		}
		return context.Cause(ctx)
	})
	if !errors.Is(err, ErrLeaseLost) {
		t.Error(err)
	}
	_, client := startFake(t, nil)
	ctx, cancel := context.WithCancelCause(background)
	own := errors.New("own")
	client.WithLock(ctx, "a", Options{}, func(ctx context.Context, _ *Lease) error {
		cancel(own)
		<-ctx.Done()
		if cause := context.Cause(ctx); cause != own {
			t.Error(cause)
		}
		return nil
	})
}
