package lockkeeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	superseded = 3 // answers in a row, after which another program counts as a user of the token

	slice     = 20 * time.Second       // the longest wait of one request; a longer wait repeats it in the same place
	lookAgain = 250 * time.Millisecond // the least time between two requests that are answered with a no
	lastWords = 2 * time.Second        // for what may be left of a claim
)

// Options say which lease to acquire. The zero value is an exclusive lease, without a wait.
type Options struct {
	TTL    time.Duration // how long the lease lasts if this process dies; 30 seconds if 0
	Wait   time.Duration // how long to wait in line; Forever is allowed
	Slots  int           // share the key with so many leases in all, which have the slots 1 to Slots
	Units  int           // how many of the slots the lease takes; 1 if 0
	Shared bool          // share the key with all who share it, as readers do
	Owner  string        // the name of the holder, shown to others; that of the client if empty

	// OnWait, if it is set, is called a second after a wait in line has begun, and then once a minute, in a goroutine of its
	// own. The API key needs the permission read.
	OnWait func(Wait)
}

// A claim is a token's wish for a key. All its requests have this token, so a repeat gets the lease or the place in
// line that it has. The next claim has another token: nothing that is late can touch it.
type claim struct {
	client  *Client
	keys    wanted
	token   string
	options Options
}

// A grant says that a token has a lease, or several.
type grant struct {
	keyGrant            // of one key
	Leases   []keyGrant // of several
	Token    string
	TTL      time.Duration `json:"ttl_ms"` // of several the least
	Waited   time.Duration `json:"waited_ms"`
	numbers  map[string]int64
	slots    map[string]int
	capped   []string      // the keys whose max_hold has shortened the TTL
	end      time.Duration // One can rely on it until then.
	err      error         // It was not granted.
}

func (c *Client) newClaim(keys wanted, options Options) *claim {
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		panic(err) // as newer versions of Go do: no token may be guessed
	}
	if options.TTL == 0 {
		options.TTL = 30 * time.Second
	}
	options.Owner = setting(options.Owner, c.owner)
	return &claim{c, keys, c.prefix + hex.EncodeToString(random), options}
}

