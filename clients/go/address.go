package lockkeeper

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	nextAddress = 250 * time.Millisecond // until the next address is tried as well (RFC 8305)
	connect     = 5 * time.Second        // for all addresses
)

// addresses connect to the address of a name that accepts first, and try that one first from then on. Go's own dialer
// tries addresses of one family one after another, and an unresponsive one uses up the time of a request.
type addresses struct {
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	lookup func(ctx context.Context, name string) ([]string, error)
	mutex  sync.Mutex
	good   string
}

func newAddresses() *addresses {
	return &addresses{dial: new(net.Dialer).DialContext, lookup: net.DefaultResolver.LookupHost}
}

func (a *addresses) connect(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connect)
	defer cancel()
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	all, err := a.lookup(ctx, name)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	a.mutex.Lock()
	for i, one := range all {
		if one == a.good {
			all[0], all[i] = all[i], all[0]
		}
	}
	a.mutex.Unlock()
	return a.firstToAccept(ctx, network, port, all)
}

// firstToAccept tries the addresses one after another, slow ones side by side.
func (a *addresses) firstToAccept(ctx context.Context, network, port string, all []string) (net.Conn, error) {
	type attempt struct {
		connection net.Conn
		err        error
		address    string
	}
	attempts, under := make(chan attempt, len(all)), 0
	failure := error(&net.OpError{Op: "dial", Net: network, Err: errors.New("the name has no address")})
	ctx, abandon := context.WithCancel(ctx)
	defer func() {
		abandon()
		go func(under int) { // Another one may have been accepted as well.
			for ; under > 0; under-- {
				if late := <-attempts; late.err == nil {
					late.connection.Close()
				}
			}
		}(under)
	}()
	for len(all) > 0 || under > 0 {
		var next <-chan time.Time
		if len(all) > 0 {
			address := all[0]
			all, under = all[1:], under+1
			go func() {
				connection, err := a.dial(ctx, network, net.JoinHostPort(address, port))
				attempts <- attempt{connection, err, address}
			}()
			timer := time.NewTimer(nextAddress)
			defer timer.Stop()
			next = timer.C
		}
		select {
		case got := <-attempts:
			under--
			if got.err == nil {
				a.mutex.Lock()
				a.good = got.address
				a.mutex.Unlock()
				return got.connection, nil
			}
			failure = got.err
		case <-next:
		}
	}
	return nil, failure
}
