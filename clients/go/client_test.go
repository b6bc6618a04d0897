package lockkeeper

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestURLOfAService(t *testing.T) {
	for _, good := range []string{"http://localhost", "http://localhost:8080/", "http://[::1]:8080", "https://proxy/lockkeeper/", "unix:/run/a.sock"} {
		if _, err := New(Config{URL: good}); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for url, told := range map[string]string{
		"localhost":             "`localhost` is not the URL of a service: use http:// or https://, or unix:FILE",
		"localhost:8080":        "`localhost:8080` is not the URL of a service: use http:// or https://, or unix:FILE",
		"ftp://a":               "`ftp://a` is not the URL of a service: use http:// or https://, or unix:FILE",
		"http://jane:s3cret@x":  "`...@x` is not the URL of a service: only a host, a port and a path are allowed",
		"http://a/?b":           "`http://a/?b` is not the URL of a service: only a host, a port and a path are allowed",
		"http://a/?":            "`http://a/?` is not the URL of a service: only a host, a port and a path are allowed",
		"http://a/#b":           "`http://a/#b` is not the URL of a service: only a host, a port and a path are allowed",
		"http://a/locks/":       "`http://a/locks` is not the URL of a service: leave out /locks, as in http://host:8080",
		"https://proxy/p/locks": "`https://proxy/p/locks` is not the URL of a service: leave out /locks, as in http://host:8080",
		"unix:":                 "`unix:` is not the URL of a service: name a file, as in unix:/run/lockkeeper/lockkeeper.sock",
		"http://":               "`http:` is not the URL of a service: write it like http://host:8080",
		"http://a b":            "`http://a b` is not the URL of a service: write it like http://host:8080",
		"http://a:99999":        "`http://a:99999` is not the URL of a service: write it like http://host:8080",
		"http://[::1]:0":        "`http://[::1]:0` is not the URL of a service: write it like http://host:8080",
		"http://a:b":            "`http://a:b` is not the URL of a service: write it like http://host:8080",
	} {
		if _, err := New(Config{URL: url}); err == nil || err.Error() != "lockkeeper: "+told {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestKeysReachTheServiceAsTheyAre(t *testing.T) {
	service, client := startFake(t, nil)
	for _, key := range []string{"a", "a/b", "a b", "a+b", "a%2Fb", "?", "#a", "ä/日本/😀", "a:b@c;d,e=f&g", "~-_.!*'()", "...", `a\b"c<d>^`, "a./.b"} {
		lease, err := client.TryLock(context.Background(), key, Options{})
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		if !service.isHeld(key) || lease.Key() != key {
			t.Errorf("%s: another key is held", key)
		}
		if err := lease.Release(); err != nil || service.isHeld(key) {
			t.Errorf("%s: %v", key, err)
		}
	}
	for _, one := range service.requests("") {
		if strings.Contains(one, "+") || strings.Contains(one, " /locks/ ") {
			t.Error(one)
		}
	}
	sent := len(service.requests(""))
	for _, key := range []string{"", "/", "a/", "/a", "a//b", ".", "..", "../admin/locks/a", "a/./b", "a/..", "a\xff"} {
		for _, do := range []func() error{
			func() error { _, err := client.Lock(context.Background(), key, Options{}); return err },
			func() error { _, err := client.Get(context.Background(), key); return err },
			func() error { _, err := client.ForceRelease(context.Background(), key, ""); return err },
		} {
			if err := do(); !errors.Is(err, ErrRequestRefused) {
				t.Errorf("%q: %v", key, err)
			}
		}
	}
	if len(service.requests("")) != sent {
		t.Error("a key that would become another one was sent")
	}
}

func TestKindsOfAnswers(t *testing.T) {
	ours := func(status int, code, more string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { refuse(w, status, code, more) }
	}
	page := func(status int, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { w.WriteHeader(status); fmt.Fprint(w, body) }
	}
	for name, row := range map[string]struct {
		answer    func(http.ResponseWriter)
		kind      error
		isUnknown bool
	}{
		"held":           {ours(409, "lock_held", ""), ErrLockBusy, false},
		"cancelled":      {ours(409, "wait_cancelled", ""), ErrWaitCancelled, false},
		"full":           {ours(429, "too_many_waiters", ""), ErrLockBusy, false},
		"quota":          {ours(429, "quota_exceeded", ""), ErrServiceUnavailable, false},
		"refused":        {ours(400, "invalid_request", ""), ErrRequestRefused, false},
		"unknown key":    {ours(401, "unauthenticated", ""), ErrRequestRefused, false},
		"not acquired":   {ours(503, "store_unavailable", `,"outcome":"not_acquired"`), ErrServiceUnavailable, false},
		"unknown":        {ours(503, "store_unavailable", `,"outcome":"unknown"`), ErrServiceUnavailable, true},
		"draining":       {ours(503, "draining", ""), ErrServiceUnavailable, false},
		"internal":       {ours(500, "internal", ""), ErrServiceUnavailable, true},
		"page 404":       {page(404, "<html>"), ErrRequestRefused, true},
		"page 302":       {page(302, "<html>"), ErrRequestRefused, true},
		"page 409":       {page(409, `{"code":"lock_held","detail":"no type"}`), ErrServiceUnavailable, true},
		"page 429":       {page(429, `{"detail":["a list"],"code":"lock_held","type":"urn:lockkeeper:lock_held"}`), ErrServiceUnavailable, true},
		"page 200":       {page(200, "<html>"), ErrServiceUnavailable, true},
		"empty 204":      {page(204, ""), ErrServiceUnavailable, true},
		"other key":      {page(201, `{"key":"b","token":"t","fencing_token":1,"ttl_ms":30000,"waited_ms":0}`), ErrServiceUnavailable, true},
		"other token":    {page(201, `{"key":"a","token":"t","fencing_token":1,"ttl_ms":30000,"waited_ms":0}`), ErrServiceUnavailable, true},
		"list":           {page(201, `[]`), ErrServiceUnavailable, true},
		"text for a TTL": {page(201, `{"key":"a","ttl_ms":"30000"}`), ErrServiceUnavailable, true},
	} {
		row := row
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPost {
					row.answer(w)
				}
				return r.Method == http.MethodPost
			})
			claim := client.newClaim(wanted{names: []string{"a"}}, Options{})
			got := claim.granted(context.Background(), time.Second, claim.keys.acquire(map[string]any{}), nil)
			var e *Error
			if !errors.As(got.err, &e) || e.Kind != row.kind || e.OutcomeUnknown != row.isUnknown {
				t.Errorf("%#v", got.err)
			}
			if strings.Contains(got.err.Error(), claim.token) {
				t.Error("a token in an error")
			}
		})
	}
}

