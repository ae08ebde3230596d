// Puts keys into a bbolt file, each promised when its transaction has committed; or checks one,
// or prints what it has. Arguments: run MODE COUNT, check, or show.
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"go.etcd.io/bbolt"
)

var bucket = []byte("zoo")

func value(key []byte) []byte { return bytes.Repeat(key, 100) }

func fail(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(mode string, count int) {
	dir := os.Getenv("KEDGE_DIR")
	db, err := bbolt.Open(filepath.Join(dir, "db"), 0o644, &bbolt.Options{NoSync: mode == "nosync"})
	fail(err)
	fail(db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucket)
		return err
	}))
	names, err := os.Open(dir)
	fail(err)
	fail(names.Sync())
	fmt.Println("ack open")
	for n := 1; n <= count; n++ {
		key := []byte(fmt.Sprintf("key%04d", n))
		fail(db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket).Put(key, value(key)) }))
		fmt.Println("ack", n)
	}
}

func check() {
	promised, err := strconv.Atoi(os.Getenv("KEDGE_ACKED_COUNT"))
	fail(err)
	if promised == 0 {
		return
	}
	db, err := bbolt.Open("db", 0o644, nil)
	fail(err)
	fail(db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			return err
		}
		have := tx.Bucket(bucket)
		if have == nil {
			return fmt.Errorf("no bucket")
		}
		for n := 1; n < promised; n++ {
			key := []byte(fmt.Sprintf("key%04d", n))
			if !bytes.Equal(have.Get(key), value(key)) {
				return fmt.Errorf("%s was promised and is not there", key)
			}
		}
		return nil
	}))
}

func show() {
	db, err := bbolt.Open("db", 0o644, nil)
	fail(err)
	fail(db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			return err
		}
		have := tx.Bucket(bucket)
		if have == nil {
			return nil
		}
		return have.ForEach(func(key, data []byte) error {
			_, err := fmt.Printf("%q %x\n", key, sha256.Sum256(data))
			return err
		})
	}))
}

func main() {
	if os.Args[1] == "show" {
		show()
		return
	}
	if os.Args[1] == "check" {
		check()
		return
	}
	count, err := strconv.Atoi(os.Args[3])
	fail(err)
	run(os.Args[2], count)
}
