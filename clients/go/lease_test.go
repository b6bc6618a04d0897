package lockkeeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var background = context.Background()

// isFree waits a little: the service may be at the release still.
func (f *fake) isFree(key string) bool {
	for end := time.Now().Add(2 * time.Second); f.isHeld(key) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	return !f.isHeld(key)
}

func TestWithLockReleasesHoweverTheWorkEnds(t *testing.T) {
	service, client := startFake(t, nil)
	failure := errors.New("of the work")
	if err := client.WithLock(background, "a", Options{}, func(context.Context, *Lease) error { return failure }); err != failure {
		t.Error(err)
	}
	func() {
		defer func() {
			if got := recover(); got != failure {
				t.Errorf("the panic is %v", got)
			}
		}()
		client.WithLock(background, "a", Options{}, func(context.Context, *Lease) error { panic(failure) })
	}()
	if service.isHeld("a") {
		t.Error("held after a panic")
	}
	ended := make(chan bool)
	go func() {
		defer close(ended)
		client.WithLock(background, "a", Options{}, func(context.Context, *Lease) error { runtime.Goexit(); return nil })
		t.Error("the end of the goroutine was stopped")
	}()
	<-ended
	if service.isHeld("a") {
		t.Error("held after runtime.Goexit")
	}
	if got := len(service.requests("DELETE")); got != 3 {
		t.Errorf("%d releases of 3 leases", got)
	}
	for _, one := range service.requests("DELETE") {
		if !strings.Contains(one, "?fencing_token=") {
			t.Error(one)
		}
	}
}

func TestWorkThatReleasesItsLease(t *testing.T) {
	service, client := startFake(t, nil)
	err := client.WithLock(background, "a", Options{}, func(ctx context.Context, lease *Lease) error {
		if err := lease.Release(); err != nil || service.isHeld("a") || ctx.Err() == nil {
			t.Error("not released", err)
		}
		if lease.StillMine(0) || lease.Remaining() != 0 || lease.Err() != nil {
			t.Error("a released lease is held, or lost")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// forced makes a client whose lease is ended by force at the first refresh.
func forced(t *testing.T) *Client {
	_, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			refuse(w, 409, "lock_lost", "")
		}
		return r.Method != http.MethodPost
	})
	return client
}

func TestLossIsNeverASuccess(t *testing.T) {
	failure := errors.New("of the work")
	for name, row := range map[string]struct {
		works                func(ctx context.Context, lease *Lease) error
		isFailure, isCancel  bool
		cancelsFromElsewhere bool
	}{
		"heeds":             {works: func(ctx context.Context, _ *Lease) error { <-ctx.Done(); return ctx.Err() }},
		"heeds, and wraps":  {works: func(ctx context.Context, _ *Lease) error { <-ctx.Done(); return fmt.Errorf("x: %w", ctx.Err()) }},
		"heeds, and is nil": {works: func(ctx context.Context, _ *Lease) error { <-ctx.Done(); return nil }},
		"ends before":       {works: nothing},
		"fails before":      {works: func(context.Context, *Lease) error { return failure }, isFailure: true},
		"fails after":       {works: func(ctx context.Context, _ *Lease) error { <-ctx.Done(); return failure }, isFailure: true},
		"blocks":            {works: func(context.Context, *Lease) error { time.Sleep(500 * time.Millisecond); return nil }},
		"cancelled as well": {works: func(_ context.Context, l *Lease) error { return context.Canceled }, isCancel: true, cancelsFromElsewhere: true},
	} {
		row := row
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			err := forced(t).WithLock(ctx, "a", Options{TTL: 900 * time.Millisecond}, func(work context.Context, lease *Lease) error {
				if row.cancelsFromElsewhere {
					cancel()
				}
				return row.works(work, lease)
			})
			if !errors.Is(err, ErrLeaseLost) || errors.Is(err, failure) != row.isFailure || errors.Is(err, context.Canceled) != row.isCancel {
				t.Error(err)
			}
			var e *Error
			if !errors.As(err, &e) || row.isFailure && e.Work != failure {
				t.Errorf("%#v", err)
			}
		})
	}
}

