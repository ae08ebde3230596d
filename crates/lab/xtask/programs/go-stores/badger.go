package main

import (
	"errors"

	"github.com/dgraph-io/badger/v4"
)

type badgerStore struct{ db *badger.DB }

func (s badgerStore) put(n int, v []byte) error {
	return s.db.Update(func(tx *badger.Txn) error { return tx.Set(key(n), v) })
}

func (s badgerStore) get(n int) (v []byte, err error) {
	err = s.db.View(func(tx *badger.Txn) error {
		item, err := tx.Get(key(n))
		if err != nil {
			return err
		}
		v, err = item.ValueCopy(nil)
		return err
	})
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	return v, err
}

func init() {
	kinds["badger"] = kind{"github.com/dgraph-io/badger/v4", func() (store, error) {
		options := badger.DefaultOptions(".").WithSyncWrites(true).WithLogger(nil).
			WithMemTableSize(1 << 20).WithValueLogFileSize(1 << 20).WithValueThreshold(1 << 10)
		db, err := badger.Open(options)
		return badgerStore{db}, err
	}}
}
