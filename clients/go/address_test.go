package lockkeeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// staged makes addresses that answer as their names say; tried has them in the order of the attempts.
func staged(t *testing.T, names string) (a *addresses, tried func() string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	var mutex sync.Mutex
	var seen []string
	a = newAddresses()
	a.lookup = func(context.Context, string) ([]string, error) { return strings.Fields(names), nil }
	a.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		name, _, _ := strings.Cut(address, ":")
		mutex.Lock()
		seen = append(seen, name)
		mutex.Unlock()
		switch name {
		case "silent":
			<-ctx.Done()
			return nil, ctx.Err()
		case "refused":
			return nil, errors.New("refused")
		case "slow":
			if !sleep(ctx, 600*time.Millisecond) {
				return nil, ctx.Err()
			}
		}
		return new(net.Dialer).DialContext(ctx, network, listener.Addr().String())
	}
	return a, func() string {
		mutex.Lock()
		defer mutex.Unlock()
		told := strings.Join(seen, " ")
		seen = nil
		return told
	}
}

func TestAddressesAreTriedSideBySideAndTheGoodOneIsRemembered(t *testing.T) {
	for _, row := range []struct{ names, tried, again string }{
		{"silent good", "silent good", "good"},
		{"silent silent silent good", "silent silent silent good", "good"},
		{"refused good", "refused good", "good"},
		{"slow refused", "slow refused", "slow refused"},
		{"silent slow", "silent slow", "slow silent"},
	} {
		a, tried := staged(t, row.names)
		for _, expected := range []string{row.tried, row.again} {
			connection, err := a.connect(background, "tcp", "service:80")
			if err != nil {
				t.Fatal(row.names, err)
			}
			connection.Close()
			if got := tried(); got != expected {
				t.Error(row.names, got, expected)
			}
		}
	}
	for names, told := range map[string]string{"": "the name has no address", "refused refused": "refused"} {
		a, _ := staged(t, names)
		if _, err := a.connect(background, "tcp", "service:80"); err == nil || !strings.Contains(err.Error(), told) {
			t.Error(names, err)
		}
	}
}

func TestARequestReachesAServiceWhoseFirstAddressIsSilent(t *testing.T) {
	service, client := startFake(t, nil)
	a, _ := staged(t, "silent good")
	real := a.dial
	a.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasPrefix(address, "good") {
			return new(net.Dialer).DialContext(ctx, network, service.Listener.Addr().String())
		}
		return real(ctx, network, address)
	}
	client.http.Transport.(*http.Transport).DialContext = a.connect
	client.base = "http://service"
	lease, err := client.TryLock(background, "a", Options{TTL: 900 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 5; i++ { // As after failures: each request makes a connection.
		client.http.CloseIdleConnections()
		time.Sleep(300 * time.Millisecond)
	}
	if err := lease.Release(); err != nil || service.isHeld("a") {
		t.Error(fmt.Sprint(err))
	}
}