func TestErrTellsALossFromACancellation(t *testing.T) {
	_, client := startFake(t, nil)
	ctx, cancel := context.WithCancel(background)
	err := client.WithLock(ctx, "a", Options{}, func(work context.Context, lease *Lease) error {
		cancel()
		<-work.Done()
		if lease.Err() != nil || !lease.StillMine(20*time.Second) {
			t.Error("the lease is lost by a cancellation")
		}
		return work.Err()
	})
	if err != context.Canceled {
		t.Error(err)
	}
	err = forced(t).WithLock(background, "a", Options{TTL: 600 * time.Millisecond}, func(work context.Context, lease *Lease) error {
		<-work.Done()
		if !errors.Is(lease.Err(), ErrLeaseLost) || lease.StillMine(0) || lease.Remaining() != 0 {
			t.Error("the lease is not lost")
		}
		return nil
	})
	if !errors.Is(err, ErrLeaseLost) {
		t.Error(err)
	}
}

func TestLeaseIsRenewedAfterACancellationWhileTheWorkStops(t *testing.T) {
	service, client := startFake(t, nil)
	ctx, cancel := context.WithCancel(background)
	err := client.WithLock(ctx, "a", Options{TTL: 600 * time.Millisecond}, func(context.Context, *Lease) error {
		cancel()
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if !service.isHeld("a") {
				return errors.New("another client could have had the key")
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestErrLooksAtTheClock(t *testing.T) {
	_, client := startFake(t, nil)
	lease, err := client.TryLock(background, "a", Options{})
	if err != nil {
		t.Fatal(err)
	}
	child, cancel := context.WithCancel(lease.Context())
	defer cancel()
	lease.mutex.Lock()
	lease.end, lease.told = now()-1, now()-2 // as after a suspend, before any timer has rung
	lease.mutex.Unlock()
	if lease.Context().Err() == nil || child.Err() == nil || lease.StillMine(0) || lease.Remaining() != 0 {
		t.Error("the work goes on")
	}
	if err := lease.Release(); !errors.Is(err, ErrLeaseLost) || !strings.Contains(err.Error(), "suspended") {
		t.Error(err)
	}
}

func TestTheWorkIsToldBeforeTheEnd(t *testing.T) {
	service, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut {
			cut(w)
		}
		return r.Method == http.MethodPut
	})
	err := client.WithLock(background, "a", Options{TTL: 1500 * time.Millisecond}, func(ctx context.Context, lease *Lease) error {
		<-ctx.Done()
		if !service.isHeld("a") {
			t.Error("told after the end")
		}
		return nil
	})
	if !errors.Is(err, ErrLeaseLost) || !strings.Contains(err.Error(), "not be renewed in time") || !strings.Contains(err.Error(), service.URL) {
		t.Error(err)
	}
	if got := len(service.requests("PUT")); got < 4 || got > 40 {
		t.Errorf("%d refreshes in a second", got)
	}
}

func TestAnOldAnswerRevivesNothing(t *testing.T) {
	_, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut { // answers of another lease of the token, and of longer leases
			fmt.Fprintf(w, `{"key":"a","token":%q,"fencing_token":99,"ttl_ms":60000,"waited_ms":0}`, r.Header.Get("Lock-Token"))
		}
		return r.Method == http.MethodPut
	})
	err := client.WithLock(background, "a", Options{TTL: 600 * time.Millisecond}, func(ctx context.Context, lease *Lease) error {
		<-ctx.Done()
		return nil
	})
	if !errors.Is(err, ErrLeaseLost) {
		t.Error(err)
	}
}

func TestRepeatsHaveOneTokenAndClaimsHaveTheirOwn(t *testing.T) {
	var mutex sync.Mutex
	tokens := map[string]int{}
	count := 0
	_, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		mutex.Lock()
		defer mutex.Unlock()
		tokens[r.Header.Get("Lock-Token")]++
		if count++; count%3 != 0 {
			cut(w)
			return true
		}
		return false
	})
	for i := 0; i < 2; i++ {
		if err := client.WithLock(background, "a", Options{}, nothing); err != nil {
			t.Error(err)
		}
	}
	if len(tokens) != 2 {
		t.Error(tokens)
	}
	for token, requests := range tokens {
		if requests != 3 || len(token) < 32 {
			t.Error(tokens)
		}
	}
}

func TestLostAnswersOfAReleaseAreNoLoss(t *testing.T) {
	for times := int32(1); times <= 3; times++ {
		left := times
		var service *fake
		service, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodDelete || atomic.AddInt32(&left, -1) < 0 {
				return false
			}
			service.serve(httptest.NewRecorder(), r)
			cut(w)
			return true
		})
		if err := client.WithLock(background, "a", Options{}, nothing); err != nil {
			t.Error(times, err)
		}
	}
}

