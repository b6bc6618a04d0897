// Works under a lease until its input ends or the lease is lost.
// Usage: program URL KEY TTL
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

func work(ctx context.Context, _ int64) error {
	fmt.Println("at work")
	over := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		fmt.Println("told to stop")
		return ctx.Err()
	}
}

func main() {
	ttl, err := time.ParseDuration(os.Args[3] + "s")
	if err != nil {
		panic(err)
	}
	service := lockService{URL: os.Args[1]}
	switch err := service.KeepAlive(context.Background(), os.Args[2], ttl, work); err {
	case nil:
		fmt.Println("done")
	case errHeld:
		fmt.Println("not now")
	case errLost:
		fmt.Println("lost")
	default:
		panic(err)
	}
}