// acquire repeats the request until it is granted, refused, or the wait and the patience are over. After an error the
// claim has nothing at the service, as far as the service can be reached; what takes longer goes on behind the caller.
func (c *claim) acquire(ctx context.Context) (grant, error) {
	options := map[string]any{"owner": c.options.Owner, "shared": c.options.Shared}
	if c.options.Slots != 0 {
		options["slots"] = c.options.Slots
	}
	if c.options.Units != 0 {
		options["units"] = c.options.Units
	}
	if c.keys.isSeveral() { // Each has a share of its own.
		delete(options, "shared")
	}
	open, abort := context.WithCancel(context.Background()) // After the end of ctx a request is heard out.
	until := now() + shorter(longer(0, c.options.Wait), Forever-now()-2*grace)
	watch, served := context.WithCancel(ctx)
	defer served()
	if c.options.OnWait != nil && c.options.Wait > 0 {
		go c.report(watch)
	}
	var asked chan grant // of the open request, if there is one
	isDoubtful := false  // A request whose outcome is unknown may have been granted.
	away := absence{limits: c.client.limits}
	for failures, overtaken := 0, 0; ctx.Err() == nil; failures++ {
		sent := now()
		wait := longer(0, shorter(shorter(until, away.end(Forever)-grace)-sent, slice))
		options["wait_ms"] = wait.Milliseconds()
		asked = make(chan grant, 1)
		go func() { asked <- c.granted(open, wait+patience(until+grace-sent-wait), c.keys.acquire(options), nil) }()
		var got grant
		select {
		case got = <-asked:
			asked = nil
		case <-ctx.Done():
			continue
		}
		if got.err == nil && got.end-now() >= got.TTL/2 {
			abort()
			return got, nil
		} else if got.err == nil { // Asked again, the lease lasts longer.
			got.err = &Error{Kind: ErrServiceUnavailable, Key: c.keys.first(), OutcomeUnknown: true,
				Detail: "the answer came too late for its TTL: it was slow, or this process was suspended"}
		}
		e := got.err.(*Error)
		away.notes(e, sent, wait, now())
		isOver, pause := now() >= until, longer(e.pause, backoff(failures))
		// A no is definite, whatever happened before, unless an earlier request named a lease. Of several keys a no leaves
		// what an earlier request has got.
		isDoubtful = (!e.isNo() || c.keys.isSeveral()) && isDoubtful || !e.isNo() && e.OutcomeUnknown || options["fencing_token"] != nil
		if overtaken++; e.Code != "superseded" {
			overtaken = 0
		} else if overtaken == superseded {
			e.Kind = ErrWaitCancelled
		}
		if e.Kind == ErrLeaseLost { // the one that was named
			delete(options, "fencing_token")
			e.Kind = ErrServiceUnavailable
		}
		// An earlier request of this claim has begun a lease that a repeat does not get: replace it. No claim of several does.
		if other := e.another(); other != 0 && c.keys.isSeveral() {
			c.endOthers(e)
		} else if other != 0 {
			options["fencing_token"] = other
		}
		isFull := e.Status == http.StatusTooManyRequests && e.isNo() // the line, or the quota
		end := until + grace
		if away.is {
			end = away.end(until)
		} else if isFull {
			end = until
		}
		switch {
		case e.Kind == ErrLockBusy && !isFull && !isOver: // The service cut the wait.
			failures, pause = 0, longer(0, sent+lookAgain-now())
		case e.Kind != ErrServiceUnavailable && !isFull || now() >= end:
			if e.OutcomeUnknown = isDoubtful; isDoubtful {
				c.client.behind(func() { c.leave(nil) })
			}
			if e.Kind == ErrServiceUnavailable {
				e.Detail = fmt.Sprintf("%s was not acquired: %s", quoted(c.keys.names), e.Detail)
			}
			abort()
			return grant{}, e
		default:
			if pause = shorter(pause, end-now()); away.isDue(now()) {
				c.client.warn("waiting %sfor %s, retrying: %s", more(until-now()), quoted(c.keys.names), e.Detail)
			}
		}
		sleep(ctx, pause)
	}
	c.client.behind(func() {
		defer abort()
		if asked != nil || isDoubtful {
			c.leave(asked)
		} else {
			c.end(nil, lastWords) // the place in line, which the service keeps for a moment
		}
	})
	return grant{}, &Error{Kind: ctx.Err(), Key: c.keys.first(),
		Detail: fmt.Sprintf("the claim on %s was given up; nothing is held", quoted(c.keys.names))}
}

// more says for how long a wait goes on, if it has an end.
func more(left time.Duration) string {
	if left < time.Second || left > Forever/2 {
		return ""
	}
	return fmt.Sprintf("%d s more ", left/time.Second)
}

// granted sends a request that is answered by a grant of this claim, with these numbers if there are any.
func (c *claim) granted(ctx context.Context, within time.Duration, ask request, numbers map[string]int64) (g grant) {
	ask.options["ttl_ms"], ask.token = c.options.TTL.Milliseconds(), c.token
	sent := now()
	g.err = c.named(c.client.send(ctx, within, ask, &g, func() bool { return g.Token == c.token && g.of(c.keys, numbers) != nil }))
	g.numbers, g.slots = map[string]int64{}, map[string]int{}
	for _, one := range g.of(c.keys, numbers) {
		if g.numbers[one.Key], g.slots[one.Key] = one.FencingToken, one.Slot; one.Capped {
			g.capped = append(g.capped, one.Key)
		}
	}
	g.TTL *= time.Millisecond
	// Counted from the sending: the service's own end is later, by the time on the way.
	g.end = sent + shorter(g.Waited*time.Millisecond, now()-sent) + g.TTL
	return g
}

// named gives an error about several keys their names.
func (c *claim) named(err error) error {
	if e, hasFailed := err.(*Error); hasFailed && c.keys.isSeveral() {
		if e.name = quoted(c.keys.names); e.lost != nil {
			e.name = quoted(e.lost)
		}
	}
	return err
}