func TestASupersededClaimAsksAgainAndGivesUpAfterThreeTimes(t *testing.T) {
	for _, times := range []int32{2, 3} {
		left := times
		service, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
			isSuperseded := r.Method == http.MethodPost && atomic.AddInt32(&left, -1) >= 0
			if isSuperseded {
				refuse(w, 409, "superseded", "")
			}
			return isSuperseded
		})
		began := time.Now()
		err := client.WithLock(background, "a", Options{Wait: 5 * time.Second}, nothing)
		if client.Close(); times == 2 && err != nil || times == 3 && !errors.Is(err, ErrWaitCancelled) {
			t.Error(err)
		}
		if len(service.requests("POST")) != 3 || len(service.requests("DELETE")) == 0 || time.Since(began) < 2*time.Second {
			t.Error(service.requests(""), time.Since(began))
		}
	}
}

func TestALeaseOfAnEarlierRequestIsReplacedAlsoIfThatAnswerIsLost(t *testing.T) {
	var service *fake
	var bodies []string
	service, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		text, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(text))
		switch bodies = append(bodies, string(text)); len(bodies) {
		case 1:
			service.give("a", r.Header.Get("Lock-Token"), 7)
			refuse(w, 409, "lock_held", `,"mine":true,"fencing_token":7`)
		case 2:
			service.serve(httptest.NewRecorder(), r)
			cut(w)
		default:
			return false
		}
		return true
	})
	err := client.WithLock(background, "a", Options{}, func(_ context.Context, lease *Lease) error {
		if lease.FencingToken() != 2 {
			t.Error(lease.FencingToken())
		}
		return nil
	})
	if err != nil || service.isHeld("a") || len(bodies) != 4 {
		t.Fatal(err, bodies)
	}
	for i, named := range []string{"", `"fencing_token":7,`, `"fencing_token":7,`, `"fencing_token":1,`} {
		if !strings.Contains(bodies[i], named) || strings.Contains(bodies[i], "fencing_token") != (named != "") {
			t.Error(i, bodies[i])
		}
	}
}

func TestAClaimThatNamesALeaseLeavesNothingIfItIsRefused(t *testing.T) {
	var service *fake
	service, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		if text, _ := io.ReadAll(r.Body); bytes.Contains(text, []byte("fencing_token")) {
			refuse(w, 409, "lock_held", "")
			return true
		}
		service.give("a", r.Header.Get("Lock-Token"), 7)
		refuse(w, 409, "lock_held", `,"mine":true,"fencing_token":7`)
		return true
	})
	_, err := client.TryLock(background, "a", Options{})
	if client.Close(); !errors.Is(err, ErrLockBusy) || service.isHeld("a") {
		t.Error(err)
	}
}

func TestTheLeaseThatALateRequestHasBegunIsReleased(t *testing.T) {
	for _, isTold := range []bool{false, true} {
		service, client := startFake(t, nil)
		err := client.WithLock(background, "a", Options{TTL: 900 * time.Millisecond}, func(ctx context.Context, lease *Lease) error {
			service.give("a", lease.Token(), 55)
			if isTold {
				<-ctx.Done()
			}
			return nil
		})
		if client.Close(); !errors.Is(err, ErrLeaseLost) || service.isHeld("a") {
			t.Error(err)
		}
	}
}

func TestAFailedReleaseIsLogged(t *testing.T) {
	service := newFake(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodDelete {
			refuse(w, 403, "forbidden", "")
		}
		return r.Method == http.MethodDelete
	})
	defer service.Close()
	var logged []string
	client := newClient(t, Config{URL: service.URL, Logf: func(format string, values ...any) {
		logged = append(logged, fmt.Sprintf(format, values...))
	}})
	if err := client.WithLock(background, "a", Options{}, nothing); err != nil {
		t.Error(err)
	}
	if len(logged) != 1 || !strings.HasPrefix(logged[0], "lockkeeper: 'a' is not released; the lease ends by its TTL (fencing token 1): by the test (403") || !strings.Contains(logged[0], "ends by its TTL") {
		t.Error(logged)
	}
}

