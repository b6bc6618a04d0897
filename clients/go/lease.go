package lockkeeper

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// A Lease is the right to a key. A goroutine renews it at a third of its TTL until it is released or lost. Several
// goroutines may use it at once.
type Lease struct {
	claim  *claim
	number int64 // the fencing token
	slot   int

	work, life       context.Context // life is that of the goroutines, and outlives the caller's context
	endWork, endLife func()
	keepers          sync.WaitGroup
	once             sync.Once
	result           error // of Release

	mutex     sync.Mutex
	end, told time.Duration // told is when the work is told, unless a renewal comes first
	why       string        // a renewal would not come first
	lost      error
	released  bool
}

// Lock acquires the key, and waits in line for options.Wait. The caller releases the lease, by a defer. Until then it
// is renewed, even after the end of ctx, because the work may still be about to stop. [Client.WithLock] does both.
//
// Its errors are [ErrLockBusy], [ErrServiceUnavailable], [ErrRequestRefused], [ErrWaitCancelled], or that of ctx. A
// service that does not answer is asked again until 5 seconds after the wait. If ctx ends, at any moment, the claim is
// withdrawn, and what was granted is released, in 2 seconds at most.
func (c *Client) Lock(ctx context.Context, key string, options Options) (*Lease, error) {
	claim, err := c.newClaim(key, options)
	if err == nil && ctx.Err() != nil {
		err = &Error{Kind: ctx.Err(), Key: key, Detail: "nothing was sent"}
	}
	if err != nil {
		return nil, err
	}
	first, err := claim.acquire(ctx)
	if err != nil {
		return nil, err
	}
	l := &Lease{claim: claim, number: first.FencingToken, slot: first.Slot}
	l.hold(first)
	l.work, l.endWork = context.WithCancel(ctx)
	l.life, l.endLife = context.WithCancel(context.Background())
	l.keepers.Add(2)
	go l.renew(l.end - claim.options.TTL/3*2)
	go l.watch()
	return l, nil
}

// TryLock is [Client.Lock] without a wait: [ErrLockBusy] says that another client holds the key.
func (c *Client) TryLock(ctx context.Context, key string, options Options) (*Lease, error) {
	options.Wait = 0
	return c.Lock(ctx, key, options)
}

// WithLock works while it holds the key. It releases the lease afterwards, also if the work panics or ends its
// goroutine, but not at os.Exit and log.Fatal, which run nothing: the lease then ends by its TTL.
//
// The context of the work ends with ctx, and before the lease ends: [Lease.Err] tells the two apart. The error is that
// of the work, or [ErrLeaseLost] if the work was told of a loss, or the lease ended before it, whatever the work
// returned; [Error.Work] has that. If there was no lease, it is that of [Client.Lock], which is as safe to cancel. A
// failed release is no error of the work: it is logged, and the lease ends by its TTL.
func (c *Client) WithLock(ctx context.Context, key string, options Options, work func(context.Context, *Lease) error) (err error) {
	lease, err := c.Lock(ctx, key, options)
	if err != nil {
		return err
	}
	hasReturned := false
	defer func() {
		failed := lease.Release()
		if hasReturned && errors.Is(failed, ErrLeaseLost) {
			lost := *failed.(*Error)
			if !errors.Is(err, context.Canceled) || ctx.Err() != nil {
				lost.Work = err
			} // Else it heard of the loss, which must not look like a cancellation by the caller.
			err = &lost
		} else if failed != nil {
			c.logf("%v; a lease that is left ends by its TTL (fencing token %d)", failed, lease.FencingToken())
		}
	}()
	err = work(lease.Context(), lease)
	hasReturned = true
	return err
}

// Context returns the context for the work. It ends with the context of [Client.Lock], when the lease is lost or
// released, and a tenth of the TTL before the lease ends, 200 ms at least. Its Err looks at the clock, so it is right
// at once after this process was stopped or the machine suspended.
func (l *Lease) Context() context.Context { return workContext{l.work, l} }

type workContext struct {
	context.Context
	lease *Lease
}

func (w workContext) Err() error {
	w.lease.Err()
	return w.Context.Err()
}