func TestBusyTellsWhoHoldsTheKey(t *testing.T) {
	_, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		refuse(w, 409, "lock_held", `,"owner":"web-1","retry_after_ms":29900`)
		return true
	})
	_, err := client.TryLock(context.Background(), "a", Options{Wait: time.Hour})
	var e *Error
	if !errors.As(err, &e) || e.Owner != "web-1" || e.RetryAfter != 29900*time.Millisecond || e.Code != "lock_held" || e.Status != 409 {
		t.Errorf("%#v", err)
	}
}

func TestAPIKeys(t *testing.T) {
	directory := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(directory, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	file, other, empty := write("a", "from file\n"), write("b", "from the variable's file\r\n"), write("c", "\n")
	var got string
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		refuse(w, 401, "unauthenticated", "")
	}))
	defer service.Close()
	check := func(config Config, expected string) {
		t.Helper()
		config.URL = service.URL
		client := newClient(t, config)
		_, err := client.Get(context.Background(), "a")
		if got != expected || !errors.Is(err, ErrRequestRefused) {
			t.Errorf("%q, %v", got, err)
		}
		for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
			if text := fmt.Sprintf(format, client); strings.Contains(text, "from") {
				t.Error(text)
			}
		}
	}
	check(Config{}, "")
	t.Setenv("LOCKKEEPER_API_KEY", "from the variable")
	check(Config{}, "Bearer from the variable")
	t.Setenv("LOCKKEEPER_API_KEY_FILE", other)
	check(Config{}, "Bearer from the variable's file")
	check(Config{APIKeyFile: file}, "Bearer from file")
	check(Config{APIKeyFile: file, APIKey: "from a setting"}, "Bearer from a setting")
	client := newClient(t, Config{URL: service.URL, APIKeyFile: file})
	write("a", "from a later file\n")
	if client.Get(context.Background(), "a"); got != "Bearer from a later file" {
		t.Error(got)
	}
	for _, text := range []string{"", "\n", "\ufefffrom", "two\nlines", "from\u00a0", "\xff"} { // as while it is rewritten
		write("a", text)
		got = ""
		if client.Get(context.Background(), "a"); got != "Bearer from a later file" {
			t.Errorf("%q: %q", text, got)
		}
		if _, err := New(Config{URL: service.URL, APIKeyFile: file}); err == nil || !strings.Contains(err.Error(), file) {
			t.Error(err)
		}
	}
	os.Remove(file)
	got = ""
	if client.Get(context.Background(), "a"); got != "Bearer from a later file" {
		t.Error(got)
	}
	if _, err := New(Config{URL: service.URL, APIKeyFile: file}); err == nil || err.Error() != "lockkeeper: the API key in "+file+" cannot be read: no such file or directory" {
		t.Error(err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		config := Config{URL: "http://jane:from@x", APIKey: "from"}
		if text := fmt.Sprintf(format, config) + fmt.Sprintf(format, &config); strings.Contains(text, "from") || !strings.Contains(text, "...@x") {
			t.Error(text)
		}
	}
	for _, config := range []Config{{APIKeyFile: empty}, {APIKeyFile: filepath.Join(directory, "none")}, {APIKey: "two\nlines"}} {
		if _, err := New(config); err == nil || strings.Contains(err.Error(), "lines") || !strings.Contains(err.Error(), config.APIKeyFile) || strings.Contains(err.Error(), "nil") {
			t.Errorf("%v: %v", config, err)
		}
	}
}