// leave gives up the lease and the place in line that the token may have, also by a request that is still on its
// way: it hears out the open request, if there is one, and repeats the release until one comes after the grant.
func (c *claim) leave(asked <-chan grant) {
	for until, isHeard := now()+lastWords, false; ; {
		err := c.end(nil, longer(lookAgain, until-now()))
		if err == nil && asked == nil || isHeard && errors.Is(err, ErrLeaseLost) {
			return
		}
		if now() >= until {
			if !errors.Is(err, ErrLeaseLost) {
				c.client.warn("%s is not released; the lease ends by its TTL of %v", quoted(c.keys.names), c.options.TTL)
			}
			return
		}
		select {
		case got := <-asked:
			e, isAnswered := got.err.(*Error)
			isNo := isAnswered && e.isNo()
			if isNo && !c.keys.isSeveral() { // Of several keys an earlier request may have got some.
				return
			}
			asked, isHeard = nil, got.err == nil || isNo
		case <-time.After(lookAgain):
		}
	}
}

// end releases the leases with these fencing tokens, or without any whatever the token has.
func (c *claim) end(numbers map[string]int64, within time.Duration) error {
	ask := c.keys.release(numbers)
	ask.token = c.token
	err := c.named(c.client.send(context.Background(), within, ask, nil, nil))
	if e, hasFailed := err.(*Error); hasFailed {
		c.endOthers(e)
	}
	return err
}

// endOthers releases leases that a late request of this claim has begun: nobody knows of them.
func (c *claim) endOthers(e *Error) {
	for _, one := range e.others {
		if one.Number != 0 {
			key := wanted{names: []string{setting(one.Key, c.keys.first())}}
			ask := key.release(map[string]int64{key.first(): one.Number})
			ask.token = c.token
			c.client.send(context.Background(), lastWords, ask, nil, nil)
		}
	}
}

// another is the number of the lease that the token has, if it is not the one that the request is about, or 0.
func (e *Error) another() (number int64) {
	for _, one := range e.others {
		if one.Number != 0 {
			number = one.Number
		}
	}
	return number
}

// warn tells of a release that has failed.
func (c *claim) warn(numbers map[string]int64, err error) {
	told := []string{}
	for _, name := range c.keys.names {
		told = append(told, fmt.Sprint(numbers[name]))
	}
	c.client.warn("%s is not released; the lease ends by its TTL (fencing token %s): %s", quoted(c.keys.names),
		strings.Join(told, ", "), err.(*Error).text())
}

// release releases the leases with these fencing tokens, with repeats.
func (c *claim) release(numbers map[string]int64) error {
	isDoubtful := false
	return c.client.insist(context.Background(), func(within time.Duration) error {
		err := c.end(numbers, within)
		if isDoubtful && errors.Is(err, ErrLeaseLost) {
			return nil // An earlier request, whose answer was lost, has released it.
		}
		e, hasFailed := err.(*Error)
		isDoubtful = isDoubtful || hasFailed && e.OutcomeUnknown
		return err
	})
}

// A Lease is the right to a key, or to several. A goroutine renews it at a third of its TTL until it is released or lost. Several
// goroutines may use it at once.
type Lease struct {
	claim *claim
	first grant // for what no renewal changes

	work, life context.Context // life ends with the lease, later than the caller's context
	endWork    func(cause error)
	endLife    func()
	once       sync.Once
	result     error // of Release

	mutex     sync.Mutex
	end, told time.Duration // told is when the work is told, unless a renewal comes first
	why       string        // a renewal would not come first
	capped    []string      // the keys that are the reason of that
	lost      error
}

// Lock acquires the key, and waits in line for options.Wait. The caller releases the lease, by a defer. Until then it
// is renewed, even after the end of ctx, because the work may still be about to stop. [Client.WithLock] does both.
//
// Its errors are [ErrLockBusy], [ErrServiceUnavailable], [ErrRequestRefused], [ErrWaitCancelled], or that of ctx. A claim
// that never reached the service gives up when its wait is over, after 60 seconds at most, and after 5 without a wait. One
// that stood in line waits as long as it was told. If ctx ends, at any moment, Lock returns within a quarter of a second;
// what was granted is released, if necessary behind the caller: see [Client.Close].
func (c *Client) Lock(ctx context.Context, key string, options Options) (*Lease, error) {
	return c.lock(ctx, wanted{names: []string{key}}, options)
}

