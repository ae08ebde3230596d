// Badger, in its default settings, in a version that has a published fault. Arguments: run COUNT, check, version.
package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"

	"github.com/dgraph-io/badger/v3"
)

const module = "github.com/dgraph-io/badger/v3"

func key(n int) []byte { return []byte(fmt.Sprintf("key%04d", n)) }

// Long enough that some of them fill a table.
func value(n int) []byte { return bytes.Repeat(key(n), 9000) }

func work() error {
	if os.Args[1] == "version" {
		info, _ := debug.ReadBuildInfo()
		for _, d := range info.Deps {
			if d.Path == module {
				fmt.Println(d.Version)
			}
		}
		return nil
	}
	db, err := badger.Open(badger.DefaultOptions(".").WithLogger(nil).
		WithMemTableSize(1 << 20).WithValueThreshold(100 << 10).WithValueLogFileSize(1 << 20))
	if err != nil {
		return fmt.Errorf("does not open: %w", err)
	}
	if os.Args[1] == "run" {
		count, _ := strconv.Atoi(os.Args[2])
		for n := 0; n < count; n++ {
			put := func(tx *badger.Txn) error { return tx.Set(key(n), value(n)) }
			if err := db.Update(put); err != nil {
				return err
			}
			fmt.Println("ack", n)
		}
		return nil
	}
	// The default promises no key after a power failure, but a store that opens.
	return db.View(func(tx *badger.Txn) error {
		keys := tx.NewIterator(badger.DefaultIteratorOptions)
		defer keys.Close()
		for keys.Rewind(); keys.Valid(); keys.Next() {
			n, err := strconv.Atoi(string(bytes.TrimPrefix(keys.Item().Key(), []byte("key"))))
			if err != nil {
				return fmt.Errorf("a damaged key: %w", err)
			}
			found, err := keys.Item().ValueCopy(nil)
			if err != nil || !bytes.Equal(found, value(n)) {
				return fmt.Errorf("%d is damaged: %v", n, err)
			}
		}
		return nil
	})
}

func main() {
	if err := work(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// Without a close: power fails while a program runs.
	os.Exit(0)
}
