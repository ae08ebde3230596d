// Stores in Go: puts keys, each promised when put has returned, and checks what a crash left.
// Arguments: run NAME COUNT, check NAME, version NAME.
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
)

// A store in the working directory, in the settings that its documentation calls durable.
type store interface {
	put(n int, value []byte) error
	// The value, or nil.
	get(n int) ([]byte, error)
}

type kind struct {
	module string
	open   func() (store, error)
}

var kinds = map[string]kind{}

func key(n int) []byte { return []byte(fmt.Sprintf("key%04d", n)) }

func value(n int) []byte {
	sum := sha256.Sum256(key(n))
	return bytes.Repeat(sum[:], 30)
}

func run(open func() (store, error), count int) error {
	s, err := open()
	if err != nil {
		return err
	}
	for n := 0; n < count; n++ {
		if err := s.put(n, value(n)); err != nil {
			return err
		}
		fmt.Println("ack", n)
	}
	return nil
}

func check(open func() (store, error), promised int) error {
	s, err := open()
	if err != nil {
		return fmt.Errorf("does not open: %w", err)
	}
	for n := 0; n < promised+2; n++ {
		found, err := s.get(n)
		if err != nil {
			return fmt.Errorf("%s: %w", key(n), err)
		}
		if found == nil && n < promised {
			return fmt.Errorf("%s was promised and is not there", key(n))
		}
		if found != nil && !bytes.Equal(found, value(n)) {
			return fmt.Errorf("%s has a wrong value of %d bytes", key(n), len(found))
		}
	}
	return nil
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, d := range info.Deps {
		if d.Path == module {
			return d.Version
		}
	}
	return "unknown"
}

func main() {
	k, ok := kinds[os.Args[2]]
	if !ok {
		fmt.Fprintln(os.Stderr, "no such store:", os.Args[2])
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "version":
		fmt.Println(version(k.module))
	case "run":
		count, _ := strconv.Atoi(os.Args[3])
		err = run(k.open, count)
	case "check":
		promised, _ := strconv.Atoi(os.Getenv("KEDGE_ACKED_COUNT"))
		err = check(k.open, promised)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// Without a close: power fails while a program runs.
	os.Exit(0)
}