func (c *Client) lock(ctx context.Context, keys wanted, options Options) (*Lease, error) {
	if ctx.Err() != nil {
		return nil, &Error{Kind: ctx.Err(), Key: keys.first(), Detail: "nothing was sent for " + quoted(keys.names)}
	}
	if c == nil || c.http == nil {
		return nil, c.send(ctx, 0, request{key: keys.first()}, nil, nil)
	}
	if err := keys.wrong(options); err != nil {
		return nil, err
	}
	claim := c.newClaim(keys, options)
	first, err := claim.acquire(ctx)
	if err != nil {
		return nil, err
	}
	l := &Lease{claim: claim, first: first}
	l.hold(first)
	l.work, l.endWork = withCause(ctx)
	l.life, l.endLife = context.WithCancel(context.Background())
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
func (c *Client) WithLock(ctx context.Context, key string, options Options, work func(context.Context, *Lease) error) error {
	return with(ctx, work, func() (*Lease, error) { return c.Lock(ctx, key, options) })
}

func with(ctx context.Context, work func(context.Context, *Lease) error, lock func() (*Lease, error)) (err error) {
	lease, err := lock()
	if err != nil {
		return err
	}
	if lease.Err() != nil { // This process may have been suspended since the grant.
		lost := *lease.Release().(*Error)
		lost.hasNotBegun = true
		return &lost
	}
	hasReturned := false
	defer func() {
		// A caller does not wait for what it has given up. A success is one only if the lease lasted.
		failed := lease.giveBack(hasReturned && err != nil && ctx.Err() != nil)
		if hasReturned && errors.Is(failed, ErrLeaseLost) {
			lost := *failed.(*Error)
			if !errors.Is(err, context.Canceled) || ctx.Err() != nil {
				lost.Work = err
			} // Else it heard of the loss, which must not look like a cancellation by the caller.
			err = &lost
		} else if failed != nil {
			lease.claim.warn(lease.first.numbers, failed)
		}
	}()
	err = work(lease.Context(), lease)
	hasReturned = true
	return err
}

// Context returns the context for the work. It ends with the context of [Client.Lock], when the lease is lost or
// released, and a tenth of the TTL before the lease ends, 200 ms at least. Its Err looks at the clock, so it is right
// at once after this process was stopped or the machine suspended. After a loss context.Cause returns the error of
// [Lease.Err].
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
	defer l.mutex.Unlock()
	if l.lost == nil && l.life.Err() == nil && now() >= l.told {
		e := &Error{Kind: ErrLeaseLost, Key: l.claim.keys.first(), Detail: "it could not be renewed in time: " + l.why, lost: l.capped}
		if l.capped != nil {
			e.Key = l.capped[0]
		}
		l.lost = l.claim.named(e)
	}
	if l.lost != nil {
		l.endWork(l.lost)
		l.endLife()
	}
	return l.lost
}