// Err returns an error of the kind [ErrLeaseLost] once the lease is lost, or about to end without a renewal.
func (l *Lease) Err() error {
	l.mutex.Lock()
	if l.lost == nil && !l.released && now() >= l.told {
		l.lost = &Error{Kind: ErrLeaseLost, Key: l.claim.key, Detail: "it was not renewed in time: " + l.why}
	}
	lost := l.lost
	l.mutex.Unlock()
	if lost != nil {
		l.endWork()
		l.endLife()
	}
	return lost
}

// Remaining returns the time left without another renewal, 0 if the lease is lost or released.
func (l *Lease) Remaining() time.Duration {
	lost := l.Err()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if lost != nil || l.released {
		return 0
	}
	return l.end - now()
}

// StillMine reports whether the lease lasts for so long, as far as this process knows, even without another renewal.
// Ask it before each step that must not overlap with another client's.
func (l *Lease) StillMine(d time.Duration) bool { return l.Remaining() > d }

// FencingToken returns the number of the lease, above those of all earlier leases of the key. Send it with each write:
// what the key guards refuses a smaller one.
func (l *Lease) FencingToken() int64 { return l.number }

// Key returns the key.
func (l *Lease) Key() string { return l.claim.key }

// Token returns the secret of the lease, which belongs in no log.
func (l *Lease) Token() string { return l.claim.token }

// Slot returns a number from 1 to Options.Slots that no other lease of the key has, or 0 without Options.Slots.
func (l *Lease) Slot() int { return l.slot }

// Release ends the lease, and the context of the work. Later calls return the same. Its errors are [ErrLeaseLost] if
// the lease had ended before, and [ErrServiceUnavailable] or [ErrRequestRefused] if it could not be released within 5
// seconds, and ends by its TTL. It takes no context, because an ended one would leave the lease behind.
func (l *Lease) Release() error {
	l.once.Do(func() {
		lost := l.Err()
		l.mutex.Lock()
		l.released = true
		l.mutex.Unlock()
		l.endWork()
		l.endLife()
		l.keepers.Wait()
		if l.result = lost; lost == nil {
			l.result = l.claim.release(l.number)
		} else { // By the service's clock it may be there still, and the next client in line need not wait.
			l.claim.end(l.number, lastWords)
		}
	})
	return l.result
}

// hold notes how long the lease lasts.
func (l *Lease) hold(g grant) {
	l.end, l.why = g.end, "this process was stopped, or the machine suspended"
	if g.Capped {
		l.why = "the service allows no longer lease of this key (max_hold)"
	}
	ttl := l.claim.options.TTL
	l.told = l.end - shorter(longer(200*time.Millisecond, ttl/10), g.TTL*time.Millisecond/2)
}

// watch tells the work in time. Timers stand still in suspend, so it looks at the clock every second.
func (l *Lease) watch() {
	defer l.keepers.Done()
	for pause := time.Duration(0); sleep(l.life, pause); {
		l.Err()
		l.mutex.Lock()
		pause = longer(time.Millisecond, shorter(l.told-now(), time.Second))
		l.mutex.Unlock()
	}
}

// renew refreshes the lease at a third of its TTL, and repeats what fails until the work is told. A refresh names the
// fencing token, so it can touch no later lease. A capped lease is refreshed only to hear of its loss.
func (l *Lease) renew(next time.Duration) {
	defer l.keepers.Done()
	for failures := 0; sleep(l.life, longer(0, next-now())); l.Err() {
		sent := now()
		l.mutex.Lock()
		left := l.told - sent
		l.mutex.Unlock()
		got := l.claim.granted(l.life, longer(50*time.Millisecond, shorter(left/2, 10*time.Second)), http.MethodPut,
			l.claim.path+"/refresh", map[string]any{"fencing_token": l.number})
		pause := shorter(backoff(failures, got.err), longer(20*time.Millisecond, left/8))
		l.mutex.Lock()
		switch {
		case errors.Is(got.err, ErrLeaseLost):
			l.lost = got.err
		case got.err != nil:
			l.why, failures, next = got.err.Error(), failures+1, now()+pause
		case now() < l.told: // Else it is too late: the work is told.
			l.hold(got.grant)
			failures, next = 0, sent+l.claim.options.TTL/3
		}
		l.mutex.Unlock()
	}
}
