package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tidwall/buntdb"
)

type buntStore struct {
	db *buntdb.DB
	// Each put adds a filler, and the file is shrunk: what stays of it takes long to write.
	shrinks bool
}

func (s buntStore) put(n int, v []byte) error {
	err := s.db.Update(func(tx *buntdb.Tx) error {
		_, _, err := tx.Set(string(key(n)), string(v), nil)
		return err
	})
	if err != nil || !s.shrinks {
		return err
	}
	err = s.db.Update(func(tx *buntdb.Tx) error {
		_, _, err := tx.Set(fmt.Sprintf("filler%d", n), strings.Repeat("x", 100<<10), nil)
		return err
	})
	if err != nil {
		return err
	}
	return s.db.Shrink()
}

func (s buntStore) get(n int) (v []byte, err error) {
	err = s.db.View(func(tx *buntdb.Tx) error {
		found, err := tx.Get(string(key(n)))
		v = []byte(found)
		return err
	})
	if errors.Is(err, buntdb.ErrNotFound) {
		return nil, nil
	}
	return v, err
}

func openBunt(shrinks bool) func() (store, error) {
	return func() (store, error) {
		db, err := buntdb.Open("data.db")
		if err != nil {
			return nil, err
		}
		var config buntdb.Config
		if err := db.ReadConfig(&config); err != nil {
			return nil, err
		}
		config.SyncPolicy = buntdb.Always
		return buntStore{db, shrinks}, db.SetConfig(config)
	}
}

func init() {
	kinds["buntdb"] = kind{"github.com/tidwall/buntdb", openBunt(false)}
	kinds["buntdb-shrink"] = kind{"github.com/tidwall/buntdb", openBunt(true)}
}