func TestAnEndedContextSendsNothing(t *testing.T) {
	service, client := startFake(t, nil)
	ctx, cancel := context.WithCancel(background)
	cancel()
	if _, err := client.Lock(ctx, "a", Options{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ctx, cancel = context.WithDeadline(background, time.Now().Add(-time.Second))
	defer cancel()
	if _, err := client.Lock(ctx, "a", Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if len(service.requests("")) != 0 {
		t.Error(service.requests(""))
	}
}

func TestACancellationAtAnyMomentLeavesNothing(t *testing.T) {
	service, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		time.Sleep(time.Duration(time.Now().UnixNano()%1000) * time.Microsecond)
		return false
	})
	var working sync.WaitGroup
	var granted int32
	for i := 0; i < 400; i++ {
		i := i
		working.Add(1)
		go func() {
			defer working.Done()
			key := fmt.Sprintf("a/%d", i)
			ctx, cancel := context.WithTimeout(background, time.Duration(i)*25*time.Microsecond)
			defer cancel()
			lease, err := client.Lock(ctx, key, Options{})
			if err == nil {
				atomic.AddInt32(&granted, 1)
				err = lease.Release()
			} else if errors.Is(err, context.DeadlineExceeded) {
				err = nil
			}
			if err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}()
		if i%20 == 19 {
			working.Wait()
		}
	}
	client.Close() // Some may be withdrawn behind their callers.
	for i := 0; i < 400; i++ {
		if key := fmt.Sprintf("a/%d", i); service.isHeld(key) {
			t.Errorf("%s is held", key)
		}
	}
	t.Logf("%d of 400 were granted", granted)
}

func TestAfterACancellationBetweenTwoAttemptsNothingIsAcquired(t *testing.T) {
	for _, row := range []struct {
		attempts int // The pause after so many is long.
		answer   func(http.ResponseWriter)
	}{
		{6, func(w http.ResponseWriter) { w.WriteHeader(502) }},
		{1, func(w http.ResponseWriter) { refuse(w, 409, "lock_held", "") }},
	} {
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		sent := 0
		service, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPost {
				row.answer(w)
				if sent++; sent == row.attempts {
					time.AfterFunc(100*time.Millisecond, cancel)
				}
			}
			return r.Method == http.MethodPost
		})
		if _, err := client.Lock(ctx, "a", Options{Wait: time.Minute}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if client.Close(); len(service.requests("POST")) != row.attempts || len(service.requests("DELETE")) == 0 {
			t.Error(service.requests(""))
		}
	}
}

func TestAClaimThatArrivesAfterItsCancellationIsHeardOut(t *testing.T) {
	service, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			time.Sleep(700 * time.Millisecond) // on the way
		}
		return false
	})
	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	if _, err := client.Lock(ctx, "a", Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if client.Close(); service.isHeld("a") || len(service.requests("DELETE")) < 2 {
		t.Error("left behind", service.requests(""))
	}
}

// In line and in the work. The withdrawal goes on behind the caller.
func TestATimeLimitOfTheCallerHoldsWithASilentService(t *testing.T) {
	for _, silent := range []string{"POST DELETE", "DELETE"} {
		silence := make(chan struct{})
		service, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(silent, r.Method) {
				<-silence
			}
			return false
		})
		returned := make(chan error)
		ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
		defer cancel()
		go func() {
			returned <- client.WithLock(ctx, "a", Options{Wait: Forever, TTL: time.Minute}, func(ctx context.Context, _ *Lease) error {
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		// The service is silent until the caller is back: if that waits for it, nothing ends.
		select {
		case err := <-returned:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Error("the caller waits for a silent service")
		}
		close(silence)
		if client.Close(); service.isHeld("a") || len(service.requests("DELETE")) == 0 {
			t.Error("left behind", service.requests(""))
		}
	}
}

func TestWorkThatEndsInTimeIsASuccessOnlyIfItsLeaseLasted(t *testing.T) {
	_, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodDelete {
			time.Sleep(2 * moment)
			refuse(w, 409, "lock_lost", "")
		}
		return r.Method == http.MethodDelete
	})
	ctx, cancel := context.WithCancel(background)
	if err := client.WithLock(ctx, "a", Options{}, func(context.Context, *Lease) error { cancel(); return nil }); !errors.Is(err, ErrLeaseLost) {
		t.Error(err)
	}
}

