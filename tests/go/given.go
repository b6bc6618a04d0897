// What docs/migration.md takes for granted around its Go.
// Usage: program locked|held PORT
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"

	"github.com/gomodule/redigo/redis"
)

const ifMine = `if redis.call("GET", KEYS[1]) ~= ARGV[1] then return 0 end `

var (
	refresh = redis.NewScript(1, ifMine+`return redis.call("PEXPIRE", KEYS[1], ARGV[2])`)
	release = redis.NewScript(1, ifMine+`return redis.call("DEL", KEYS[1])`)
	worked  = false
)

// work ends with a line of input, or the end of it, or with ctx.
func work(ctx context.Context) {
	worked = true
	fmt.Println("at work")
	line := make(chan struct{})
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		close(line)
	}()
	select {
	case <-line:
	case <-ctx.Done():
		fmt.Println("told to stop")
	}
}

func main() {
	dial := func() (redis.Conn, error) { return redis.Dial("tcp", "127.0.0.1:"+os.Args[2]) }
	ctx := context.Background()
	if os.Args[1] == "locked" {
		locked(&redis.Pool{Dial: dial}, func() { work(ctx) })
	} else {
		held(ctx, work)
	}
	if !worked {
		fmt.Println("not now")
	}
}
