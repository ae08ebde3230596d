package main

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

type quiet struct{}

func (quiet) Infof(string, ...interface{})      {}
func (quiet) Errorf(string, ...interface{})     {}
func (quiet) Fatalf(f string, a ...interface{}) { panic(f) }

type pebbleStore struct{ db *pebble.DB }

func (s pebbleStore) put(n int, v []byte) error {
	if err := s.db.Set(key(n), v, pebble.Sync); err != nil || n%3 != 2 {
		return err
	}
	return s.db.Flush()
}

func (s pebbleStore) get(n int) ([]byte, error) {
	v, closer, err := s.db.Get(key(n))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found := append([]byte{}, v...)
	return found, closer.Close()
}

func init() {
	kinds["pebble"] = kind{"github.com/cockroachdb/pebble/v2", func() (store, error) {
		db, err := pebble.Open(".", &pebble.Options{Logger: quiet{}})
		return pebbleStore{db}, err
	}}
}