func TestUnixSocketAndCA(t *testing.T) {
	directory := t.TempDir()
	socket := filepath.Join(directory, "a.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	service := newFake(nil)
	defer service.Close()
	go http.Serve(listener, service)
	defer listener.Close()
	if err := newClient(t, Config{URL: "unix:" + socket}).WithLock(context.Background(), "a", Options{}, nothing); err != nil {
		t.Error(err)
	}
	secure := httptest.NewTLSServer(service)
	defer secure.Close()
	file := filepath.Join(directory, "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := newClient(t, Config{URL: secure.URL, CA: file}).WithLock(context.Background(), "a", Options{}, nothing); err != nil {
		t.Error(err)
	}
	for _, file := range []string{filepath.Join(directory, "none"), socket, os.Args[0]} {
		if _, err := New(Config{CA: file}); err == nil || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "nil") {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func nothing(context.Context, *Lease) error { return nil }

func TestTroublesThatStayAreToldAtOnce(t *testing.T) {
	_, plain := startFake(t, nil)
	secure, directory := httptest.NewTLSServer(newFake(nil)), t.TempDir()
	defer secure.Close()
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	file := filepath.Join(directory, "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	noTLS := strings.Replace(plain.url, "http:", "https:", 1)
	// The certificate names example.com and 127.0.0.1.
	otherName := strings.Replace(secure.URL, "127.0.0.1", "localhost", 1)
	answers := func(status int, code string) string {
		_, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
			if code == "" {
				w.WriteHeader(status)
			} else {
				refuse(w, status, code, "")
			}
			return true
		})
		return client.url
	}
	page, unknown, forbidden, wrong := answers(404, ""), answers(401, "unauthenticated"), answers(403, "forbidden"), answers(400, "invalid_request")
	for _, row := range []struct {
		config Config
		told   string
	}{
		{Config{URL: noTLS}, "no answer from " + noTLS + ": no TLS is spoken there: is it http://?"},
		{Config{URL: secure.URL}, "no answer from " + secure.URL + ": its certificate is not signed by an authority that is trusted here: name the file of that authority (Config.CA, LOCKKEEPER_CA)"},
		{Config{URL: otherName, CA: file}, "no answer from " + otherName + ": its certificate is not accepted: certificate is valid for example.com, "},
		{Config{URL: page}, "the answer is 404 and not from lockkeeper; check the URL, " + page},
		{Config{URL: unknown, APIKey: "s3cret"}, "unknown API key: look at Config.APIKey, LOCKKEEPER_API_KEY or LOCKKEEPER_API_KEY_FILE"},
		{Config{URL: unknown}, "the service asks for an API key: set Config.APIKey, LOCKKEEPER_API_KEY or LOCKKEEPER_API_KEY_FILE"},
		{Config{URL: forbidden}, "by the test (403 forbidden); use an API key with this permission and prefix"},
		{Config{URL: wrong}, "by the test (400 invalid_request); correct the request"},
	} {
		err := newClient(t, row.config).WithLock(context.Background(), "a", Options{Wait: Forever}, nothing)
		told, isWhole := "lockkeeper: "+row.told, !strings.HasSuffix(row.told, " ") // Go's words end in several ways.
		if !errors.Is(err, ErrRequestRefused) || isWhole && err.Error() != told || !strings.HasPrefix(err.Error(), told) {
			t.Errorf("%v\nin place of %s", err, row.told)
		}
	}
}

func TestAClientCertificateIsReadForEachConnection(t *testing.T) {
	directory := t.TempDir()
	make := func(name string) (cert, key string) {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		raw, _ := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
		text, _ := x509.MarshalECPrivateKey(private)
		cert, key = filepath.Join(directory, "cert.pem"), filepath.Join(directory, "key.pem")
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), 0o600)
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), 0o600)
		return cert, key
	}
	var names []string
	fake := newFake(func(_ http.ResponseWriter, r *http.Request) bool {
		names = append(names, r.TLS.PeerCertificates[0].Subject.CommonName)
		return false
	})
	service := httptest.NewUnstartedServer(fake)
	service.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	service.Config.ErrorLog = log.New(io.Discard, "", 0)
	service.StartTLS()
	defer service.Close()
	defer fake.Close()
	ca := filepath.Join(directory, "ca.pem")
	os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: service.Certificate().Raw}), 0o600)
	cert, key := make("first")
	client := newClient(t, Config{URL: service.URL, CA: ca, Cert: cert, CertKey: key})
	client.Get(context.Background(), "a")
	make("second")
	client.http.CloseIdleConnections()
	if _, err := client.Get(context.Background(), "a"); err != nil || fmt.Sprint(names) != "[first second]" {
		t.Error(names, err)
	}
	_, err := newClient(t, Config{URL: service.URL, CA: ca}).Lock(context.Background(), "a", Options{Wait: Forever})
	told := "no answer from " + service.URL + ": it asks for a client certificate that it trusts: name its files (Config.Cert and Config.CertKey, LOCKKEEPER_CERT and LOCKKEEPER_CERT_KEY)"
	if !errors.Is(err, ErrRequestRefused) || err.Error() != "lockkeeper: "+told {
		t.Error(err)
	}
	for _, config := range []Config{{Cert: cert}, {CertKey: key}, {Cert: key, CertKey: key}, {Cert: ca, CertKey: key}} {
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), "Config.Cert") {
			t.Errorf("%v: %v", config, err)
		}
	}
}

