package main

import (
	"errors"

	"github.com/syndtr/goleveldb/leveldb"
	"github.com/syndtr/goleveldb/leveldb/opt"
)

type goleveldbStore struct{ db *leveldb.DB }

func (s goleveldbStore) put(n int, v []byte) error {
	return s.db.Put(key(n), v, &opt.WriteOptions{Sync: true})
}

func (s goleveldbStore) get(n int) ([]byte, error) {
	v, err := s.db.Get(key(n), nil)
	if errors.Is(err, leveldb.ErrNotFound) {
		return nil, nil
	}
	return v, err
}

func init() {
	kinds["goleveldb"] = kind{"github.com/syndtr/goleveldb", func() (store, error) {
		db, err := leveldb.OpenFile(".", &opt.Options{WriteBuffer: 4 << 10})
		return goleveldbStore{db}, err
	}}
}