func TestAClaimThatNeverReachedTheServiceGivesUpAndOneThatStoodInLineWaits(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nowhere := "http://" + listener.Addr().String()
	listener.Close()
	for _, row := range []struct {
		wait                    time.Duration
		withoutWait, beforeLine time.Duration
		more                    string
	}{
		{time.Hour, time.Hour, 800 * time.Millisecond, "35\\d\\d s more "}, {Forever, time.Hour, 800 * time.Millisecond, ""},
		{100 * time.Millisecond, 800 * time.Millisecond, time.Hour, ""}, {0, 800 * time.Millisecond, time.Hour, ""},
	} {
		var logged []string
		client := newClient(t, Config{URL: nowhere, Logf: func(format string, values ...any) {
			logged = append(logged, fmt.Sprintf(format, values...))
		}})
		client.limits = limits{withoutWait: row.withoutWait, beforeLine: row.beforeLine, next: time.Hour}
		_, err := client.Lock(background, "a", Options{Wait: row.wait})
		told := "no answer from " + nowhere + ": connection refused"
		if !errors.Is(err, ErrServiceUnavailable) || err.Error() != "lockkeeper: 'a' was not acquired: "+told+"; retry later" {
			t.Error(err)
		}
		if expected := "^lockkeeper: waiting " + row.more + "for 'a', retrying: " + told + "$"; len(logged) != 1 || !regexp.MustCompile(expected).MatchString(logged[0]) {
			t.Error(logged, expected)
		}
	}
	var asked int32
	_, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		switch n := atomic.AddInt32(&asked, 1); {
		case n == 1:
			refuse(w, 409, "lock_held", "")
		case n < 6:
			w.WriteHeader(502)
		default:
			return false
		}
		return true
	})
	client.limits = limits{beforeLine: 200 * time.Millisecond, withoutWait: 100 * time.Millisecond, first: time.Hour}
	if err := client.WithLock(background, "a", Options{Wait: time.Hour}, nothing); err != nil {
		t.Error(err)
	}
}

func TestAWaitIsToldWhenItHasBegunAndAgainLater(t *testing.T) {
	for _, row := range []struct {
		queue, owner string
		ahead        int
	}{{`{"owner":"first"},{"owner":"me"}`, "other", 1}, {`{"owner":"me"},{"owner":"me"}`, "", -1}, {`{}`, "", -1}} {
		looks := []string{`{"key":"a","held":true,"waiters":0}`, `<html>`}
		service, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
			look := fmt.Sprintf(`{"key":"a","held":true,"owner":%q,"waiters":2,"queue":[%s]}`, row.owner, row.queue)
			if r.Method == http.MethodGet && len(looks) > 0 {
				look, looks = looks[0], looks[1:]
			}
			if r.Method == http.MethodGet {
				fmt.Fprint(w, look)
			}
			return r.Method == http.MethodGet
		})
		client.limits.look, client.limits.lookAgain, client.limits.next = 50*time.Millisecond, 50*time.Millisecond, 200*time.Millisecond
		service.give("a", "other", 1)
		told := make(chan Wait, 100)
		done := make(chan error)
		go func() {
			options := Options{Wait: time.Minute, Owner: "me", OnWait: func(wait Wait) { told <- wait }}
			done <- client.WithLock(background, "a", options, nothing)
		}()
		first, second := <-told, <-told
		for _, wait := range []Wait{first, second} {
			if wait.Key != "a" || wait.Owner != row.owner || wait.Ahead != row.ahead || wait.Waiters != 2 {
				t.Errorf("%+v", wait)
			}
		}
		if first.Waited < 50*time.Millisecond || second.Waited < first.Waited+200*time.Millisecond {
			t.Error(first, second)
		}
		service.mutex.Lock()
		delete(service.leases, "a")
		service.mutex.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := service.requests("GET")[0]; got != "GET /locks/a?waiters=100" {
			t.Error(got)
		}
	}
	service, client := startFake(t, nil)
	client.limits.look = 50 * time.Millisecond
	for _, wait := range []time.Duration{0, time.Minute} { // Neither without a wait nor after the grant.
		err := client.WithLock(background, "a", Options{Wait: wait, OnWait: func(Wait) { t.Error("told") }}, func(context.Context, *Lease) error {
			time.Sleep(150 * time.Millisecond)
			return nil
		})
		if err != nil || len(service.requests("GET")) != 0 {
			t.Error(err, service.requests("GET"))
		}
	}
}