func TestAnHTTPClientOfOnesOwnSendsTheRequests(t *testing.T) {
	service, _ := startFake(t, nil)
	var asked []string
	own := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		asked = append(asked, r.Method)
		return http.DefaultTransport.RoundTrip(r)
	})}
	client := newClient(t, Config{URL: service.URL, HTTP: own, TokenPrefix: "shop:"})
	err := client.WithLock(context.Background(), "a", Options{}, func(_ context.Context, lease *Lease) error {
		if !strings.HasPrefix(lease.Token(), "shop:") {
			t.Error(lease.Token())
		}
		return nil
	})
	if err != nil || fmt.Sprint(asked) != "[POST DELETE]" || own.CheckRedirect != nil {
		t.Error(asked, err)
	}
	for _, config := range []Config{{URL: "unix:/a", HTTP: own}, {CA: "a", HTTP: own}, {Cert: "a", HTTP: own}} {
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), "Config.HTTP") {
			t.Error(err)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

func TestAClientWithoutSettingsIsRefused(t *testing.T) {
	client := &Client{}
	_, list := client.List(context.Background(), "")
	_, get := client.Get(context.Background(), "a")
	_, force := client.ForceRelease(context.Background(), "a", "")
	for _, err := range []error{list, get, force, client.WithLock(context.Background(), "a", Options{Wait: Forever}, nothing)} {
		if !errors.Is(err, ErrRequestRefused) || err.Error() != "lockkeeper: this Client has no settings: make it with New" {
			t.Error(err)
		}
	}
	client.Close()
}

func TestNoProxyAndNoRedirect(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another host was asked") }))
	defer other.Close()
	t.Setenv("HTTP_PROXY", other.URL)
	t.Setenv("http_proxy", other.URL)
	_, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		return true
	})
	client.base = strings.Replace(client.base, "127.0.0.1", "localhost", 1)
	if _, err := client.Get(context.Background(), "a"); !errors.Is(err, ErrRequestRefused) {
		t.Error(err)
	}
}

