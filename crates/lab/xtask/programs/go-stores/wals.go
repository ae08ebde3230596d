package main

import (
	"errors"
	"io"

	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	"github.com/tidwall/wal"
	etcdwal "go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

type tidwallStore struct{ log *wal.Log }

func (s tidwallStore) put(n int, v []byte) error { return s.log.Write(uint64(n+1), v) }

func (s tidwallStore) get(n int) ([]byte, error) {
	v, err := s.log.Read(uint64(n + 1))
	if errors.Is(err, wal.ErrNotFound) {
		return nil, nil
	}
	return v, err
}

type raftStore struct{ log *raftwal.WAL }

func (s raftStore) put(n int, v []byte) error {
	return s.log.StoreLog(&raft.Log{Index: uint64(n + 1), Term: 1, Data: v})
}

func (s raftStore) get(n int) ([]byte, error) {
	var log raft.Log
	err := s.log.GetLog(uint64(n+1), &log)
	if errors.Is(err, raft.ErrLogNotFound) {
		return nil, nil
	}
	return log.Data, err
}

type etcdStore struct {
	log  *etcdwal.WAL
	have []*raftpb.Entry
}

func (s etcdStore) put(n int, v []byte) error {
	at := uint64(n + 1)
	return s.log.Save(&raftpb.HardState{Term: new(uint64(1)), Vote: new(uint64(0)), Commit: &at}, []*raftpb.Entry{{Term: new(uint64(1)), Index: &at, Data: v}})
}

func (s etcdStore) get(n int) ([]byte, error) {
	for _, e := range s.have {
		if e.GetIndex() == uint64(n+1) {
			return e.Data, nil
		}
	}
	return nil, nil
}

func openEtcd() (store, error) {
	etcdwal.SegmentSizeBytes = 8 << 10
	if !etcdwal.Exist("wal") {
		log, err := etcdwal.Create(zap.NewNop(), "wal", []byte("zoo"))
		return etcdStore{log: log}, err
	}
	s, err := readEtcd()
	// As the server does when it starts: a torn tail is cut off, once.
	if errors.Is(err, io.ErrUnexpectedEOF) && etcdwal.Repair(zap.NewNop(), "wal") {
		return readEtcd()
	}
	return s, err
}

func readEtcd() (store, error) {
	log, err := etcdwal.Open(zap.NewNop(), "wal", &walpb.Snapshot{Index: new(uint64(0)), Term: new(uint64(0))})
	if err != nil {
		return nil, err
	}
	_, _, have, err := log.ReadAll()
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return etcdStore{log, have}, nil
}

func init() {
	kinds["tidwall"] = kind{"github.com/tidwall/wal", func() (store, error) {
		log, err := wal.Open(".", &wal.Options{SegmentSize: 4 << 10, LogFormat: wal.Binary, SegmentCacheSize: 2, DirPerms: 0o750, FilePerms: 0o640})
		return tidwallStore{log}, err
	}}
	kinds["raft-wal"] = kind{"github.com/hashicorp/raft-wal", func() (store, error) {
		log, err := raftwal.Open(".", raftwal.WithSegmentSize(8<<10))
		return raftStore{log}, err
	}}
	kinds["etcd-wal"] = kind{"go.etcd.io/etcd/server/v3", openEtcd}
}