// Remaining returns the time left without another renewal, 0 if the lease is lost or released.
func (l *Lease) Remaining() time.Duration {
	if l.Err(); l.life.Err() != nil {
		return 0
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return longer(0, l.end-now())
}

// StillMine reports whether the lease lasts for so long, as far as this process knows, even without another renewal.
// Ask it before each step that must not overlap with another client's.
func (l *Lease) StillMine(d time.Duration) bool { return l.Remaining() > d }

// FencingToken returns the number of the lease, above those of all earlier leases of the key. Send it with each write:
// what the key guards refuses a smaller one. It panics for several keys: each has a number of its own, which
// [Lease.FencingTokenOf] returns.
func (l *Lease) FencingToken() int64 { return l.FencingTokenOf(l.only("FencingTokenOf")) }

// FencingTokenOf returns the number of the lease of one of the keys, as [Lease.FencingToken]. It panics for another key.
func (l *Lease) FencingTokenOf(key string) int64 {
	number, isOurs := l.first.numbers[key]
	if !isOurs {
		panic(fmt.Sprintf("lockkeeper: '%s' is not a key of this lease", key))
	}
	return number
}

// Key returns the key. It panics for several: [Lease.Keys] returns them.
func (l *Lease) Key() string { return l.only("Keys") }

// Keys returns the keys, in the order in which they were named.
func (l *Lease) Keys() []string { return append([]string{}, l.claim.keys.names...) }

// only is the key of a lease of one.
func (l *Lease) only(instead string) string {
	if l.claim.keys.isSeveral() {
		panic("lockkeeper: a lease of several keys: use " + instead)
	}
	return l.claim.keys.first()
}

// Token returns the secret of the lease, which belongs in no log.
func (l *Lease) Token() string { return l.claim.token }

// Slot returns a number from 1 to Options.Slots that no other lease of the key has, or 0 without Options.Slots or with
// several Units. It panics for several keys: see [Lease.SlotOf].
func (l *Lease) Slot() int { return l.SlotOf(l.only("SlotOf")) }

// SlotOf returns the slot of one of the keys, as [Lease.Slot].
func (l *Lease) SlotOf(key string) int { return l.first.slots[key] }

// Format prints the key and the fencing token, never the token, and reads nothing that a renewal may change.
func (l *Lease) Format(f fmt.State, _ rune) {
	for place, name := range l.claim.keys.names {
		fmt.Fprintf(f, "%slease %d of %q", map[bool]string{true: ", "}[place > 0], l.first.numbers[name], name)
	}
}

// Release ends the lease, and the context of the work. Later calls return the same. Its errors are [ErrLeaseLost] if
// the lease had ended before, and [ErrServiceUnavailable] or [ErrRequestRefused] if it could not be released within 5
// seconds, and ends by its TTL. It takes no context, because an ended one would leave the lease behind.
func (l *Lease) Release() error { return l.giveBack(false) }

// giveBack releases the lease, for a caller in a hurry behind it, if necessary.
func (l *Lease) giveBack(isHurried bool) error {
	l.once.Do(func() {
		result := l.Err()
		l.endLife()
		l.endWork(nil)
		if result == nil && !isHurried {
			l.result = l.claim.release(l.first.numbers)
			return
		}
		if l.result = result; result != nil { // By the service's clock it may be there still: the next client need not wait.
			l.claim.client.behind(func() {
				if l.claim.keys.isSeveral() { // The others were kept until now.
					l.claim.release(l.first.numbers)
				} else {
					l.claim.end(l.first.numbers, lastWords)
				}
			})
			return
		}
		released, isLate := make(chan error, 1), make(chan struct{})
		l.claim.client.behind(func() {
			err := l.claim.release(l.first.numbers)
			select {
			case <-isLate:
				if err != nil && !errors.Is(err, ErrLeaseLost) {
					l.claim.warn(l.first.numbers, err)
				}
			case released <- err:
			}
		})
		select {
		case l.result = <-released:
		default:
			close(isLate)
		}
	})
	return l.result
}

// hold notes how long the lease lasts.
func (l *Lease) hold(g grant) {
	l.end, l.why = g.end, "this process was stopped, or the machine suspended"
	if l.capped = g.capped; l.capped != nil {
		l.why = "the service allows no longer lease of this key (max_hold)"
	}
	l.told = l.end - shorter(longer(200*time.Millisecond, l.claim.options.TTL/10), g.TTL/2)
}

// watch tells the work in time. Timers stand still in suspend, so it looks at the clock every second.
func (l *Lease) watch() {
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
	for failures := 0; sleep(l.life, longer(0, shorter(next-now(), time.Second))); l.Err() {
		sent := now()
		if sent < next { // In short steps, because timers stand still in suspend.
			continue
		}
		left := l.told - sent // Nothing but this goroutine changes it.
		ask := l.claim.keys.refresh(l.first.numbers, map[string]any{})
		got := l.claim.granted(l.life, longer(50*time.Millisecond, shorter(left/2, 10*time.Second)), ask, l.first.numbers)
		pause := shorter(backoff(failures), longer(20*time.Millisecond, left/8))
		l.mutex.Lock()
		switch {
		case errors.Is(got.err, ErrLeaseLost):
			l.lost = got.err
		case got.err != nil:
			l.why, failures, next = got.err.(*Error).Detail, failures+1, now()+pause
		case now() < l.told: // Else it is too late: the work is told.
			l.hold(got)
			failures, next = 0, sent+l.claim.options.TTL/3
		}
		l.mutex.Unlock()
	}
}
