package lockkeeper

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A fake is a service in memory, without a line. A hook that returns true has answered a request itself.
type fake struct {
	*httptest.Server
	mutex  sync.Mutex
	leases map[string]*fakeLease
	number int64
	seen   []string // method, escaped path and query
	hook   func(w http.ResponseWriter, r *http.Request) bool
}

type fakeLease struct {
	token  string
	number int64
	ends   time.Time
}

func newFake(hook func(w http.ResponseWriter, r *http.Request) bool) *fake {
	f := &fake{leases: map[string]*fakeLease{}, hook: hook}
	f.Server = httptest.NewServer(f)
	return f
}

// start makes a service with this hook, and a client of it.
func startFake(t *testing.T, hook func(w http.ResponseWriter, r *http.Request) bool) (*fake, *Client) {
	t.Helper()
	f := newFake(hook)
	t.Cleanup(f.Close)
	return f, newClient(t, Config{URL: f.URL, Logf: t.Logf})
}

func newClient(t *testing.T, config Config) *Client {
	t.Helper()
	client, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mutex.Lock()
	f.seen = append(f.seen, r.Method+" "+r.URL.RequestURI())
	f.mutex.Unlock()
	if f.hook != nil && f.hook(w, r) {
		return
	}
	f.serve(w, r)
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	escaped := strings.TrimPrefix(strings.TrimPrefix(r.URL.EscapedPath(), "/admin"), "/locks/")
	if r.Method == http.MethodPut {
		escaped = strings.TrimSuffix(escaped, "/refresh")
	}
	key, _ := url.PathUnescape(escaped)
	token := r.Header.Get("Lock-Token")
	var options struct {
		TTL    int64 `json:"ttl_ms"`
		Number int64 `json:"fencing_token"`
		Keys   []Key
		Leases []namedLease
	}
	json.NewDecoder(r.Body).Decode(&options)
	for _, one := range options.Leases {
		options.Keys = append(options.Keys, Key{Name: one.Key})
	}
	if options.Keys != nil {
		f.several(w, r.Method, token, options.Keys, options.TTL)
		return
	}
	if number, err := strconv.ParseInt(r.URL.Query().Get("fencing_token"), 10, 64); err == nil {
		options.Number = number
	}
	lease := f.leases[key]
	if lease != nil && time.Now().After(lease.ends) {
		delete(f.leases, key)
		lease = nil
	}
	isMine := lease != nil && lease.token == token
	switch isNamed := options.Number != 0; {
	case r.Method == http.MethodGet:
		fmt.Fprintf(w, `{"key":%q,"held":%t,"waiters":0}`, key, lease != nil)
	case isMine && isNamed && options.Number != lease.number:
		refuse(w, 409, "lock_lost", fmt.Sprintf(`,"fencing_token":%d`, lease.number))
	case r.Method == http.MethodPost && lease != nil && !isMine:
		refuse(w, 409, "lock_held", `,"owner":"web-1","retry_after_ms":29900`)
	case r.Method == http.MethodPost || r.Method == http.MethodPut && isMine:
		if lease == nil || r.Method == http.MethodPost && isNamed {
			f.number++
			lease = &fakeLease{token: token, number: f.number}
			f.leases[key] = lease
		}
		lease.ends = time.Now().Add(time.Duration(options.TTL) * time.Millisecond)
		fmt.Fprintf(w, `{"key":%q,"token":%q,"fencing_token":%d,"ttl_ms":%d,"waited_ms":0}`, key, token, lease.number, options.TTL)
	case r.Method == http.MethodDelete && strings.HasPrefix(r.URL.Path, "/admin") && lease != nil:
		delete(f.leases, key)
		fmt.Fprintf(w, `{"key":%q}`, key)
	case r.Method == http.MethodDelete && isMine:
		delete(f.leases, key)
		w.WriteHeader(http.StatusNoContent)
	default:
		refuse(w, 409, "lock_lost", "")
	}
}

// several answers a request about several keys, with the mutex. It waits for none.
func (f *fake) several(w http.ResponseWriter, method, token string, keys []Key, ttl int64) {
	isMine := func(key Key) bool { return f.leases[key.Name] != nil && f.leases[key.Name].token == token }
	var lost, leases []string
	for _, key := range keys {
		if method == http.MethodPost && f.leases[key.Name] != nil && !isMine(key) {
			refuse(w, 409, "lock_held", fmt.Sprintf(`,"key":%q,"owner":"web-1","retry_after_ms":29900`, key.Name))
			return
		}
	}
	for _, key := range keys {
		if method == http.MethodPost && !isMine(key) {
			f.number++
			f.leases[key.Name] = &fakeLease{token, f.number, time.Now().Add(time.Minute)}
		}
		if !isMine(key) {
			lost = append(lost, fmt.Sprintf(`{"key":%q}`, key.Name))
			continue
		}
		leases = append(leases, fmt.Sprintf(`{"key":%q,"fencing_token":%d,"ttl_ms":%d}`, key.Name, f.leases[key.Name].number, ttl))
		if method == http.MethodDelete {
			delete(f.leases, key.Name)
		}
	}
	switch {
	case lost != nil:
		refuse(w, 409, "lock_lost", fmt.Sprintf(`,"lost":[%s]`, strings.Join(lost, ",")))
	case method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	default:
		fmt.Fprintf(w, `{"token":%q,"leases":[%s],"ttl_ms":%d,"waited_ms":0}`, token, strings.Join(leases, ","), ttl)
	}
}

func refuse(w http.ResponseWriter, status int, code, more string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"code":%q,"detail":"by the test","type":"urn:lockkeeper:%s"%s}`, code, code, more)
}

func (f *fake) isHeld(key string) bool {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	lease := f.leases[key]
	return lease != nil && time.Now().Before(lease.ends)
}

// give gives a lease to a token.
func (f *fake) give(key, token string, number int64) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.leases[key] = &fakeLease{token, number, time.Now().Add(time.Minute)}
}

// requests returns those that begin with this.
func (f *fake) requests(begin string) (found []string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for _, one := range f.seen {
		if strings.HasPrefix(one, begin) {
			found = append(found, one)
		}
	}
	return found
}

// cut ends a connection without an answer.
func cut(w http.ResponseWriter) {
	connection, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		connection.Close()
	}
}

// TestMain gives the examples a service.
func TestMain(m *testing.M) {
	for _, variable := range []string{"URL", "API_KEY", "API_KEY_FILE", "CA"} {
		os.Unsetenv("LOCKKEEPER_" + variable)
	}
	service := newFake(nil)
	os.Setenv("LOCKKEEPER_URL", service.URL)
	code := m.Run()
	service.Close()
	os.Exit(code)
}
