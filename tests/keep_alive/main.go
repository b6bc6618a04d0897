// Works under a lease until its input ends or the lease is lost.
// Usage: program URL KEY TTL
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
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
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	service := lockService{URL: os.Args[1]}
	switch err := service.KeepAlive(ctx, os.Args[2], ttl, work); {
	case err == nil:
		fmt.Println("done")
	case err == errHeld:
		fmt.Println("not now")
	case err == errLost:
		fmt.Println("lost")
	case errors.Is(err, context.Canceled):
		fmt.Println("cancelled")
	default:
		panic(err)
	}
}