func TestTheEndOfAnAbsence(t *testing.T) {
	const second = time.Second
	refused, silent := &Error{}, &Error{OutcomeUnknown: true}
	page, bad := &Error{Status: 504, OutcomeUnknown: true}, &Error{Status: 502, OutcomeUnknown: true}
	busy := &Error{Status: 409, Code: "lock_held"}
	for i, row := range []struct {
		before, answer         *Error
		lasted, over, expected time.Duration
	}{
		{nil, refused, 0, 3600, 60}, {nil, refused, 0, 30, 30}, {nil, refused, 0, 0, 5}, {nil, refused, 0, 3, 5},
		{busy, refused, 0, 3600, 3600}, {busy, refused, 0, 0, 5}, {nil, silent, 25, 3600, 35},
		{nil, silent, 1, 3600, 3600}, {nil, page, 10, 3600, 3600}, {nil, bad, 10, 3600, 60}, {nil, refused, 4, 3600, 60},
	} {
		away, clock := absence{limits: usual}, 100*second
		if row.before != nil {
			away.notes(row.before, clock, 0, clock)
		}
		at := clock + row.lasted*second
		away.notes(row.answer, clock, 20*second, at)
		if got := away.end(at+row.over*second) - at; got != row.expected*second {
			t.Error(i, got)
		}
	}
	away, told := absence{limits: usual}, []int{}
	for at := 100; at < 300; at++ {
		clock := time.Duration(at) * second
		if away.notes(bad, clock, 0, clock); away.isDue(clock) {
			told = append(told, at-100)
		}
	}
	if fmt.Sprint(told) != "[5 65 125 185]" {
		t.Error(told)
	}
}

func TestOptionsReachTheService(t *testing.T) {
	var body string
	_, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			text, _ := io.ReadAll(r.Body)
			body = string(text)
			fmt.Fprintf(w, `{"key":"a","token":%q,"fencing_token":3,"ttl_ms":5000,"waited_ms":0,"slots":5,"slot":2}`, r.Header.Get("Lock-Token"))
		}
		return r.Method == http.MethodPost
	})
	options := Options{TTL: 5 * time.Second, Wait: time.Minute, Slots: 5, Owner: "me"}
	err := client.WithLock(background, "a", options, func(_ context.Context, lease *Lease) error {
		if lease.Slot() != 2 || lease.FencingToken() != 3 {
			t.Error(lease.Slot(), lease.FencingToken())
		}
		for _, format := range []string{"%v", "%+v", "%#v"} {
			if text := fmt.Sprintf(format, lease); text != `lease 3 of "a"` {
				t.Error(text)
			}
		}
		return nil
	})
	if !errors.Is(err, ErrLeaseLost) { // the fake has no such lease
		t.Error(err)
	}
	if strings.TrimSpace(body) != `{"owner":"me","shared":false,"slots":5,"ttl_ms":5000,"wait_ms":20000}` {
		t.Error(body)
	}
	client.TryLock(background, "a", Options{Slots: 8, Units: 3, Owner: "me", TTL: 5 * time.Second})
	if strings.TrimSpace(body) != `{"owner":"me","shared":false,"slots":8,"ttl_ms":5000,"units":3,"wait_ms":0}` {
		t.Error(body)
	}
	client.TryLock(background, "a", Options{Shared: true, Owner: "me", TTL: 5 * time.Second})
	if strings.TrimSpace(body) != `{"owner":"me","shared":true,"ttl_ms":5000,"wait_ms":0}` {
		t.Error(body)
	}
}

func TestALeaseLeavesNoGoroutine(t *testing.T) {
	_, client := startFake(t, nil)
	client.WithLock(background, "a", Options{}, nothing)
	before := runtime.NumGoroutine()
	for i := 0; i < 50; i++ {
		if err := client.WithLock(background, "a", Options{}, nothing); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before+2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

func TestOneLeaseManyGoroutines(t *testing.T) {
	_, client := startFake(t, nil)
	lease, err := client.TryLock(background, "a", Options{TTL: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := 0; i < 16; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if lease.Err() != nil || lease.Context().Err() != nil || !lease.StillMine(0) || lease.Remaining() < 1 {
					t.Error("lost", lease.Err())
					return
				}
			}
			if err := lease.Release(); err != nil {
				t.Error(err)
			}
		}()
	}
	all.Wait()
}