func TestListReadsAllPages(t *testing.T) {
	var queries []string
	_, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		queries = append(queries, r.URL.Query().Get("prefix")+"|"+r.URL.Query().Get("cursor"))
		switch len(queries) {
		case 1:
			fmt.Fprint(w, `{"locks":[{"key":"a b/1","held":true,"owner":"x","fencing_token":7,"ttl_ms":1500,"waiters":2}],"cursor":"next &"}`)
		case 2:
			fmt.Fprint(w, `{"locks":"from a gateway","cursor":"else"}`)
		default:
			fmt.Fprint(w, `{"locks":[{"key":"a b/2","held":true,"ttl_ms":9,"waiters":0,"holders":2,"slots":3}]}`)
		}
		return true
	})
	all, err := client.List(context.Background(), "a b/")
	expected := []Status{{Key: "a b/1", Held: true, Owner: "x", FencingToken: 7, TTL: 1500 * time.Millisecond, Waiters: 2},
		{Key: "a b/2", Held: true, TTL: 9 * time.Millisecond, Holders: 2, Slots: 3}}
	if err != nil || fmt.Sprint(all) != fmt.Sprint(expected) {
		t.Error(all, err)
	}
	if got := strings.Join(queries, " "); got != "a b/| a b/|next & a b/|next &" {
		t.Error(got)
	}
}

func TestGetTakesNothingFromAnswersToOthers(t *testing.T) {
	asked := 0
	_, client := startFake(t, func(w http.ResponseWriter, r *http.Request) bool {
		if asked++; asked == 1 {
			fmt.Fprint(w, `{"key":"b","held":true,"owner":"x","ttl_ms":9}`)
		}
		return asked == 1
	})
	status, err := client.Get(context.Background(), "a")
	if err != nil || status != (Status{Key: "a"}) || asked != 2 {
		t.Error(status, err)
	}
}

func TestForceReleaseAsksOnce(t *testing.T) {
	service, client := startFake(t, nil)
	ctx := context.Background()
	lease, err := client.TryLock(ctx, "a", Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, expected := range []bool{true, false} {
		if ended, err := client.ForceRelease(ctx, "a", "OPS 7 & more"); ended != expected || err != nil {
			t.Error(ended, err)
		}
	}
	if err := lease.Release(); !errors.Is(err, ErrLeaseLost) {
		t.Error(err)
	}
	if got := service.requests("DELETE /admin")[0]; !strings.HasSuffix(got, "/locks/a?reason=OPS+7+%26+more") {
		t.Error(got)
	}
	service.hook = func(w http.ResponseWriter, r *http.Request) bool { cut(w); return true }
	before := len(service.requests("DELETE /admin"))
	if _, err := client.ForceRelease(ctx, "a", ""); !errors.Is(err, ErrServiceUnavailable) {
		t.Error(err)
	}
	if len(service.requests("DELETE /admin")) != before+1 {
		t.Error("a forced release was repeated")
	}
}

func TestPausesAreShorterThanAPlaceIsKept(t *testing.T) {
	for failures := 0; failures < 100; failures++ {
		if pause := backoff(failures); pause < 25*time.Millisecond || pause > time.Second {
			t.Fatal(failures, pause)
		}
	}
	if patience(Forever) != grace || patience(-Forever) != time.Second/2 {
		t.Error("patience")
	}
}

func TestClockRunsWithTime(t *testing.T) {
	began, sent := time.Now(), now()
	time.Sleep(50 * time.Millisecond)
	if ran, real := now()-sent, time.Since(began); ran < 50*time.Millisecond || ran > real+time.Second {
		t.Error(ran, real)
	}
}
