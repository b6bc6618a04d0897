package lockkeeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// panics returns what a call panics with.
func panics(call func()) (told any) {
	defer func() { told = recover() }()
	call()
	return nil
}

func TestSeveralKeysAreAllHeldWithANumberEach(t *testing.T) {
	var mutex sync.Mutex
	var bodies []string
	service, client := startFake(t, func(_ http.ResponseWriter, r *http.Request) bool {
		text, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(text)))
		mutex.Lock()
		defer mutex.Unlock()
		bodies = append(bodies, strings.TrimSpace(string(text)))
		return false
	})
	keys := append(Keys("b"), Key{Name: "a/é", Shared: true}, Key{Name: "gpu", Slots: 8, Units: 3})
	options := Options{TTL: time.Minute, Owner: "me"}
	err := client.WithLockAll(background, keys, options, func(_ context.Context, lease *Lease) error {
		if got := lease.Keys(); !reflect.DeepEqual(got, []string{"b", "a/é", "gpu"}) {
			t.Error(got)
		}
		for number, key := range lease.Keys() {
			if got := lease.FencingTokenOf(key); got != int64(number+1) || lease.SlotOf(key) != 0 {
				t.Error(key, got)
			}
		}
		if text := fmt.Sprintf("%+v", lease); text != `lease 1 of "b", lease 2 of "a/é", lease 3 of "gpu"` {
			t.Error(text)
		}
		for _, call := range []func(){func() { lease.FencingToken() }, func() { lease.Key() }, func() { lease.Slot() }, func() { lease.FencingTokenOf("c") }} {
			if told := panics(call); told == nil || !strings.Contains(told.(string), "this lease") && !strings.Contains(told.(string), "several keys: use ") {
				t.Error(told)
			}
		}
		var busy *Error
		_, err := client.TryLockAll(background, Keys("c", "gpu"), Options{})
		if !errors.As(err, &busy) || busy.Kind != ErrLockBusy || busy.Key != "gpu" || service.isHeld("c") {
			t.Error(err)
		}
		return nil
	})
	if err != nil || service.isHeld("b") || service.isHeld("a/é") || service.isHeld("gpu") {
		t.Error(err)
	}
	mutex.Lock()
	defer mutex.Unlock()
	first := `{"keys":[{"key":"b"},{"key":"a/é","shared":true},{"key":"gpu","slots":8,"units":3}],"owner":"me","ttl_ms":60000,"wait_ms":0}`
	last := `{"leases":[{"key":"b","fencing_token":1},{"key":"a/é","fencing_token":2},{"key":"gpu","fencing_token":3}]}`
	if bodies[0] != first || bodies[len(bodies)-1] != last {
		t.Error(bodies)
	}
}

func TestSeveralKeysAreLostWithOneOfThem(t *testing.T) {
	service, client := startFake(t, nil)
	err := client.WithLockAll(background, Keys("a", "b"), Options{TTL: 900 * time.Millisecond}, func(ctx context.Context, lease *Lease) error {
		service.mutex.Lock()
		delete(service.leases, "b")
		service.mutex.Unlock()
		<-ctx.Done()
		if !service.isHeld("a") || lease.Remaining() != 0 {
			t.Error("the other one is not kept while the work stops")
		}
		return ctx.Err()
	})
	var lost *Error
	if !errors.As(err, &lost) || lost.Kind != ErrLeaseLost || lost.Key != "b" {
		t.Error(err)
	}
	if text := err.Error(); !strings.Contains(text, "the lease on 'b' was lost before the work ended") {
		t.Error(text)
	}
	if !service.isFree("a") || len(service.requests("PUT /locks/refresh")) != 1 {
		t.Error("left behind, or not renewed together")
	}
}

func TestSeveralKeysThatMakeNoSenseAreRefused(t *testing.T) {
	service, client := startFake(t, nil)
	long := []string{}
	for _, letter := range "abcd" {
		long = append(long, strings.Repeat(string(letter), 10_000))
	}
	for _, row := range []struct {
		keys    []Key
		options Options
		told    string
	}{
		{Keys("a", "b//c"), Options{}, `"b//c" is no key`},
		{Keys("a", "b\xff"), Options{}, `"b\xff" is no key`},
		{Keys(long...), Options{}, "the 4 keys are too long together"},
		{Keys("a", "b"), Options{Slots: 2}, "each of several keys has its own share"},
		{Keys("a", "b"), Options{Units: 2}, "each of several keys has its own share"},
		{Keys("a", "b"), Options{Shared: true}, "each of several keys has its own share"},
	} {
		if _, err := client.LockAll(background, row.keys, row.options); !errors.Is(err, ErrRequestRefused) || !strings.Contains(err.Error(), row.told) {
			t.Error(err)
		}
	}
	if got := service.requests(""); len(got) != 0 {
		t.Error(got)
	}
}

func TestOfSeveralKeysTheOneThatIsAwaitedIsTold(t *testing.T) {
	looks := map[string]string{"/locks/a": `{"key":"a","held":true,"waiters":1,"queue":[{}]}`,
		"/locks/b": `{"key":"b","held":true,"owner":"other","waiters":2,"queue":[{"owner":"first"},{"owner":"me"}]}`}
	service, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		fmt.Fprint(w, looks[r.URL.Path])
		return looks[r.URL.Path] != ""
	})
	client.limits.look = 50 * time.Millisecond
	service.give("b", "other", 1)
	told := make(chan Wait, 100)
	options := Options{Wait: time.Minute, Owner: "me", OnWait: func(wait Wait) {
		service.mutex.Lock()
		delete(service.leases, "b")
		service.mutex.Unlock()
		told <- wait
	}}
	if err := client.WithLockAll(background, Keys("b", "a"), options, nothing); err != nil {
		t.Error(err)
	}
	if wait := <-told; wait.Key != "b" || wait.Owner != "other" || wait.Ahead != 1 {
		t.Errorf("%+v", wait)
	}
	if got := service.requests("GET"); got[0] != "GET /locks/a?waiters=100" || got[1] != "GET /locks/b?waiters=100" {
		t.Error(got)
	}
}
