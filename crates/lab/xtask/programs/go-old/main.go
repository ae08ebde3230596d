// Stores in Go, in versions that have published faults. Arguments: run NAME COUNT, check NAME,
// version NAME.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"

	"github.com/coreos/etcd/raft/raftpb"
	"github.com/coreos/etcd/wal"
	"github.com/coreos/etcd/wal/walpb"
	bolt "go.etcd.io/bbolt"
)

func value(n int) []byte { return bytes.Repeat([]byte(fmt.Sprintf("%04d", n)), 300) }

type store interface {
	put(n int) error
	has(n int) bool
}

type etcd struct {
	log  *wal.WAL
	have []raftpb.Entry
}

func (s *etcd) put(n int) error {
	at := uint64(n + 1)
	return s.log.Save(raftpb.HardState{Term: 1, Commit: at}, []raftpb.Entry{{Term: 1, Index: at, Data: value(n)}})
}

func (s *etcd) has(n int) bool {
	for _, e := range s.have {
		if e.Index == uint64(n+1) && bytes.Equal(e.Data, value(n)) {
			return true
		}
	}
	return false
}

// As the server does when it starts.
func openEtcd() (store, error) {
	if !wal.Exist("wal") {
		log, err := wal.Create("wal", []byte("zoo"))
		return &etcd{log: log}, err
	}
	for repaired := false; ; repaired = true {
		log, err := wal.Open("wal", walpb.Snapshot{})
		if err != nil {
			return nil, err
		}
		_, _, have, err := log.ReadAll()
		if err == nil {
			return &etcd{log, have}, nil
		}
		log.Close()
		if repaired || err != io.ErrUnexpectedEOF || !wal.Repair("wal") {
			return nil, err
		}
	}
}

type bbolt struct{ db *bolt.DB }

func (s bbolt) put(n int) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists([]byte("zoo"))
		if err != nil {
			return err
		}
		return bucket.Put([]byte(strconv.Itoa(n)), value(n))
	})
}

func (s bbolt) has(n int) (has bool) {
	s.db.View(func(tx *bolt.Tx) error {
		bucket := tx.Bucket([]byte("zoo"))
		has = bucket != nil && bytes.Equal(bucket.Get([]byte(strconv.Itoa(n))), value(n))
		return nil
	})
	return has
}

func openBolt() (store, error) {
	db, err := bolt.Open("db", 0o600, nil)
	return bbolt{db}, err
}

var kinds = map[string]struct {
	module string
	open   func() (store, error)
}{
	"etcd":  {"github.com/coreos/etcd", openEtcd},
	"bbolt": {"go.etcd.io/bbolt", openBolt},
}

func work() error {
	kind, ok := kinds[os.Args[2]]
	if !ok {
		return fmt.Errorf("no such store: %s", os.Args[2])
	}
	if os.Args[1] == "version" {
		info, _ := debug.ReadBuildInfo()
		for _, d := range info.Deps {
			if d.Path == kind.module {
				fmt.Println(d.Version)
			}
		}
		return nil
	}
	s, err := kind.open()
	if err != nil {
		return fmt.Errorf("does not open: %w", err)
	}
	if os.Args[1] == "run" {
		count, _ := strconv.Atoi(os.Args[3])
		for n := 0; n < count; n++ {
			if err := s.put(n); err != nil {
				return err
			}
			fmt.Println("ack", n)
		}
		return nil
	}
	promised, _ := strconv.Atoi(os.Getenv("KEDGE_ACKED_COUNT"))
	for n := 0; n < promised; n++ {
		if !s.has(n) {
			return fmt.Errorf("%d was promised and is not there", n)
		}
	}
	return nil
}

func main() {
	if err := work(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	// Without a close: power fails while a program runs.
	os.Exit(0)
}
